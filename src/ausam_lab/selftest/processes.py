"""Two processes against one: what each of them does."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from ausam import SAM, SharpnessAware
from ausam_lab.selftest.network import CLASSES, FEATURES, data, distance

WORLD, STEPS = 2, 3


def compare_with_one(kind: str) -> float:
    """How far the weights of two processes are from those of one, which sees the whole batch."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (folder, kind), nprocs=WORLD)  # type: ignore[no-untyped-call]
        states = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]
    if not all(torch.equal(a, b) for a, b in zip(*states, strict=True)):
        raise AssertionError("the two processes ended at different weights")
    x, y = data("cpu")
    return distance(states[0], _steps(_network(), x, y))


def _rank(rank: int, folder: str, kind: str) -> None:
    """One of the processes; its weights are left in the folder."""
    torch.set_num_threads(1)
    device = f"cuda:{rank}" if kind == "cuda" else "cpu"
    backend = "nccl" if kind == "cuda" else "gloo"
    distributed.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=WORLD)
    try:
        x, y = data(device)
        own = _network().to(device)
        model = DistributedDataParallel(own, device_ids=[rank] if kind == "cuda" else None)
        state = _steps(model, x.chunk(WORLD)[rank], y.chunk(WORLD)[rank], sync_perturbation=True)
        torch.save(state, Path(folder) / f"{rank}.pt")
        del model  # before its process group: torch can deadlock in the other order
    finally:
        distributed.destroy_process_group()


def _network() -> nn.Module:
    """Without BatchNorm, whose statistics would be those of half a batch."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))


def _steps(model: nn.Module, x: Tensor, y: Tensor, **how: Any) -> list[Tensor]:
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = SharpnessAware(base, SAM(0.1), model, **how)
    for _ in range(STEPS):
        opt.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y)
        opt.step()
        opt.zero_grad()
    return [p.detach().cpu().to(torch.float64) for p in model.parameters()]
