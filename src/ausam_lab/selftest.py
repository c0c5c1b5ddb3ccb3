"""``ausam selftest``: does the library do on this device what it does on the CPU? Needs nothing but torch."""

from __future__ import annotations

import argparse
import io
import platform
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import SkipTest

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from ausam import METHODS, SAM, AUSampling, LookSAM, Method, SelectiveBatchSampler, SharpnessAware, __version__
from ausam.common.random import generator
from ausam_lab.names.lookup import device as available

ABOUT = (
    "Check on a device of yours that every method takes the steps that it takes in float64 on the CPU, and mixed "
    "precision, a sampler saved and loaded, and two processes. The output can be pasted into an issue. The exit code "
    "is 1 if a check failed."
)
SAMPLES, BATCH, FEATURES, CLASSES, STEPS = 64, 16, 12, 4, 6
BATCHES = [torch.arange(BATCH) + i * BATCH % SAMPLES for i in range(STEPS)]
ARGUMENTS: dict[str, dict[str, Any]] = {  # of methods that begin late by default, or must know the number of steps
    "AESAM": {"total_steps": STEPS},
    "MESA": {"start": 1},
    "SAF": {"start": 1, "gap": 1},
    "VSAM": {"warmup": 1},
}


class Training:
    """A small network with its optimizer and its data: the same numbers on every device."""

    def __init__(self, device: str, method: Method | None = None, dtype: torch.dtype = torch.float32) -> None:
        rng = generator(1)
        layers = (nn.Linear(FEATURES, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Linear(24, CLASSES))
        self.network = nn.Sequential(*layers).to(torch.float64)
        with torch.no_grad():
            for p in self.network.parameters():
                p.copy_(0.4 * torch.randn(p.shape, generator=rng, dtype=torch.float64))
        self.network.to(device, dtype)
        self.model: nn.Module = self.network
        self.x = torch.randn(SAMPLES, FEATURES, generator=rng, dtype=torch.float64).to(device, dtype)
        self.y = torch.randint(CLASSES, (SAMPLES,), generator=rng).to(device)
        base = torch.optim.SGD(self.network.parameters(), lr=0.05, momentum=0.9)
        self.opt = SharpnessAware(base, method or SAM(0.05), self.network)

    def losses(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Per-sample losses, and the outputs."""
        z = self.model(x)
        return F.cross_entropy(z, y, reduction="none"), z

    def steps(self, batches: Iterable[Tensor], sampler: SelectiveBatchSampler | None = None) -> list[Tensor]:
        """Take a step on each of these batches of indices; the weights and buffers afterwards."""
        for index in batches:
            feedback = self.opt.backward(self.losses, self.x[index], self.y[index], index=index)
            if sampler is not None:
                sampler.update(feedback)
            self.opt.step()
            self.opt.zero_grad()
        return self.state()

    def state(self) -> list[Tensor]:
        """Copies of all parameters and buffers."""
        return [t.detach().cpu().double().clone() for t in self.network.state_dict().values()]


def near(a: list[Tensor], b: list[Tensor], limit: float, what: str) -> str:
    """The largest relative difference between two states; it must be at most the limit."""
    apart = max(float((s - t).norm() / (1e-12 + t.norm())) for s, t in zip(a, b, strict=True))
    if not apart <= limit:
        raise ArithmeticError(f"the weights are {apart:.1e} away from those of {what}")
    return f"{apart:.0e} from {what}"


# The checks: each takes a device, returns a remark, and raises if a promise is not kept.


def same_as_float64(name: str, device: str) -> str:
    """A few steps of a method give the weights that they give in float64 on the CPU."""
    method = METHODS[name](**ARGUMENTS.get(name, {}))
    exact = Training("cpu", method, torch.float64).steps(BATCHES)
    return near(Training(device, method).steps(BATCHES), exact, 1e-3, "float64 on the CPU")


def mixed_precision(half: torch.dtype, device: str) -> str:
    """Under autocast, with a GradScaler for float16, SAM's steps are near those of float32."""
    kind = torch.device(device).type
    if half is torch.bfloat16 and kind == "mps":
        raise SkipTest("torch has no autocast to bfloat16 on mps")
    training = Training(device)
    scaler = torch.amp.GradScaler(kind, init_scale=256.0, enabled=half is torch.float16 and kind in ("cpu", "cuda"))

    def losses(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(kind, half):
            return training.losses(x, y)

    for index in BATCHES:
        x, y = training.x[index], training.y[index]
        training.opt.backward(losses, x, y, backward=lambda loss: torch.autograd.backward(scaler.scale(loss)))
        scaler.step(training.opt)
        scaler.update()
        training.opt.zero_grad()
    return near(training.state(), Training(device).steps(BATCHES), 0.1, "float32")


def resumes(device: str) -> str:
    """Saved in the middle and loaded again, a training with memory and scores ends at the same bits."""

    def begin() -> tuple[Training, SelectiveBatchSampler]:
        return Training(device, LookSAM(0.05)), SelectiveBatchSampler(SAMPLES, BATCH, AUSampling(0.5, ramp=0), seed=3)

    (whole, sampler), (again, later) = begin(), begin()
    whole.steps(map(torch.tensor, sampler), sampler)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in (whole.network, whole.opt, sampler)], file)
    file.seek(0)
    saved = torch.load(file, map_location=device, weights_only=True)
    again.network.load_state_dict(saved[0])
    again.opt.load_state_dict(saved[1])
    later.load_state_dict(saved[2])
    end = whole.steps(map(torch.tensor, sampler), sampler)
    near(again.steps(map(torch.tensor, later), later), end, 0.0, "the training that was saved")
    return "to the last bit"


def two_processes(device: str) -> str:
    """Two processes, each on its half of the batch, take the steps of one process on the whole."""
    kind = torch.device(device).type
    if kind == "cuda" and torch.cuda.device_count() < 2:
        raise SkipTest("there is one CUDA device; two processes need two")
    if kind not in ("cpu", "cuda") or not distributed.is_available():
        raise SkipTest(f"this torch has no process groups on {kind}")
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (folder, kind), nprocs=2)  # type: ignore[no-untyped-call]
        first, second = (torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(2))
    near(first, second, 0.0, "the other process")
    return near(first, _three_steps(Training("cpu"), slice(None)), 1e-4, "one process")


