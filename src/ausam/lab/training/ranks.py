"""The processes of one run, as torchrun starts them: who is who, and what they tell each other."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
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

from ausam.distributed import gather
from ausam.random import generator

T = TypeVar("T")

START = datetime.timedelta(minutes=30)  # for all ranks to come: one may still be importing when another is here


class LostError(RuntimeError):
    """Another process of the run has ended, or answers no more."""


@dataclass(frozen=True)
class Ranks:
    """One process among those of its run. Alone it talks to nobody; of several, all call all but ``own``."""

    rank: int = 0
    world: int = 1

    def own(self, seed: int) -> int:
        """The seed of what each rank draws for itself: augmentation, dropout. Rank 0 draws as one process does."""
        return seed if self.rank == 0 else generator(seed, self.rank, 0x5EED).initial_seed()

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The network whose gradients are averaged over the ranks; BatchNorm's statistics are rank 0's."""
        return model if self.world == 1 else DistributedDataParallel(model)

    def told(self, ask: Callable[[], T]) -> T:
        """What rank 0 finds, in all ranks. What it cannot accept ends all; rank 0 says why."""
        if self.world == 1:
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
        found: T = answer[0]
        return found

    def sums(self, *values: float) -> tuple[Any, ...]:
        """Each of these numbers, summed over the ranks."""
        if self.world == 1:
            return values
        every: list[Any] = [None] * self.world
        dist.all_gather_object(every, values)
        return tuple(map(sum, zip(*every, strict=True)))

    def others(self, mine: Any) -> list[Any]:
        """In rank 0: what each other rank has here, on the CPU. Nothing elsewhere."""
        if self.world == 1:
            return []
        every: list[Any] | None = None if self.rank else [None] * self.world
        dist.gather_object(tree_map(lambda x: x.cpu() if isinstance(x, Tensor) else x, mine), every)
        return [] if every is None else every[1:]

    def level(self, model: nn.Module) -> None:
        """Give all ranks rank 0's buffers, because each has moved its own since DDP last did."""
        if self.world > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def shared(self, model: nn.Module) -> nn.Module:
        """The network for evaluating: each rank computes its part of a batch, and all have the whole answer."""
        return model if self.world == 1 else _Shared(model, self)


ALONE = Ranks()


class _Shared(nn.Module):
    def __init__(self, model: nn.Module, here: Ranks) -> None:
        super().__init__()
        self.model, self.here = model, here

    def forward(self, x: Tensor) -> Tensor:
        n, world = len(x), self.here.world
        if n < world:
            whole: Tensor = self.model(x)
            return whole
        cuts = [n * r // world for r in range(world + 1)]
        z: Tensor = self.model(x[cuts[self.here.rank] : cuts[self.here.rank + 1]])
        parts = gather(z.flatten(), [(b - a) * z[0].numel() for a, b in itertools.pairwise(cuts)])
        return torch.cat(parts).view(n, *z.shape[1:]).to(z.device)


def started() -> tuple[int, int]:
    """Rank and number of processes, as torchrun says in the environment; 0 of 1 without it."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


@contextlib.contextmanager
def alike() -> Iterator[None]:
    """Inside, every rank finds the same mistakes of the user's: rank 0 says them, the others end without a word."""
    try:
        yield
    except ValueError:
        if started()[0]:
            raise SystemExit(2) from None
        raise


def require_one_process(command: str) -> None:
    """Raise a ValueError under torchrun: this command is for one process."""
    world = started()[1]
    with alike():
        if world > 1:
            raise ValueError(
                f"ausam {command} runs in one process, but {world} were started. Start it without torchrun; "
                "ausam train is the command that trains one network in several processes."
            )


@contextlib.contextmanager
def joined(device: str, seconds: float | None = None) -> Iterator[Ranks]:
    """The processes that torchrun started, as one group inside: gloo on CPUs, nccl on GPUs, of which each has its own.

    Once all are here, ``seconds`` (None: torch's 30 minutes, nccl 10) without an answer from another rank raise a
    LostError, and its end does so at once. Without torchrun nothing happens.
    """
    rank, world = started()
    if world == 1:
        if seconds is not None:
            raise ValueError(
                "--timeout is for processes that wait for each other. Start them with torchrun, or leave it out."
            )
        yield ALONE
        return
    with alike():
        if seconds is not None and not seconds > 0:
            raise ValueError(f"--timeout is {seconds:g}; give the seconds after which a rank that waits gives up.")
        _take(device)
    limit = None if seconds is None else datetime.timedelta(seconds=seconds)
    try:
        # torchrun --max-restarts keeps its store, in which the addresses of the ranks that ended still stand.
        attempt = f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        meeting = PrefixStore(attempt, next(rendezvous("env://", rank, world))[0])
        meeting.set(f"rank {rank}", "here")
        meeting.wait([f"rank {r}" for r in range(world)], START)
        backend = "gloo" if device == "cpu" else "nccl"
        dist.init_process_group(backend, store=meeting, rank=rank, world_size=world, timeout=limit)
        yield Ranks(rank, world)
    except RuntimeError as error:
        text = str(error)
        # gloo has no exception of its own: it says which of its files could not go on.
        if not (isinstance(error, dist.DistError) or "/gloo/" in text):
            raise
        waited = "" if seconds is None else f" for {seconds:g} s (--timeout)"
        why = f"no answer{waited}" if "timed out" in text.lower() else "its connection is closed"
        raise LostError(
            f"Rank {rank} of {world} has lost another: {why}. That one has ended or hangs; see what it said itself. "
            "Any number of ranks may go on."
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _take(device: str) -> None:
    """Make this rank's GPU the one that "cuda" means."""
    if device == "cpu":
        return
    if device != "cuda":
        raise ValueError(f'device is "{device}", but several processes train on "cpu", or on "cuda", a GPU each.')
    wanted, there = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), torch.cuda.device_count()
    if wanted > there:
        raise ValueError(f"{wanted} processes were started, and there are {there} GPUs. Use --nproc-per-node {there}.")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
