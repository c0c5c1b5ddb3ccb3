"""The transfer of feedback into the scores: from an accelerator, and between processes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ausam.common.ranks import gather, rank_and_world_size
from ausam.common.settings import COUNT, POSITIVE_COUNT, checked_value
from ausam.common.tensors import CPU
from ausam.sampler.scores import Scores

# Number of updates that stay on an accelerator before they are read back, so that not every step synchronises.
WAITING = 64

OWNER = "SelectiveBatchSampler"


class Exchange:
    """Records at once in a single process; with several, keeps new values until all processes exchange them.

    Arguments:
        scores: the table to fill.
        rank: rank of this process, as in the sampler.
        world_size: number of processes, as in the sampler.
    """

    def __init__(self, scores: Scores, rank: int | None, world_size: int | None) -> None:
        if (rank is None) != (world_size is None):
            raise ValueError(
                f"rank is {rank} and world_size is {world_size}. Pass both, or neither to use torch.distributed's."
            )
        if rank is not None and world_size is not None:
            rank = checked_value(OWNER, "rank", rank, COUNT, optional=True)
            world_size = checked_value(OWNER, "world_size", world_size, POSITIVE_COUNT, optional=True)
            if rank >= world_size:
                raise ValueError(
                    f"rank is {rank}, but with world_size {world_size} it must be from 0 to {world_size - 1}."
                )
        self._scores = scores
        self._given = rank, world_size
        self._waiting: list[tuple[Tensor, Tensor]] = []  # index and value, on their own device
        self._new: list[tuple[Tensor, Tensor]] = []  # since the last exchange, on the CPU

    @property
    def place(self) -> tuple[int, int]:
        """Current rank and number of processes."""
        return rank_and_world_size(*self._given)

    @property
    def stale(self) -> bool:
        """Whether this process has values that it has not shared yet."""
        self.flush()
        return bool(self._new)

    def add(self, index: Tensor, value: Tensor) -> None:
        """Take the values of one batch."""
        self._waiting.append((index, value))
        if not on_accelerator(index, value) or len(self._waiting) >= WAITING:
            self.flush()

    def flush(self) -> None:
        """Read back the values that wait on an accelerator."""
        waiting, self._waiting = self._waiting, []
        alone = self.place[1] == 1
        for index, value in waiting:
            if alone:
                self._scores.record(index, value)
            else:
                self._new.append(self._scores.checked(index, value))

    def clear(self) -> None:
        """Discard all values that were not recorded yet."""
        self._waiting, self._new = [], []

    def exchange(self, position: tuple[int, int]) -> None:
        """Record the new values of all processes in the same order, so that the tables stay equal bit for bit.

        ``position`` (epoch, batches left of a resumed pass) must be the same in all processes. Collective.
        """
        self.flush()
        world = self.place[1]
        if world == 1:
            return
        if not (dist.is_available() and dist.is_initialized()):
            if not self._new:
                return
            raise RuntimeError(
                f"The scores of {world} samplers must be exchanged, but torch.distributed has no process group. "
                "Call torch.distributed.init_process_group(...) before the first pass."
            )
        if dist.get_world_size() != world:
            raise RuntimeError(
                f"world_size is {world}, but the process group that exchanges the scores has {dist.get_world_size()} "
                "processes. Leave out rank and world_size to use torch.distributed's."
            )
        index = torch.cat([torch.empty(0, dtype=torch.int64, device=CPU), *(i for i, _ in self._new)])
        value = torch.cat([torch.empty(0, dtype=torch.float32, device=CPU), *(v for _, v in self._new)])
        heads = gather(torch.tensor([len(index), *position], device=CPU))
        if any(not torch.equal(h[1:], heads[0][1:]) for h in heads):
            raise RuntimeError(
                f"The processes are at different positions: (epoch, batches left) by rank is "
                f"{[h[1:].tolist() for h in heads]}. Begin every pass in every process, and load the same state in all."
            )
        lengths = [int(h[0]) for h in heads]
        # Sent separately, because a float32 cannot represent every index.
        indices, values = gather(index, lengths), gather(value, lengths)
        self._new = []
        record_in_order(self._scores, torch.cat(indices), torch.cat(values))


def on_accelerator(*tensors: Tensor) -> bool:
    """Whether reading one of the tensors would wait for a device."""
    return any(t.device.type != "cpu" for t in tensors)


def record_in_order(scores: Scores, index: Tensor, value: Tensor) -> None:
    """Record values of samples that may occur several times: the first value of each, then the second, and so on."""
    order = index.argsort(stable=True)
    among = index[order]
    turn = torch.arange(len(order), device=CPU) - torch.searchsorted(among, among)
    for t in range(int(turn.max()) + 1 if len(turn) else 0):
        now = order[turn == t]
        scores.record(index[now], value[now])
