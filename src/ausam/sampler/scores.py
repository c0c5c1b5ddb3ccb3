"""The scores that policies rank by: three numbers per sample, or four if the policy needs the spread."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ausam.common.atomic import Action, commit
from ausam.common.tensors import CPU
from ausam.sampler.state import anything, column, require, weights, whole


class Scores:
    """The scores of each sample: 12 bytes per sample, 16 with ``spread``.

    Attributes:
        sum: sum of the values seen, where the past is multiplied by ``decay`` at each visit. With ``forgetting`` (the
            value is 1 for a misclassified sample, otherwise 0): how often 1 followed 0, infinite until the first 0.
        count: number of visits; with ``progress``, not counting the first.
        last: the latest value; NaN before the first.
        spread: moving average of the squared distance of a value from the score before it; None unless requested.

    Arguments:
        n: number of samples.
        decay: weight of a sample's past at each visit, in [0, 1]; 1 for the mean of all visits.
        forgetting: count forgetting events instead of averaging.
        progress: average the decrease of the value since the previous visit, instead of the value.
        spread: keep the ``spread`` column.
    """

    def __init__(
        self, n: int, decay: float = 1.0, *, forgetting: bool = False, progress: bool = False, spread: bool = False
    ) -> None:
        self.decay = decay
        self.forgetting = forgetting
        self.progress = progress
        # Sum and count are adjacent because planning reads both at random positions: one memory access per sample
        # instead of two. The table is allocated by numpy, which requests huge pages and so makes access faster.
        self._pairs = torch.from_numpy(np.zeros((n, 2), dtype=np.float32))
        if forgetting:
            self.sum.fill_(torch.inf)
        self.last = torch.full((n,), torch.nan, dtype=torch.float32, device=CPU)
        self.spread = torch.zeros(n, dtype=torch.float32, device=CPU) if spread else None
        self.fit: tuple[float, ...] = ()  # what the policy derived from all scores when the epoch began
        self.fit_epoch = -1
        self._known = False

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def sum(self) -> Tensor:
        """The column of sums."""
        return self._pairs[:, 0]

    @property
    def count(self) -> Tensor:
        """The column of counts."""
        return self._pairs.view(torch.int32)[:, 1]

    @property
    def known(self) -> bool:
        """Whether any sample has a value (cached once true)."""
        self._known = self._known or any(bool(some.any()) for some in torch.split(self.count, 1 << 20))
        return self._known

    @property
    def mean(self) -> Tensor:
        """The score of every sample: the mean of its values (the paper's ADLP), or NaN if it has none."""
        return self.of(torch.arange(len(self), device=CPU))

    def of(self, index: Tensor) -> Tensor:
        """The mean of the values of these samples; with ``decay`` d < 1 their exponential moving average.

        d = 1: ``sum / count``.  d < 1: ``(1 - d) sum / (1 - d^count)``, so the first visits are not biased towards 0;
        d = 0 is the latest value. With ``forgetting``: the number of forgetting events.
        """
        # index_select, because indexing takes three times as long; eight bytes at a time, to get both columns.
        rows = self._pairs.view(torch.int64)[:, 0].index_select(0, index.flatten()).view(*index.shape, 1)
        total, count = rows.view(torch.float32)[..., 0], rows.view(torch.int32)[..., 1]
        if self.forgetting:
            return torch.where(count > 0, total, torch.nan)
        if self.decay == 1.0:
            return total / count
        return (1.0 - self.decay) * total / (1.0 - self.decay ** count.float())

    def mean_of_latest(self) -> Tensor:
        """The mean of all samples' latest values."""
        # In float64: the float32 mean of equal values can come out above them.
        return self.last.double().nanmean()

    def set(self, index: Tensor, values: Tensor) -> None:
        """Set the scores of these samples by hand, as if each had been visited once with this value.

        ``index`` has each sample at most once, and ``values`` one finite number for each; lists and arrays will do.
        With several processes, each may set the samples that it likes. All processes have the values when the next
        pass begins, after the losses of this one; where two set the same sample, that of the higher rank counts.
        """
        commit(self._setting(*self._valid_setting(index, values)))

    def validate(self, index: Tensor, value: Tensor, *, repeats: bool = False) -> tuple[Tensor, Tensor]:
        """Index and value on the CPU in the table's types; refused unless there is one value per sample.

        ``repeats``: a sample may occur several times.
        """
        index = index.to("cpu", torch.int64)
        value = value.detach().to("cpu", self.sum.dtype)
        if index.shape != value.shape or index.dim() != 1:
            raise ValueError(f"There are {index.numel()} indices and {value.numel()} values. Pass one value per index.")
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= len(self)):
            bad = index[(index < 0) | (index >= len(self))][0]
            raise ValueError(
                f"index {int(bad)} is outside the dataset of {len(self)} samples. Pass the index of Indexed(dataset), "
                "for the same dataset that the sampler was built with."
            )
        if not repeats:
            _refuse_repeats(index)
        return index, value

    def record(self, index: Tensor, value: Tensor) -> None:
        """Add one new value for each of these samples, ignoring values that are not finite."""
        commit(self._recording(*self.validate(index, value)))

    def _recording(self, index: Tensor, value: Tensor) -> list[Action]:
        """The changes that add these values; nothing is changed yet."""
        good = value.isfinite()
        index, value = index[good], value[good]
        last = self.last[index]
        changes: list[Action] = [_assignment(self.last, index, value)]
        if self.progress:
            again = ~last.isnan()  # the first visit has nothing before it
            index, value = index[again], (last - value)[again]
        before = self.sum[index]
        if self.spread is not None:
            # The number of forgetting events does not estimate the next value; the value of the last visit does.
            distance = (value - (last if self.forgetting else self.of(index))).square()
            average = self.decay * self.spread[index] + (1.0 - self.decay) * distance
            # NaN at the first visit, which has nothing before it
            changes.append(_assignment(self.spread, index, average.nan_to_num_(0.0)))
        if self.forgetting:
            total = torch.where(before.isinf() & (value == 0), 0.0, before + (value > last))
        else:
            total = self.decay * before + value
        return [*changes, self._rows_assignment(index, total, self.count[index] + 1)]

    def _setting(self, index: Tensor, value: Tensor) -> list[Action]:
        """The changes that set these values; nothing is changed yet."""
        changes = [self._rows_assignment(index, value, torch.ones(len(index), dtype=torch.int32, device=CPU))]
        if not self.progress:  # its latest value is a loss
            changes.append(_assignment(self.last, index, value))
        if self.spread is not None:
            changes.append(_assignment(self.spread, index, torch.zeros_like(value)))
        return changes

    def _valid_setting(self, index: Any, values: Any) -> tuple[Tensor, Tensor]:
        index, values = self.validate(torch.as_tensor(index), torch.as_tensor(values))
        if not values.isfinite().all():
            bad = int(index[~values.isfinite()][0])
            raise ValueError(f"The value of sample {bad} is not finite. Set finite scores only.")
        return index, values.clone()

    def _rows_assignment(self, index: Tensor, total: Tensor, count: Tensor) -> Action:
        rows = np.empty((len(index), 2), dtype=np.float32)
        rows[:, 0] = total.numpy()
        rows.view(np.int32)[:, 1] = count.numpy()
        table = self._pairs.numpy().view(np.int64)[:, 0]
        return operator.setitem, table, index.numpy(), rows.view(np.int64)[:, 0]

    def state_dict(self) -> dict[str, Any]:
        """The whole state, as tensors and numbers."""
        spread = {} if self.spread is None else {"spread": self.spread.clone()}
        sum_, count = (c.clone(memory_format=torch.contiguous_format) for c in (self.sum, self.count))
        columns = {"sum": sum_, "count": count, "last": self.last.clone()}
        return {"decay": self.decay, "fit": self.fit, "fit_epoch": self.fit_epoch, **columns, **spread}

    def check_state(self, state: dict[str, Any]) -> None:
        """Refuse a saved table that is damaged, or has a different size, decay or number of columns."""
        require(state, "scores", {"decay": anything, "sum": lambda value: isinstance(value, Tensor)})
        if len(state["sum"]) != len(self):
            raise ValueError(
                f"The saved scores are for {len(state['sum'])} samples, but the dataset has {len(self)}. "
                "Resume with the dataset of the saved run, or start again without its sampler state."
            )
        if state["decay"] != self.decay:
            raise ValueError(
                f"The saved scores were averaged with decay {state['decay']}, but the policy uses {self.decay}. "
                "Resume with the policy of the saved run."
            )
        values = column(len(self), torch.float32)
        rules = {
            "sum": lambda x: values(x) and bool((x.isfinite() | (x.isposinf() & self.forgetting)).all()),
            "count": column(len(self), torch.int32, least=0),
            "last": lambda x: values(x) and not x.isinf().any(),
            "fit": lambda x: isinstance(x, (tuple, list)) and all(isinstance(number, (int, float)) for number in x),
            "fit_epoch": whole(-1),
        }
        require(state, "scores", rules if self.spread is None else {**rules, "spread": weights(len(self))})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved table, or refuse it and change nothing."""
        commit(self.loading(state))

    def loading(self, state: dict[str, Any]) -> list[Action]:
        """The changes that load a saved table; refused if it does not fit. Nothing is changed yet."""
        self.check_state(state)
        pairs = torch.from_numpy(np.empty((len(self), 2), dtype=np.float32))
        pairs[:, 0].copy_(state["sum"])
        pairs.view(torch.int32)[:, 1].copy_(state["count"])
        spread = None if self.spread is None else state["spread"].to(CPU, copy=True)
        columns: dict[str, Any] = {"_pairs": pairs, "last": state["last"].to(CPU, copy=True), "spread": spread}
        columns |= {"_known": False, "fit": tuple(state["fit"]), "fit_epoch": state["fit_epoch"]}
        return [(setattr, self, name, column) for name, column in columns.items()]


def _refuse_repeats(index: Tensor) -> None:
    once, visits = torch.unique(index, return_counts=True)
    if len(once) != len(index):
        raise ValueError(
            f"index {int(once[visits > 1][0])} occurs twice in one batch, but a sample has one score. "
            "Use each sample at most once per batch, or update once per step."
        )


def _assignment(column: Tensor, index: Tensor, value: Tensor) -> Action:
    # By numpy: torch's own assignment may run Python code (torch.set_default_device), where a signal can arrive.
    return operator.setitem, column.numpy(), index.numpy(), value.numpy()