def _rank(rank: int, folder: str, kind: str) -> None:
    """One of the processes; its weights are left in the folder."""
    torch.set_num_threads(1)
    device, backend = (f"cuda:{rank}", "nccl") if kind == "cuda" else ("cpu", "gloo")
    distributed.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        training = Training(device)
        training.model = DistributedDataParallel(training.network, device_ids=[rank] if kind == "cuda" else None)
        half = slice(rank * SAMPLES // 2, (rank + 1) * SAMPLES // 2)
        torch.save(_three_steps(training, half, sync_perturbation=True), Path(folder) / f"{rank}.pt")
        del training  # before its process group: torch can deadlock in the other order
    finally:
        distributed.destroy_process_group()


def _three_steps(training: Training, part: slice, **options: Any) -> list[Tensor]:
    """Three steps on all of these samples, in eval mode: half of a batch has other statistics."""
    training.network.eval()
    training.opt = SharpnessAware(training.opt.base, SAM(0.1), training.model, **options)
    return training.steps([torch.arange(SAMPLES)[part]] * 3)


CHECKS: dict[str, Callable[[str], str]] = {
    **{f"{name}: the steps of float64": partial(same_as_float64, name) for name in METHODS},
    "mixed precision, bfloat16": partial(mixed_precision, torch.bfloat16),
    "mixed precision, float16": partial(mixed_precision, torch.float16),
    "a sampler, saved and loaded": resumes,
    "two processes": two_processes,
}


def outcome(check: Callable[[str], str], device: str) -> tuple[str, str]:
    """Whether a check is ok, failed or skipped, and its remark or the reason; no error stops the checks after it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "ok", check(device)
    except SkipTest as reason:
        return "skipped", str(reason)
    except Exception as error:  # noqa: BLE001
        # the last line of an error from another process is the error itself; the first is how it came here
        last = (str(error).strip().splitlines() or [""])[-1]
        return "failed", f"{type(error).__name__}: {last}"[:300]


def main(argv: list[str]) -> int:
    """``ausam selftest`` without the packages that the rest of the command line needs: a line per check."""
    parser = argparse.ArgumentParser(prog="ausam selftest", description=ABOUT)
    text = "cpu, cuda, cuda:0, mps, xpu; auto: cuda if there is one (default: auto)"
    parser.add_argument("--device", default="auto", help=text)
    try:
        device = available(parser.parse_args(argv).device)
    except ValueError as error:
        sys.stderr.write(f"ausam: {error}\n")
        return 2
    kind = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.processor()
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}"
    sys.stdout.write(f"```\nausam {__version__} selftest: {device} ({kind}), {versions}\n")
    statuses = []
    for title, check in CHECKS.items():
        status, remark = outcome(check, device)
        statuses.append(status)
        sys.stdout.write(f"{status:<7}  {title:<41}  {remark}\n")
        sys.stdout.flush()
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in ("ok", "failed", "skipped"))
    sys.stdout.write(f"{counts}\n```\n")
    return int("failed" in statuses)
