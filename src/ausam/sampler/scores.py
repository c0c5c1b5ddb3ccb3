"""The scores that policies rank by: fed from any device, and shared among processes."""

from __future__ import annotations

import zlib
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ausam.common.ranks import gather, rank_and_world_size
from ausam.common.tensors import CPU
from ausam.sampler.errors import dataset_index

# Number of updates that stay on an accelerator before they are read back, so that not every step synchronises.
WAITING = 64

# Samples read at a time, and recorded at a time after an exchange, to save memory.
READ, CHUNK = 1 << 16, 1 << 20

Entry = tuple[Tensor, Tensor]  # index and value

EQUAL_IN_ALL = ("epoch", "number of samples used before", "seed", "checksum of the scores")


class Scores:
    """The scores of each sample: 12 bytes per sample, 16 with ``spread``.

    Attributes:
        sum: sum of the values seen, where the past is multiplied by ``decay`` at each visit. With ``forgetting`` (the
            value is 1 for a misclassified sample, otherwise 0): how often 1 followed 0, infinite until the first 0.
        count: number of visits. With ``progress``, not counting the first.
        last: the latest value. NaN before the first.
        spread: moving average of the squared distance of a value from the score before it. None unless requested.

    Arguments:
        n: number of samples.
        decay: weight of a sample's past at each visit, in [0, 1]. 1 for the mean of all visits.
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
        self._known = self._known or bool(self.count.any())
        return self._known

    @property
    def mean(self) -> Tensor:
        """The score of every sample: the mean of its values (the paper's ADLP), or NaN if it has none."""
        return self.of(torch.arange(len(self), device=CPU))

    def of(self, index: Tensor) -> Tensor:
        """The mean of the values of these samples. With ``decay`` d < 1 their exponential moving average.

        d = 1: ``sum / count``.  d < 1: ``(1 - d) sum / (1 - d^count)``, so the first visits are not biased towards 0;
        d = 0 is the latest value. With ``forgetting``: the number of forgetting events.
        """
        if index.numel() > READ:
            scores = torch.empty(index.shape, dtype=torch.float32, device=CPU)
            for part, into in zip(torch.split(index.flatten(), READ), torch.split(scores.view(-1), READ), strict=True):
                into.copy_(self.of(part))
            return scores
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
        return self.last.nansum(dtype=torch.float64) / (len(self) - self.last.isnan().count_nonzero())

    def record(self, index: Tensor, value: Tensor) -> None:
        """Add one new value for each of these samples, ignoring values that are not finite."""
        self._record(*self.validate(index, value))

    def set(self, index: Tensor, values: Tensor) -> None:
        """Set the scores of these samples by hand, as if each had been visited once with this value.

        ``index`` has each sample at most once, and ``values`` one finite number for each. Lists and arrays will do.
        With several processes, each may set the samples that it likes. All processes have the values when the next
        pass begins, after the losses of this one. Where two set the same sample, that of the higher rank counts.
        """
        self._set(*self._valid_setting(index, values))

    def validate(self, index: Any, value: Tensor, *, repeats: bool = False) -> Entry:
        """Index and value on the CPU in the table's types. An error unless there is one value per sample.

        ``repeats``: a sample may occur several times.
        """
        index, value = dataset_index(index, len(self)), value.detach().to(CPU, torch.float32)
        if index.shape != value.shape:
            raise ValueError(f"There are {len(index)} indices and {value.numel()} values. Pass one value per index.")
        if not repeats and len(torch.unique(index)) < len(index):
            once, visits = torch.unique(index, return_counts=True)
            raise ValueError(
                f"index {int(once[visits > 1][0])} occurs twice in one batch, but a sample has one score. "
                "Use each sample at most once per batch, and update once per step. The index is the last value of a "
                "batch of Indexed(dataset): for x, y, index in loader."
            )
        return index, value

    def _valid_setting(self, index: Any, values: Any) -> Entry:
        index, values = self.validate(index, torch.as_tensor(values))
        if not values.isfinite().all():
            bad = int(index[~values.isfinite()][0])
            raise ValueError(f"The value of sample {bad} is not finite. Set finite scores only.")
        return index, values.clone()

    def _record(self, index: Tensor, value: Tensor) -> None:
        good = value.isfinite()
        index, value = index[good], value[good]
        last = self.last[index]
        self.last[index] = value
        if self.progress:
            again = ~last.isnan()  # the first visit has nothing before it
            index, value = index[again], (last - value)[again]
        before = self.sum[index]
        if self.spread is not None:
            # The number of forgetting events does not estimate the next value; the value of the last visit does.
            distance = (value - (last if self.forgetting else self.of(index))).square()
            average = self.decay * self.spread[index] + (1.0 - self.decay) * distance
            # NaN at the first visit, which has nothing before it
            self.spread[index] = average.nan_to_num_(0.0)
        if self.forgetting:
            total = torch.where(before.isinf() & (value == 0), 0.0, before + (value > last))
        else:
            total = self.decay * before + value
        self.sum[index] = total
        self.count[index] += 1

    def _set(self, index: Tensor, value: Tensor) -> None:
        self.sum[index] = value
        self.count[index] = 1
        if not self.progress:  # its latest value is a loss
            self.last[index] = value
        if self.spread is not None:
            self.spread[index] = 0.0

    def state_dict(self) -> dict[str, Any]:
        """The whole state, as tensors and numbers."""
        spread = {} if self.spread is None else {"spread": self.spread.clone()}
        sum_, count = (c.clone(memory_format=torch.contiguous_format) for c in (self.sum, self.count))
        columns = {"sum": sum_, "count": count, "last": self.last.clone()}
        return {"decay": self.decay, "fit": self.fit, "fit_epoch": self.fit_epoch, **columns, **spread}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved table. One of another size or decay raises an error and changes nothing."""
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
        for mine, saved in ((self.sum, "sum"), (self.count, "count"), (self.last, "last"), (self.spread, "spread")):
            if mine is not None:
                mine.copy_(state[saved])
        self.fit, self.fit_epoch, self._known = tuple(state["fit"]), state["fit_epoch"], False


class SharedScores(Scores):
    """Records at once in a single process. With several, keeps new values until all processes exchange them.

    Arguments:
        n: number of samples.
        rank: rank of this process, as in the sampler.
        world_size: number of processes, as in the sampler.
        repeats: whether a sample may occur several times in a batch.
        options: as in :class:`Scores`.
    """

    def __init__(self, n: int, rank: int | None, world_size: int | None, *, repeats: bool = False, **options: Any):
        super().__init__(n, **options)
        self._given = rank, world_size
        self._repeats = repeats
        self._waiting: deque[Entry] = deque()  # on an accelerator, not validated
        self._unshared: list[Entry] = []  # recorded by the next exchange
        self._unshared_settings: list[Entry] = []

    @property
    def rank_and_world_size(self) -> tuple[int, int]:
        """Current rank and number of processes: as given, else torch.distributed's."""
        return rank_and_world_size(*self._given)

    @property
    def has_unshared(self) -> bool:
        """Whether this process has values that the others do not have yet."""
        self.flush()
        return bool(self._unshared or self._unshared_settings)

    def add(self, index: Tensor, value: Tensor) -> None:
        """Take the values of one batch: now, or together with others if reading them would wait for a device."""
        self._waiting.append((index, value))
        if len(self._waiting) >= WAITING or not on_accelerator(index, value):
            self.flush()

    def set(self, index: Tensor, values: Tensor) -> None:
        """As :meth:`Scores.set`. With several processes, at the next exchange."""
        if self.rank_and_world_size[1] == 1:
            self.flush()
            super().set(index, values)
        else:
            self._unshared_settings.append(self._valid_setting(index, values))

    def flush(self) -> None:
        """Record the values that wait. With several processes, get them ready for the next exchange."""
        while self._waiting:
            entry = self.validate(*self._waiting.popleft(), repeats=self._repeats)
            if self.rank_and_world_size[1] > 1:
                self._unshared.append(entry)
                continue
            for visit in split_repeats(*entry) if self._repeats else [entry]:
                self._record(*visit)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As :meth:`Scores.load_state_dict`. Values that were not recorded yet are discarded."""
        super().load_state_dict(state)
        for new in (self._waiting, self._unshared, self._unshared_settings):
            new.clear()

    def exchange(self, epoch: int, done: int, seed: int) -> None:
        """Record the new values of all processes in the same order, so that the tables stay equal bit for bit.

        The epoch, the samples used before in a resumed pass, the seed and the table must be the same in all processes.
        Collective.
        """
        self.flush()
        world, there = self.rank_and_world_size[1], rank_and_world_size()[1]
        if world == 1 or (there == 1 and not self.has_unshared):
            return
        if there != world:
            raise RuntimeError(
                f"The scores of {world} samplers must be exchanged, but torch.distributed has {there} processes. Call "
                "torch.distributed.init_process_group(...) before the first pass, and leave out rank and world_size."
            )
        new, settings = _joined(self._unshared), _joined(self._unshared_settings)
        head = torch.tensor([len(new[0]), len(settings[0]), epoch, done, seed % (1 << 63), self._digest()], device=CPU)
        by_rank = torch.stack(gather(head))
        for what, numbers in zip(EQUAL_IN_ALL, by_rank[:, 2:].T.tolist(), strict=True):
            if len(set(numbers)) > 1:
                raise RuntimeError(
                    f"The {what} differs between the processes: {numbers} by rank. Give the same seed in all, begin "
                    "every pass in all, and load one saved state in all."
                )
        lengths = by_rank[:, :2].T.tolist()
        values, set_values = (_of_all(own, n) for own, n in zip((new, settings), lengths, strict=True))
        self._unshared, self._unshared_settings = [], []
        for visit in split_repeats(*values):
            self._record(*visit)
        for setting in split_repeats(*set_values):
            self._set(*setting)

    def _digest(self) -> int:
        """A checksum of the table."""
        columns = (self._pairs, self.last) if self.spread is None else (self._pairs, self.last, self.spread)
        checksum = 0
        for column in columns:
            checksum = zlib.crc32(column.numpy().data, checksum)
        return checksum


def on_accelerator(*tensors: Tensor) -> bool:
    """Whether reading one of the tensors would wait for a device."""
    return any(t.device.type != "cpu" for t in tensors)


def split_repeats(index: Tensor, value: Tensor) -> list[Entry]:
    """Values of samples that may occur several times: the first value of each, then the second, and so on."""
    seen = torch.zeros(int(index.max()) + 1 if len(index) else 0, dtype=torch.bool, device=CPU)
    seen[index] = True
    if int(seen.sum()) == len(index):  # the usual case, ten times as fast as sorting
        return list(zip(torch.split(index, CHUNK), torch.split(value, CHUNK), strict=True))
    order = index.argsort(stable=True)
    ordered = index[order]
    visit = torch.arange(len(order), device=CPU) - torch.searchsorted(ordered, ordered)
    visits = [order[visit == v] for v in range(int(visit.max()) + 1 if len(visit) else 0)]
    return [(index[now], value[now]) for now in visits]


def _joined(entries: list[Entry]) -> Entry:
    index = torch.cat([torch.empty(0, dtype=torch.int64, device=CPU), *(i for i, _ in entries)])
    return index, torch.cat([torch.empty(0, dtype=torch.float32, device=CPU), *(v for _, v in entries)])


def _of_all(entry: Entry, lengths: list[int]) -> Entry:
    """The entries of all processes, by rank and then by time."""
    index, value = (torch.cat(gather(column, lengths)) for column in entry)
    return index, value
