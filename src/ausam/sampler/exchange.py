"""The scores of a sampler: fed from any device, and shared among processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ausam.common.atomic import Action, commit
from ausam.common.ranks import device, gather, rank_and_world_size
from ausam.common.tensors import CPU
from ausam.sampler.scores import Scores

# Number of updates that stay on an accelerator before they are read back, so that not every step synchronises.
WAITING = 64

# A table with an entry for every sample is exchanged if at least this fraction of them has a new value.
DENSE = 0.25

# Samples recorded at a time after an exchange, to save memory.
CHUNK = 1 << 20

# The bits of NaN, which no recorded value has: combined with them, the bits of a value are never 0.
NAN_BITS = 0x7FC0_0000

Entry = tuple[Tensor, Tensor]  # index and value


class SharedScores(Scores):
    """Records at once in a single process; with several, keeps new values until all processes exchange them.

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
        self._waiting: deque[Entry] = deque()  # not validated, on their own device
        self._validated: deque[Entry] = deque()  # on the CPU, each sample at most once
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

    def add(self, index: Tensor, value: Tensor, also: Sequence[Action] = ()) -> None:
        """Take the values of one batch, and make other changes with it: all or nothing if a signal arrives."""
        if on_accelerator(index, value):
            commit([(self._waiting.append, (index, value)), *also])
            if len(self._waiting) >= WAITING:
                self.flush()
        else:
            self._read_back()
            commit([(self._validated.extend, self._entries(index, value)), *also])
            self.flush()

    def set(self, index: Tensor, values: Tensor) -> None:
        """As :meth:`Scores.set`; with several processes, at the next exchange."""
        if self.rank_and_world_size[1] == 1:
            self.flush()
            super().set(index, values)
        else:
            commit([(self._unshared_settings.append, self._valid_setting(index, values))])

    def flush(self) -> None:
        """Record the values that wait; with several processes, get them ready for the next exchange."""
        self._read_back()
        alone = self.rank_and_world_size[1] == 1
        while self._validated:
            entry = self._validated[0]
            changes = self._recording(*entry) if alone else [(self._unshared.append, entry)]
            commit([*changes, (self._validated.popleft,)])

    def _read_back(self) -> None:
        while self._waiting:
            try:
                entries = self._entries(*self._waiting[0])
            except ValueError:
                self._waiting.popleft()
                raise
            commit([(self._validated.extend, entries), (self._waiting.popleft,)])

    def _entries(self, index: Tensor, value: Tensor) -> list[Entry]:
        entry = self.validate(index, value, repeats=self._repeats)
        return split_repeats(*entry) if self._repeats else [entry]

    def loading(self, state: dict[str, Any]) -> list[Action]:
        """As :meth:`Scores.loading`; values that were not recorded yet are discarded."""
        new = (self._waiting, self._validated, self._unshared, self._unshared_settings)
        return [*super().loading(state), *((values.clear,) for values in new)]

    def exchange(self, position: tuple[int, int]) -> None:
        """Record the new values of all processes in the same order, so that the tables stay equal bit for bit.

        ``position`` (epoch, batches left of a resumed pass) must be the same in all processes. Collective.
        """
        if self.rank_and_world_size[1] == 1:
            self.flush()
            return
        if not self._has_group():
            return
        index, value = _joined(self._unshared)
        finite = value.isfinite()
        index, value = index[finite], value[finite]
        settings = _joined(self._unshared_settings)
        heads = gather(torch.tensor([len(index), len(settings[0]), *position], device=CPU))
        if any(not torch.equal(h[2:], heads[0][2:]) for h in heads):
            raise RuntimeError(
                f"The processes are at different positions: (epoch, batches left) by rank is "
                f"{[h[2:].tolist() for h in heads]}. Begin every pass in every process, and load the same state in all."
            )
        lengths, set_lengths = ([int(h[k]) for h in heads] for k in (0, 1))
        if not (sum(lengths) >= DENSE * len(self) and self._exchange_table(index, value, sum(lengths))):
            self._exchange_entries(index, value, lengths)
        if sum(set_lengths):
            commit(self._setting(*_unpack(torch.cat(gather(_pack(*settings), set_lengths)))))
        commit([(self._unshared.clear,), (self._unshared_settings.clear,)])

    def _has_group(self) -> bool:
        """Whether there is a process group to exchange with; without one there must be nothing to exchange."""
        world = self.rank_and_world_size[1]
        if not (dist.is_available() and dist.is_initialized()):
            if not self.has_unshared:
                return False
            raise RuntimeError(
                f"The scores of {world} samplers must be exchanged, but torch.distributed has no process group. "
                "Call torch.distributed.init_process_group(...) before the first pass."
            )
        if dist.get_world_size() != world:
            raise RuntimeError(
                f"world_size is {world}, but the process group that exchanges the scores has {dist.get_world_size()} "
                "processes. Leave out rank and world_size to use torch.distributed's."
            )
        self.flush()
        return True

    def _exchange_table(self, index: Tensor, value: Tensor, total: int) -> bool:
        """Exchange one table of all samples: fast if most have a new value. False if a sample has several values."""
        bits = torch.zeros(len(self), dtype=torch.int32, device=CPU)
        bits[index] = value.view(torch.int32) ^ NAN_BITS
        bits = bits.to(device())
        dist.all_reduce(bits)  # where one process has a value, the others add 0
        bits = bits.cpu()
        visited = bits.nonzero()[:, 0]
        if len(visited) != total:  # two values of one sample make one entry
            return False
        for samples in torch.split(visited, CHUNK):
            commit(self._recording(samples, (bits[samples] ^ NAN_BITS).view(torch.float32)))
        return True

    def _exchange_entries(self, index: Tensor, value: Tensor, lengths: list[int]) -> None:
        """Exchange the new values alone, by rank and then by time: they may be of the same samples."""
        for entry in split_repeats(*_unpack(torch.cat(gather(_pack(index, value), lengths)))):
            commit(self._recording(*entry))


def on_accelerator(*tensors: Tensor) -> bool:
    """Whether reading one of the tensors would wait for a device."""
    return any(t.device.type != "cpu" for t in tensors)


def split_repeats(index: Tensor, value: Tensor) -> list[Entry]:
    """Values of samples that may occur several times: the first value of each, then the second, and so on."""
    order = index.argsort(stable=True)
    ordered = index[order]
    visit = torch.arange(len(order), device=CPU) - torch.searchsorted(ordered, ordered)
    visits = [order[visit == v] for v in range(int(visit.max()) + 1 if len(visit) else 0)]
    return [(index[now], value[now]) for now in visits]


def _joined(entries: list[Entry]) -> Entry:
    index = torch.cat([torch.empty(0, dtype=torch.int64, device=CPU), *(i for i, _ in entries)])
    return index, torch.cat([torch.empty(0, dtype=torch.float32, device=CPU), *(v for _, v in entries)])


def _pack(index: Tensor, value: Tensor) -> Tensor:
    """Index and value in one integer of 64 bits, because a float32 cannot represent every index."""
    return (index << 32) | (value.view(torch.int32).long() & 0xFFFF_FFFF)


def _unpack(packed: Tensor) -> Entry:
    return packed >> 32, packed.to(torch.int32).view(torch.float32)
