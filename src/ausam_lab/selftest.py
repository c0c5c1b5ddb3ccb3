"""``ausam selftest``: does the library do on this device what it does on the CPU? Needs nothing but torch."""

from __future__ import annotations

import argparse
import io
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, distributed, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from ausam import METHODS, SAM, AUSampling, LookSAM, Method, SelectiveBatchSampler, SharpnessAware, __version__
from ausam.common.random import generator
from ausam_lab.names.lookup import device as available

SAMPLES, BATCH, FEATURES, CLASSES, STEPS = 64, 16, 12, 4, 6
ARGUMENTS: dict[str, dict[str, Any]] = {  # of methods that begin late by default, or must know the number of steps
    "AESAM": {"total_steps": STEPS},
    "MESA": {"start": 1},
    "SAF": {"start": 1, "gap": 1},
    "VSAM": {"warmup": 1},
}


class SkippedError(Exception):
    """The check cannot be made here; the message says why."""


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

    def steps(self, count: int = STEPS) -> list[Tensor]:
        """Take some steps; the weights and buffers afterwards."""
        for i in range(count):
            index = torch.arange(BATCH) + i * BATCH % SAMPLES
            self.opt.backward(self.losses, self.x[index], self.y[index], index=index)
            self.opt.step()
            self.opt.zero_grad()
        return self.state()

    def state(self) -> list[Tensor]:
        """Copies of all parameters and buffers."""
        return [t.detach().cpu().double().clone() for t in self.network.state_dict().values()]


def near(a: list[Tensor], b: list[Tensor], limit: float, what: str) -> str:
    """The largest relative difference between two states; it must be below the limit."""
    apart = max(float((s - t).norm() / (1e-12 + t.norm())) for s, t in zip(a, b, strict=True))
    if not apart < limit:
        raise AssertionError(f"the weights are {apart:.1e} away from those of {what}")
    return f"{apart:.0e} from {what}"


# -- the checks: each takes a device, returns a remark, and raises if a promise is not kept ----------------------------


def same_as_float64(name: str, device: str) -> str:
    """A few steps of a method give the weights that they give in float64 on the CPU."""
    method = METHODS[name](**ARGUMENTS.get(name, {}))
    exact = Training("cpu", method, torch.float64).steps()
    return near(Training(device, method).steps(), exact, 1e-3, "float64 on the CPU")


def restores_after_an_error(device: str) -> str:
    """An error in any pass of any method leaves weights, buffers and gradients as they were."""
    for name in METHODS:
        for failing in (1, 2):
            training = Training(device, METHODS[name](**ARGUMENTS.get(name, {})))
            before = training.steps(1)
            calls = iter(range(1, 100))

            def losses(x: Tensor, y: Tensor, t: Training = training, calls: Any = calls, failing: int = failing) -> Any:
                if next(calls) == failing:
                    raise ConnectionError
                return t.losses(x, y)

            try:
                training.opt.backward(losses, training.x, training.y, index=torch.arange(SAMPLES))
            except ConnectionError:
                same = all(torch.equal(a, b) for a, b in zip(before, training.state(), strict=True))
                if not same or any(p.grad is not None for p in training.network.parameters()):
                    raise AssertionError(f"{name} did not restore the model after an error in pass {failing}") from None
    return f"{len(METHODS)} methods, to the last bit"


def mixed_precision(half: torch.dtype, device: str) -> str:
    """Under autocast, with a GradScaler for float16, SAM's steps are near those of float32."""
    kind = torch.device(device).type
    if half is torch.bfloat16 and kind == "mps":
        raise SkippedError("torch has no autocast to bfloat16 on mps")
    training = Training(device)
    scaler = torch.amp.GradScaler(kind, init_scale=256.0, enabled=half is torch.float16 and kind in ("cpu", "cuda"))

    def losses(x: Tensor, y: Tensor) -> Any:
        with torch.autocast(kind, half):
            return training.losses(x, y)

    for i in range(STEPS):
        part = slice(i * BATCH % SAMPLES, i * BATCH % SAMPLES + BATCH)
        training.opt.backward(
            losses,
            training.x[part],
            training.y[part],
            backward=lambda loss: torch.autograd.backward(scaler.scale(loss)),
        )
        scaler.step(training.opt)
        scaler.update()
        training.opt.zero_grad()
    return near(training.state(), Training(device).steps(), 0.1, "float32")


def resumes(device: str) -> str:
    """Saved in the middle and loaded again, a training with memory and scores ends at the same bits."""

    def begin() -> tuple[Training, SelectiveBatchSampler]:
        return Training(device, LookSAM(0.05)), SelectiveBatchSampler(SAMPLES, BATCH, AUSampling(0.5, ramp=0), seed=3)

    def epoch(training: Training, sampler: SelectiveBatchSampler) -> None:
        for chosen in sampler:
            index = torch.tensor(chosen)
            sampler.update(training.opt.backward(training.losses, training.x[index], training.y[index], index=index))
            training.opt.step()
            training.opt.zero_grad()

    whole, sampler = begin()
    epoch(whole, sampler)
    file = io.BytesIO()
    torch.save([whole.network.state_dict(), whole.opt.state_dict(), sampler.state_dict()], file)
    epoch(whole, sampler)
    again, later = begin()
    file.seek(0)
    model, opt, scores = torch.load(file, map_location=device, weights_only=True)
    again.network.load_state_dict(model)
    again.opt.load_state_dict(opt)
    later.load_state_dict(scores)
    epoch(again, later)
    if not all(torch.equal(a, b) for a, b in zip(whole.state(), again.state(), strict=True)):
        raise AssertionError("the resumed training ended at other weights")
    return "to the last bit"


