"""The processes of one run, as torchrun starts them: their ranks and what they exchange."""

from __future__ import annotations

import contextlib
import gc
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # public, but not in its __all__
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from ausam.common.random import generator
from ausam_lab.records.files import RunError

T = TypeVar("T")


class LostError(RunError):
    """Another process of the run has ended or stopped answering."""


@dataclass(frozen=True)
class Ranks:
    """One process of a run.

    With several, every method except ``rank_seed`` is collective. A single process sends nothing.
    """

    rank: int = 0
    world_size: int = 1

    def rank_seed(self, seed: int) -> int:
        """The seed for each rank's own draws: augmentation, dropout. Rank 0 draws as a single process would."""
        return seed if self.rank == 0 else generator(seed, self.rank, 0x5EED).initial_seed()

    def wrap(self, model: nn.Module) -> nn.Module:
        """The network with gradients averaged over the ranks. BatchNorm's statistics come from rank 0."""
        return model if self.world_size == 1 else DistributedDataParallel(model)

    def from_rank0(self, ask: Callable[[], T]) -> T:
        """Run on rank 0 and broadcast the result. An error there ends all ranks."""
        if self.world_size == 1:
            return ask()
        answer: list[Any] = [None, None]
        if self.rank == 0:
            try:
                answer[0] = ask()
            except (ValueError, OSError, RuntimeError) as error:
                answer[1] = error
        dist.broadcast_object_list(answer, 0)
        if answer[1] is not None:
            raise answer[1] if self.rank == 0 else SystemExit(2)
        received: T = answer[0]
        return received

    def sum_over_ranks(self, *values: float) -> tuple[Any, ...]:
        """Each of these numbers, summed over the ranks."""
        if self.world_size == 1:
            return values
        every: list[Any] = [None] * self.world_size
        dist.all_gather_object(every, values)
        return tuple(map(sum, zip(*every, strict=True)))

    def gather_others(self, mine: Any) -> list[Any]:
        """In rank 0: the values of the other ranks, on the CPU. Empty in the others."""
        if self.world_size == 1:
            return []
        every: list[Any] | None = None if self.rank else [None] * self.world_size
        dist.gather_object(tree_map(lambda x: x.cpu() if isinstance(x, Tensor) else x, mine), every)
        return [] if every is None else every[1:]

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Give all ranks rank 0's buffers, because each rank has changed its own since DDP last did so."""
        if self.world_size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)


SINGLE_PROCESS = Ranks()


def rank_and_world() -> tuple[int, int]:
    """Rank and number of processes from torchrun's environment. 0 of 1 without it."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextlib.contextmanager
def same_errors_on_all_ranks() -> Iterator[None]:
    """Inside, every rank finds the same user errors: rank 0 reports them, the others exit silently."""
    try:
        yield
    except ValueError:
        if rank_and_world()[0]:
            raise SystemExit(2) from None
        raise


def require_one_process(command: str) -> None:
    """Raise a ValueError under torchrun: this command is for one process."""
    rank, world = rank_and_world()
    if world > 1:
        if rank:  # rank 0 says it
            raise SystemExit(2)
        raise ValueError(
            f"ausam {command} runs in one process, but {world} were started. Start it without torchrun; "
            "ausam train is the command that trains one network in several processes."
        )


@contextlib.contextmanager
def process_group(device: str) -> Iterator[Ranks]:
    """Inside, torchrun's processes form one group: gloo on CPUs, nccl with one GPU per process.

    The end of another rank raises a LostError at once, one that hangs after torch's 30 minutes (nccl 10). Without
    torchrun nothing happens.
    """
    rank, world = rank_and_world()
    if world == 1:
        yield SINGLE_PROCESS
        return
    with same_errors_on_all_ranks():
        _set_gpu(device)
    try:
        # torchrun --max-restarts keeps its store, which still holds the addresses of the ranks that ended.
        attempt = f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        store = PrefixStore(attempt, next(rendezvous("env://", rank, world))[0])
        backend = "gloo" if device == "cpu" else "nccl"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world)
        yield Ranks(rank, world)
    except BaseException as error:
        traceback.clear_frames(error.__traceback__)  # they hold the DDP wrapper, which must go first: see below
        # gloo has no exception class: its message names the source file that failed.
        if not isinstance(error, dist.DistError) and not (isinstance(error, RuntimeError) and "/gloo/" in str(error)):
            raise
        raise LostError(
            f"Rank {rank} of {world} has lost contact with another, which has ended or hangs. See its own output "
            f"({str(error).splitlines()[0][:200]}). The run can continue with any number of ranks."
        ) from error
    finally:
        if dist.is_initialized():
            # torch can deadlock when a DDP wrapper outlives its group: github.com/pytorch/pytorch/issues/56297
            gc.collect()
            dist.destroy_process_group()


def _set_gpu(device: str) -> None:
    """Make this rank's GPU the one that "cuda" means."""
    if device == "cpu":
        return
    if device != "cuda":
        raise ValueError(f'device is "{device}", but several processes need "cpu", or "cuda" with one GPU each.')
    wanted, there = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if wanted > there:
        raise ValueError(f"{wanted} processes were started, but there are {there} GPUs. Use --nproc-per-node {there}.")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
