"""Audit: what a training says about its data, from the feedback that it computes anyway."""

from __future__ import annotations

import math
import operator
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ausam.audit.learning import Rare, Redundant, rare, redundant
from ausam.audit.suspects import Suspects, suspects
from ausam.audit.table import LAYOUT, ROW, SURE, Array, as_words, empty_table, occurrences, predictions, usable, visit
from ausam.audit.verdict import Verdict, verdict
from ausam.common.atomic import commit
from ausam.common.ranks import gather, rank_and_world_size
from ausam.common.settings import POSITIVE, POSITIVE_COUNT, checked_value
from ausam.feedback import Feedback

_Known = tuple[Tensor, Tensor]  # predicted class, and loss against the rival
_Batch = tuple[Tensor, Tensor, Tensor, Tensor | _Known | None]  # index, loss, perturbed loss, outputs or what they say

WAITING = 64  # batches that wait on their device: one update of many rows costs little more than one of a few
SMALL = 2**14  # numbers in outputs that may wait; larger ones are read at once


class Audit:
    """What a training says about each sample: wrong labels, rare samples, redundant samples.

    It needs no pass of its own. Feed it the feedback of every step, with any method, any policy or none; it keeps 24
    bytes per sample. Wrong labels stand out because their losses stay high while the others fall (Arpit et al. 2017).

    >>> import torch
    >>> from ausam import SAM, Feedback, SharpnessAware
    >>> from ausam.audit import Audit
    >>> x, y = torch.randn(64, 4), torch.randint(3, (64,))
    >>> model = torch.nn.Linear(4, 3)
    >>> opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), SAM(rho=0.05), model)
    >>> def losses(x, y):
    ...     z = model(x)
    ...     return torch.nn.functional.cross_entropy(z, y, reduction="none"), z
    >>> audit = Audit(len(x), labels=y)
    >>> audit.update(opt.backward(losses, x, y, index=torch.arange(64)))
    >>> int(audit.table()["visits"].sum())
    64

    Arguments:
        n: number of samples in the data set, >= 1.
        labels: class of each sample, from 0, or None. With labels, and outputs in the feedback (let ``loss_fn`` return
            ``losses, outputs``, these of shape (n, classes)), the audit counts how often the network agrees and
            suggests the likely class. Without them, a sample counts as right when its loss is below log 2: a
            cross-entropy that small means more than even odds for the label.
        classes: number of classes; None reads it from the labels or the outputs. It sets the loss of guessing, log C.
        guess: the loss of guessing, > 0; None: log C. Give it where a sample has several labels or none: log 2 for
            the mean of binary cross-entropies. Outputs are then not read as one class per sample.

    When not to use it: for losses that are no cross-entropy (regression), only ``table()`` has a meaning; the others
    refuse without ``classes``, ``guess`` or labels.
    """

    def __init__(self, n: int, labels: Any = None, *, classes: int | None = None, guess: float | None = None) -> None:
        n = checked_value("Audit", "n", n, POSITIVE_COUNT)
        self._rows = empty_table(n)
        self._touched = np.zeros(n, bool)  # since the last exchange between processes
        self._waiting: list[_Batch] = []  # not in the table yet
        self._suspects: list[Suspects] = []  # of this table, or empty: the interval takes a second
        self.labels = None if labels is None else _checked_labels(labels, n)
        self._targets = None if self.labels is None else torch.from_numpy(self.labels)
        self._largest = -1 if self.labels is None else int(self.labels.max())
        self._warned = False
        known = None if self.labels is None or classes is not None else self._largest + 1
        self.classes = known if classes is None else checked_value("Audit", "classes", classes, POSITIVE_COUNT)
        if self.classes is not None and self.classes <= self._largest:
            raise ValueError(f"labels go up to {self._largest}, but classes is {classes}. Number the classes from 0.")
        self.guess = None if guess is None else checked_value("Audit", "guess", guess, POSITIVE, optional=True)
        if self.guess is not None and self.labels is not None:
            raise ValueError("labels= says what guessing costs, log C. Leave out guess=, or labels= for other targets.")

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        seen = int((self.columns()["visits"] > 0).sum())
        return f"Audit({len(self)} samples, {seen} visited, classes={self.classes})"

    def update(self, feedback: Feedback) -> None:
        """Record one step. Samples whose loss was not evaluated, or is not finite, are passed over.

        A sample that occurs twice in a batch is visited twice. All or nothing: an exception or a signal inside leaves
        the audit as it was. It waits for no device: what it is given is read a few dozen steps later.
        """
        if not isinstance(feedback, Feedback):
            raise TypeError(
                f"Audit.update got a {type(feedback).__name__}. Pass what opt.backward returned, or "
                "Feedback(index, loss, perturbed)."
            )
        if feedback.index is None:
            raise ValueError(
                "The feedback has no index, so nobody knows which samples it is about. Pass index= to opt.backward; "
                "Indexed(dataset) adds it to every sample."
            )
        index, loss = feedback.index.detach(), feedback.loss.detach()
        if index.dim() != 1 or loss.shape != index.shape:
            raise ValueError(
                f"The feedback has {index.numel()} indices and {loss.numel()} losses. Pass one index and one loss per "
                "sample."
            )
        if index.device.type == "cpu":
            self._require_inside(index)
        known: Tensor | _Known | None = None
        if self.guess is None and usable(feedback.outputs, len(index)):
            outputs = feedback.outputs.detach()
            self._require_outputs_for(int(outputs.shape[1]))
            self.classes = self.classes or int(outputs.shape[1])
            known = (
                outputs.clone() if outputs.numel() <= SMALL else predictions(outputs, self._labels_of(index, outputs))
            )
        elif feedback.outputs is not None and self.guess is None:
            self._warn_of_outputs(feedback.outputs)
        # copies, because it reads them later
        self._waiting.append((index.clone(), loss.clone(), feedback.perturbed.detach().clone(), known))
        if len(self._waiting) >= WAITING:
            self._flush()

    def _require_inside(self, index: Tensor) -> None:
        if not len(index):
            return
        low, high = torch.aminmax(index)
        if int(low) < 0 or int(high) >= len(self):
            outside = index[(index < 0) | (index >= len(self))]
            raise ValueError(
                f"The feedback has index {int(outside[0])}, but the audit is of {len(self)} samples. Build it with the "
                "length of the data set that Indexed numbers."
            )

    def _require_outputs_for(self, columns: int) -> None:
        """Refuse outputs without a column for the largest label: every sample would be compared with another class."""
        if self.labels is not None and self._largest >= columns:
            raise ValueError(
                f"labels go up to {self._largest}, but the outputs have {columns} columns, for the classes 0 to "
                f"{columns - 1}. Number the classes from 0, and let loss_fn return (losses, scores) with one score per "
                "class, or the losses alone."
            )

    def _warn_of_outputs(self, outputs: Any) -> None:
        """Warn once if the outputs may hold the scores of classes where the audit does not find them."""
        one_score = isinstance(outputs, Tensor) and outputs.shape[1:].numel() == 1  # of two classes: in the loss, too
        if self.labels is None or one_score or self._warned:
            return
        self._warned = True
        shape = f"tensor of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        warnings.warn(
            f"The outputs are a {shape}, not a tensor of class scores, shape (n, classes), so the audit goes by the "
            "losses alone: it finds fewer wrong labels and suggests no class. Let loss_fn return (losses, scores), or "
            "pass audit.update(dataclasses.replace(feedback, outputs=scores)). This warning appears once.",
            stacklevel=3,
        )

    def _labels_of(self, index: Tensor, outputs: Tensor) -> Tensor | None:
        """The labels of samples on the device of their outputs; it waits for no device."""
        if self._targets is None:
            return None
        if self._targets.device != index.device:
            self._targets = self._targets.to(index.device)
        return self._targets[index.clamp(0, len(self) - 1)].to(outputs.device)  # one outside is refused later

    def _known(self, index: Tensor) -> tuple[Array, Array]:
        """What the outputs that wait say: the predicted class of each sample or -1, and the loss against its rival."""
        waiting = [batch[3] for batch in self._waiting]
        raw = [outputs.to("cpu", torch.float32) for outputs in waiting if isinstance(outputs, Tensor)]
        if len(raw) == len(waiting) and len({outputs.shape[1] for outputs in raw}) == 1:  # nearly always
            parts = [predictions(torch.cat(raw), None if self.labels is None else torch.from_numpy(self.labels)[index])]
        else:
            parts = [self._said(*batch) for batch in self._waiting]
        classes, rival = (torch.cat([part[i].to("cpu") for part in parts]) for i in range(2))
        return classes.numpy(), rival.to(torch.float32).numpy()

    def _said(self, index: Tensor, loss: Tensor, _: Tensor, known: Tensor | _Known | None) -> _Known:
        if known is None:
            return torch.full_like(index, -1), torch.full_like(loss, math.nan)
        return predictions(known, self._labels_of(index, known)) if isinstance(known, Tensor) else known

    def _flush(self) -> None:
        """Enter the batches that wait into the table: all or nothing if a signal arrives."""
        if not self._waiting:
            return
        index, loss, perturbed = (torch.cat([part.to("cpu") for part in parts]) for parts in self._columns_waiting())
        try:
            self._require_inside(index)
        except ValueError:
            self._waiting.clear()
            raise
        columns = index.to(torch.int64), loss.to(torch.float32), (perturbed - loss).abs().to(torch.float32)
        at, losses, differences = (column.numpy() for column in columns)
        predicted, rival = self._known(columns[0])
        right = losses < SURE
        if self.labels is not None:
            right = np.where(predicted < 0, right, predicted == self.labels[at])
        good = np.flatnonzero(np.isfinite(losses))
        chosen, place = np.unique(at[good], return_inverse=True)
        words = as_words(self._rows)
        rows = words[chosen]
        once = len(chosen) == len(good)  # nearly always: no sample occurs twice
        for part in [np.arange(len(good))] if once else occurrences(at[good]):
            one, here = good[part], place[part]
            before = rows[here].view(ROW).reshape(-1)
            after = visit(before, losses[one], differences[one], rival[one], right[one], predicted[one])
            rows[here] = as_words(after)
        changes = ((words, chosen, rows), (self._touched, chosen, True))
        cleared = ((self._waiting.clear,), (self._suspects.clear,))
        commit([*((operator.setitem, *change) for change in changes), *cleared])

    def _columns_waiting(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        return [b[0] for b in self._waiting], [b[1] for b in self._waiting], [b[2] for b in self._waiting]

    def exchange(self) -> None:
        """Share the rows of all processes at the end of an epoch, in which each sample is seen by one. Collective.

        Nothing happens in a single process.
        """
        self._flush()
        if rank_and_world_size()[1] == 1:
            return
        mine = torch.from_numpy(np.flatnonzero(self._touched))
        lengths = [int(t) for t in torch.cat(gather(torch.tensor([len(mine)])))]
        indices = gather(mine, lengths)
        payload = torch.from_numpy(self._rows[mine.numpy()].view(np.uint8).copy())
        rows = gather(payload, [length * ROW.itemsize for length in lengths])
        known = gather(torch.tensor([self.classes or 0]))
        for index, data in zip(indices, rows, strict=True):
            self._rows[index.numpy()] = data.numpy().view(ROW)
        self.classes = max(int(c) for c in known) or None
        self._touched[:] = False
        self._suspects.clear()

    # -- what the data says --------------------------------------------------------------------------------------

    def suspects(self) -> Suspects:
        """The samples whose label is probably wrong, most suspect first, and the estimated share of wrong labels."""
        columns, guessing = self.columns(), self.guessing()
        if not self._suspects:
            self._suspects.append(suspects(columns, self.labels, guessing))
        return self._suspects[0]

    def rare(self) -> Rare:
        """The samples that were learnt late or not at all although their label is trusted."""
        return rare(self.columns(), self.labels, self.suspects())

    def redundant(self) -> Redundant:
        """The samples that were learnt at once and never lost, and the ``alpha`` that their share suggests."""
        return redundant(self.columns())

    def verdict(self, *, trusted: bool = False) -> Verdict:
        """What to do, in words: underfitting first, then wrong labels, then what selection could save.

        Arguments:
            trusted: whether the training drew with :class:`ausam.Trusted`, which is then not suggested again.
        """
        return verdict(self.columns(), self.suspects(), self.redundant(), self.guessing(), trusted=trusted)

    def guessing(self) -> float:
        """The loss of guessing: ``guess``, or log C."""
        if self.guess is not None:
            return float(self.guess)
        if self.classes is None:
            raise ValueError(
                "The number of classes is not known. Pass labels=, classes= or guess= to Audit, or let loss_fn "
                "return (losses, outputs). For a loss that is no cross-entropy, use audit.table()."
            )
        return math.log(max(2, self.classes))

    def columns(self) -> dict[str, Array]:
        """One array per quantity, NaN or 0 for samples that were never visited."""
        self._flush()
        rows, visits = self._rows, self._rows["visits"].astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = rows["loss"] / visits
        return {
            "mean": mean,
            "recent": np.where(visits > 0, rows["recent"].astype(np.float64), np.nan),
            "rival": rows["rival"].astype(np.float64),
            "spread": rows["spread"].astype(np.float64),
            "last": rows["last"].astype(np.float64),
            "difference": np.where(visits > 0, rows["difference"].astype(np.float64), np.nan),
            "visits": rows["visits"].copy(),
            "right": rows["right"].copy(),
            "learnt": rows["learnt"].copy(),
            "forgotten": rows["forgotten"].copy(),
            "guess": np.where(rows["votes"] > 0, rows["guess"].astype(np.int64), -1),
        }

    def table(self) -> dict[str, Array]:
        """All columns, with ``index`` and, where known, ``label``: ``pandas.DataFrame(audit.table())`` works."""
        given = {} if self.labels is None else {"label": self.labels.copy()}
        return {"index": np.arange(len(self)), **given, **self.columns()}

    # -- saving --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The whole state, as tensors and numbers. Labels are not part of it. Local: it exchanges nothing."""
        self._flush()
        return {
            "layout": LAYOUT,
            "rows": torch.from_numpy(self._rows.view(np.uint8).copy()),
            "touched": torch.from_numpy(self._touched.copy()),
            "classes": self.classes,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved audit of as many samples, or refuse it and change nothing."""
        state = state if isinstance(state, dict) else {}
        rows, touched, classes = (state.get(name) for name in ("rows", "touched", "classes"))
        fits = (
            isinstance(rows, Tensor)
            and isinstance(touched, Tensor)
            and not (rows.is_meta or touched.is_meta)
            and state.get("layout") == LAYOUT
            and rows.dtype == torch.uint8
            and rows.numel() == len(self) * ROW.itemsize
            and touched.dtype == torch.bool
            and touched.numel() == len(self)
            and (classes is None or (isinstance(classes, int) and classes > self._largest))
        )
        if not fits or not isinstance(rows, Tensor) or not isinstance(touched, Tensor):
            raise ValueError(
                f"This is not the state of an audit of {len(self)} samples. Load it with the data set and the "
                "version that it was saved with, or start a new audit."
            )
        new: dict[str, Any] = {
            "_rows": rows.cpu().numpy().copy().view(ROW),
            "_touched": touched.cpu().numpy().copy(),
            "classes": classes,
            "_waiting": [],
            "_suspects": [],
        }
        self.__dict__.update(new)


def _checked_labels(labels: Any, n: int) -> Array:
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.shape != (n,) or array.dtype.kind not in "iu":
        raise ValueError(
            f"labels has shape {array.shape} and type {array.dtype}, but one whole number per sample is needed: "
            f"shape ({n},). Leave it out for targets of another kind."
        )
    if n and (array.min() < 0 or array.max() >= np.iinfo(np.uint16).max):
        raise ValueError(f"labels range from {array.min()} to {array.max()}. Number the classes from 0.")
    return array.astype(np.int64)