def two_processes(device: str) -> str:
    """Two processes, each on its half of the batch, take the steps of one process on the whole."""
    kind = torch.device(device).type
    if kind == "cuda" and torch.cuda.device_count() < 2:
        raise SkippedError("there is one CUDA device; two processes need two")
    if kind not in ("cpu", "cuda") or not distributed.is_available():
        raise SkippedError(f"this torch has no process groups on {kind}")
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, (folder, kind), nprocs=2)  # type: ignore[no-untyped-call]
        states = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(2)]
    if not all(torch.equal(a, b) for a, b in zip(*states, strict=True)):
        raise AssertionError("the two processes ended at different weights")
    training = Training("cpu")
    return near(states[0], _whole_batches(training, training.x, training.y), 1e-4, "one process")


def _rank(rank: int, folder: str, kind: str) -> None:
    """One of the processes; its weights are left in the folder."""
    torch.set_num_threads(1)
    device = f"cuda:{rank}" if kind == "cuda" else "cpu"
    backend = "nccl" if kind == "cuda" else "gloo"
    distributed.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        training = Training(device)
        training.model = DistributedDataParallel(training.network, device_ids=[rank] if kind == "cuda" else None)
        state = _whole_batches(training, training.x.chunk(2)[rank], training.y.chunk(2)[rank], sync_perturbation=True)
        torch.save(state, Path(folder) / f"{rank}.pt")
        del training  # before its process group: torch can deadlock in the other order
    finally:
        distributed.destroy_process_group()


def _whole_batches(training: Training, x: Tensor, y: Tensor, **options: Any) -> list[Tensor]:
    """Three steps on all of these samples, in eval mode: the statistics of half a batch are others."""
    training.network.eval()
    opt = SharpnessAware(training.opt.base, SAM(0.1), training.model, **options)
    for _ in range(3):
        opt.backward(training.losses, x, y)
        opt.step()
        opt.zero_grad()
    return training.state()


def compiled(device: str) -> str:
    """A compiled model takes the steps of the model itself."""
    try:
        torch.compile(nn.Linear(2, 2).to(device))(torch.ones(2, 2, device=device))
    except Exception as error:  # noqa: BLE001  (a compiler, Triton or support for this Python is missing)
        raise SkippedError(f"torch.compile does not work here: {error}") from None
    training = Training(device)
    training.model = cast("nn.Module", torch.compile(training.network))
    return near(training.steps(3), Training(device).steps(3), 1e-4, "the model itself")


CHECKS: dict[str, Callable[[str], str]] = {
    **{f"{name}: the steps of float64": partial(same_as_float64, name) for name in METHODS},
    "an error in any pass": restores_after_an_error,
    "mixed precision, bfloat16": partial(mixed_precision, torch.bfloat16),
    "mixed precision, float16": partial(mixed_precision, torch.float16),
    "resume": resumes,
    "two processes": two_processes,
    "torch.compile": compiled,  # the slowest last
}


# -- the command -------------------------------------------------------------------------------------------------------


def outcome(check: Callable[[str], str], device: str) -> tuple[str, str]:
    """Whether a check is ok, failed or skipped, and its remark or the reason; no error stops the checks after it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "ok", check(device)
    except SkippedError as error:
        return "skipped", " ".join(str(error).split())[:200]
    except Exception as error:  # noqa: BLE001
        # the last line of an error from another process is the error itself; the first is how it came here
        last = (str(error).strip().splitlines() or [""])[-1]
        return "failed", f"{type(error).__name__}: {last}"[:300]


def selftest(name: str) -> int:
    """Write a line per check; the exit code is 1 if one failed."""
    device = available(name)
    kind = torch.device(device).type
    processor = torch.cuda.get_device_name(device) if kind == "cuda" else platform.processor() or platform.machine()
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}"
    write = sys.stdout.write
    write(f"```\nausam {__version__} selftest: {device} ({processor}), {versions}\n")  # can be pasted into an issue
    statuses = []
    for title, check in CHECKS.items():
        start = time.perf_counter()
        status, remark = outcome(check, device)
        statuses.append(status)
        write(f"{status:<7}  {title:<41}  {remark} ({time.perf_counter() - start:.1f} s)\n")
        sys.stdout.flush()
    write(", ".join(f"{statuses.count(status)} {status}" for status in ("ok", "failed", "skipped")) + "\n```\n")
    return int("failed" in statuses)


ABOUT = (
    "Check on a device of yours that every method takes the steps that it takes in float64 on the CPU, that an error "
    "restores everything, mixed precision, resuming, two processes and torch.compile. The "
    "output can be pasted into an issue. The exit code is 1 if a check failed."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    text = "cpu, cuda, cuda:0, mps, xpu; auto: cuda if there is one (default: auto)"
    parser.add_argument("--device", default="auto", help=text)


def main(argv: list[str]) -> int:
    """``ausam selftest`` without the packages that the rest of the command line needs."""
    parser = argparse.ArgumentParser(prog="ausam selftest", description=ABOUT)
    add_arguments(parser)
    try:
        return selftest(parser.parse_args(argv).device)
    except ValueError as error:
        sys.stderr.write(f"ausam: {error}\n")
        return 2
