"""Audit: what a training says about its data, from the losses that it computes anyway."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ausam.audit.table import (
    COLUMNS,
    NEVER,
    Array,
    averages,
    empty_table,
    judge,
    keep_best,
    likely_class,
    visit,
)
from ausam.audit.verdict import Redundant, Verdict, redundant, verdict
from ausam.common.label_errors import LabelErrors
from ausam.common.margin import against_rival, class_labels, require_columns, usable
from ausam.common.ranks import gather, rank_and_world_size
from ausam.common.settings import POSITIVE, POSITIVE_COUNT, checked_value
from ausam.feedback import Feedback

WAITING = 64  # batches that wait on their device: one update of many rows costs little more than one of a few


class Audit:
    """What a training says about each sample: which labels look wrong, and which samples are redundant.

    It needs no pass of its own. Feed it the losses of every step, with any optimizer. It keeps 52 bytes per sample.
    A network learns right labels before wrong ones (Arpit et al. 2017), and may memorise these later. So the audit
    keeps the averaged losses of the time at which the two groups stood farthest apart.

    >>> import torch
    >>> from ausam.audit import Audit
    >>> x, y = torch.randn(64, 4), torch.randint(3, (64,))
    >>> model = torch.nn.Linear(4, 3)
    >>> opt = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> audit = Audit(len(x), labels=y)
    >>> z = model(x)
    >>> losses = torch.nn.functional.cross_entropy(z, y, reduction="none")
    >>> losses.mean().backward()
    >>> audit.update(torch.arange(64), losses, z)
    >>> audit.label_errors()
    LabelErrors(0 of 64 labels flagged, outcome='unseen')

    Arguments:
        n: number of samples in the data set, >= 1.
        labels: class of each sample, from 0, or None. With labels and outputs of shape (n, classes), the audit uses the
            margin of the label over the strongest other class. Otherwise it uses the losses alone.
        classes: number of classes. None reads it from the labels or the outputs. It sets the chance-level loss, log C.
        chance_loss: the chance-level loss, > 0. If None, log C. Give it if a sample has several labels or none: log 2
            for the mean of binary cross-entropies. Outputs are then not read as one class per sample.

    When not to use it: for losses that are no cross-entropy (regression), only ``table()`` has a meaning.
    """

    def __init__(
        self, n: int, labels: Any = None, *, classes: int | None = None, chance_loss: float | None = None
    ) -> None:
        n = checked_value("Audit", "n", n, POSITIVE_COUNT)
        self._table = empty_table(n)
        self._touched = np.zeros(n, bool)  # since the last exchange between processes
        self._waiting: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []  # index, loss, margin loss, rival
        self._fed = self._fed_by_all = 0  # samples since the losses were last judged; those that all processes know
        self._best = NEVER  # how far apart the groups stood at best
        self.labels = None if labels is None else class_labels("Audit", labels, n)
        self._targets = None if self.labels is None else torch.from_numpy(self.labels)
        self._largest = -1 if self.labels is None else int(self.labels.max())
        self._warned = False
        known = None if self.labels is None or classes is not None else self._largest + 1
        self.classes = known if classes is None else checked_value("Audit", "classes", classes, POSITIVE_COUNT)
        if self.classes is not None and self.classes <= self._largest:
            raise ValueError(f"labels go up to {self._largest}, but classes is {classes}. Number the classes from 0.")
        self._chance_loss = (
            None if chance_loss is None else checked_value("Audit", "chance_loss", chance_loss, POSITIVE, optional=True)
        )
        if self._chance_loss is not None and self.labels is not None:
            raise ValueError("labels= sets the chance-level loss, log C. Leave out chance_loss=, or labels=.")

    def __len__(self) -> int:
        return len(self._touched)

    def __repr__(self) -> str:
        self._flush()
        seen = int((self._table["visits"] > 0).sum())
        return f"Audit({len(self)} samples, {seen} visited, classes={self.classes})"

    # -- feeding -------------------------------------------------------------------------------------------------

    def update(self, feedback: Feedback | Tensor, losses: Tensor | None = None, outputs: Any = None) -> None:
        """Record one step: ``update(opt.backward(...))``, or ``update(index, losses, outputs)`` of any loop.

        The losses are those of the forward pass before the update, one per sample. A sample whose loss was not
        evaluated, or is not finite, is skipped. It waits for no device: it reads the values some steps later.
        """
        if isinstance(feedback, Feedback):
            index, losses, outputs = feedback.index, feedback.loss, feedback.outputs
        else:
            index = feedback
        if index is None:
            raise ValueError(
                "The feedback has no index, so it cannot be matched to samples. Pass index= to opt.backward. "
                "Indexed(dataset) adds it to every sample."
            )
        if not isinstance(index, Tensor) or not isinstance(losses, Tensor):
            raise TypeError(
                f"Audit.update got a {type(feedback).__name__} and a {type(losses).__name__}. Pass what opt.backward "
                "returned, or two tensors: update(index, losses)."
            )
        index, losses = index.detach(), losses.detach()
        if index.dim() != 1 or losses.shape != index.shape:
            raise ValueError(
                f"There are {index.numel()} indices and {losses.numel()} losses. Pass one index and one loss per "
                'sample (reduction="none").'
            )
        if index.device.type == "cpu":
            self._require_inside(index)
        self._waiting.append((index.clone(), losses.clone(), *self._margins(index, losses, outputs)))
        self._fed += len(index)
        ready = self._fed >= len(self) and rank_and_world_size()[1] == 1
        if ready or len(self._waiting) >= WAITING:
            self._flush()
        if ready:
            self._judge()

    def watch(self, criterion: Any) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """A loss function that also feeds the audit: ``criterion = audit.watch(torch.nn.CrossEntropyLoss())``.

        Call it with the index of the samples: ``criterion(outputs, labels, index)``. It returns what ``criterion``
        returned, and records in training only, where autograd is on. Once per step: for an optimizer that evaluates its
        loss several times a step, pass what ``opt.backward`` returns to :meth:`update`.

        Arguments:
            criterion: a module with a ``reduction``, such as ``torch.nn.CrossEntropyLoss()``.
        """
        if not isinstance(criterion, torch.nn.Module) or not hasattr(criterion, "reduction"):
            raise TypeError(
                f"Audit.watch got a {type(criterion).__name__}, which cannot return the loss of each sample. Pass a "
                "module with a reduction, such as torch.nn.CrossEntropyLoss(), or call audit.update(index, losses)."
            )
        single: Any = copy.copy(criterion)
        single.reduction = "none"

        def watched(outputs: Tensor, targets: Tensor, index: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                with torch.no_grad():
                    self.update(index, single(outputs, targets), outputs)
            loss: Tensor = criterion(outputs, targets)
            return loss

        return watched

    def _require_inside(self, index: Tensor) -> None:
        outside = index[(index < 0) | (index >= len(self))]
        if len(outside):
            raise ValueError(
                f"The feedback has index {int(outside[0])}, but the audit is of {len(self)} samples. Build it with the "
                "length of the data set that Indexed numbers."
            )

    def _margins(self, index: Tensor, losses: Tensor, outputs: Any) -> tuple[Tensor, Tensor]:
        """The margin loss of each sample and its strongest other class. Without outputs the loss, and -1."""
        if self._chance_loss is not None or not usable(outputs, len(index)):
            if outputs is not None and self._chance_loss is None:
                self._warn_of_outputs(outputs)
            return losses.clone(), torch.full_like(index, -1)
        outputs = outputs.detach()
        columns = int(outputs.shape[1])
        if self._targets is None:
            self.classes = self.classes or columns
            return losses.clone(), outputs.argmax(1)
        require_columns(self._largest, columns)
        self._targets = self._targets.to(index.device)
        labels = self._targets[index.clamp(0, len(self) - 1)].to(outputs.device)  # one outside is found in _flush
        margin, rival = against_rival(outputs, labels)
        # the loss says which samples were evaluated
        return torch.where(losses.isfinite(), margin.to(losses), torch.nan), rival

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
            "pass audit.update(index, losses, scores). This warning appears once.",
            stacklevel=4,
        )

    def _flush(self) -> None:
        """Enter the batches that wait into the table."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        index, *values = (torch.cat([part.to("cpu") for part in parts]) for parts in zip(*waiting, strict=True))
        inside = (index >= 0) & (index < len(self))
        loss, margin, rival = (value[inside] for value in values)
        at = index[inside].to(torch.int64).numpy()
        visit(self._table, at, loss.float().numpy(), margin.float().numpy(), rival.numpy())
        self._touched[at] = True
        self._require_inside(index)

    def _judge(self) -> None:
        """Keep the averages of now if the groups stand farther apart than before."""
        self._best = keep_best(self._table, self._best)
        self._fed = self._fed_by_all = 0

    def exchange(self) -> None:
        """Share the rows of all processes at the end of an epoch, in which each sample is seen by one. Collective.

        Nothing happens in a single process, where the losses are evaluated whenever as many samples were fed as the
        data set has. With several processes they are evaluated here.
        """
        self._flush()
        if rank_and_world_size()[1] == 1:
            return
        mine = torch.from_numpy(np.flatnonzero(self._touched))
        lengths = [int(t) for t in torch.cat(gather(torch.tensor([len(mine)])))]
        indices = gather(mine, lengths)
        for column in self._table.values():
            parts = gather(torch.from_numpy(column)[mine], lengths)
            for index, part in zip(indices, parts, strict=True):
                column[index.numpy()] = part.numpy()
        counts = torch.stack(gather(torch.tensor([self._fed - self._fed_by_all, self.classes or 0])))
        self.classes = int(counts[:, 1].max()) or None
        self._fed = self._fed_by_all = self._fed_by_all + int(counts[:, 0].sum())
        self._touched[:] = False
        if self._fed >= len(self):
            self._judge()

    # -- what the data says --------------------------------------------------------------------------------------

    def label_errors(self) -> LabelErrors:
        """All samples, ranked by how wrong their labels look, and those that are flagged."""
        return judge(self._latest(), self.labels)

    def redundant(self) -> Redundant:
        """The samples that were learned early and never forgotten, and the ``alpha`` that their share suggests."""
        return redundant(self.table())

    def verdict(self) -> Verdict:
        """What to do, in words: underfitting first, then wrong labels, then what selection could save."""
        return verdict(self.table(), self.label_errors(), self.redundant(), self.chance_loss())

    def chance_loss(self) -> float:
        """The chance-level loss: as given, or log C."""
        if self._chance_loss is not None:
            return float(self._chance_loss)
        if self.classes is None:
            raise ValueError(
                "The number of classes is not known. Pass labels=, classes= or chance_loss= to Audit, or let loss_fn "
                "return (losses, outputs). For a loss that is no cross-entropy, use audit.table()."
            )
        return math.log(max(2, self.classes))

    def _latest(self) -> dict[str, Array]:
        """The table, evaluated now if anything was fed since the last evaluation. Reading changes nothing."""
        self._flush()
        if not self._fed:
            return self._table
        table = self._table | {name: self._table[name].copy() for name in ("best", "likely")}
        keep_best(table, self._best)
        return table

    def table(self) -> dict[str, Array]:
        """What is known of every sample, one array per column: ``pandas.DataFrame(audit.table())`` works.

        ``index`` is that of the sample, and ``label`` its label, where known. A sample that was never visited has NaN
        for its losses.
        ``mean``, ``spread`` and ``last`` are the mean, the standard deviation and the latest value of the loss over all
        visits. ``margin`` is the average of the margin loss over the later visits. ``best`` is the same when the groups
        stood farthest apart, and NaN if they never did. ``visits`` counts. ``learned`` is the visit since which the
        network has always agreed with the label, and 0 if it does not now. ``forgotten`` counts how often it stopped
        agreeing. ``likely`` is the class that it preferred to the label, or -1.
        """
        table = self._latest()
        visits = table["visits"]
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = table["sum"].astype(np.float64) / visits
            variance = table["square"].astype(np.float64) / visits - mean**2
        return {
            "index": np.arange(len(self)),
            **({} if self.labels is None else {"label": self.labels.copy()}),
            "mean": mean,
            "spread": np.sqrt(np.maximum(0, variance)),
            "last": table["last"].astype(np.float64),
            "margin": averages(table),
            "best": table["best"].astype(np.float64),
            **{name: table[name].astype(np.int64) for name in ("visits", "learned", "forgotten")},
            "likely": likely_class(table).astype(np.int64),
        }

    # -- saving --------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The whole state, as tensors and numbers. Labels are not part of it. Local: it exchanges nothing."""
        self._flush()
        return {
            **{name: torch.from_numpy(column.copy()) for name, column in self._table.items()},
            "touched": torch.from_numpy(self._touched.copy()),
            "fed": (self._fed, self._fed_by_all),
            "best_distance": float(self._best),  # a number of NumPy's would not load with weights_only
            "classes": self.classes,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved audit. One of another number of samples raises an error and changes nothing."""
        classes = state.get("classes")
        fits = all(getattr(state.get(name), "shape", None) == (len(self),) for name in (*COLUMNS, "touched"))
        if not fits or (classes is not None and classes <= self._largest):
            raise ValueError(
                f"This is not the state of an audit of {len(self)} samples. Load it with the data set and the "
                "version that it was saved with, or start a new audit."
            )
        self._touched = state["touched"].cpu().numpy().copy()
        self._table, self._waiting = {name: state[name].cpu().numpy().copy() for name in COLUMNS}, []
        self._fed, self._fed_by_all = state["fed"]
        self._best, self.classes = state["best_distance"], classes
