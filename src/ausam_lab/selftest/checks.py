"""The checks: each takes a device, returns a remark, and raises an error if a promise is not kept."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ausam import METHODS, SAM, AUSampling, Indexed, LookSAM, Method, SelectiveBatchSampler
from ausam_lab.selftest import processes
from ausam_lab.selftest.network import SAMPLES, Training, data, distance, network

Check = Callable[[str], str]

STEPS = 6  # enough for a method to use what it remembers
TOLERANCE = 1e-3  # of float32 after these steps; a wrong formula is off by 1e-2 or more

# Arguments of a method for a training of a few steps.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "MESA": {"start": 1},
    "SAF": {"start": 1, "gap": 1},
    "VSAM": {"warmup": 1},
}


class SkipCheckError(Exception):
    """The check cannot be made here; the message says why."""


def method(name: str) -> Method:
    """The method of this name, for a short training."""
    cls = METHODS[name]
    needed = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    made: Method = cls(**dict.fromkeys(needed, STEPS) | ARGUMENTS.get(name, {}))
    return made


def same_as_float64(name: str, device: str) -> str:
    """A few steps of a method give the weights that they give in float64 on the CPU."""
    states = []
    for place, dtype in (("cpu", torch.float64), (device, torch.float32)):
        training = Training(network(place, dtype), method(name))
        for batch in range(STEPS):
            training.step(batch)
        states.append(training.state())
    apart = distance(states[1], states[0])
    if not apart < TOLERANCE:
        raise AssertionError(f"after {STEPS} steps the weights are {apart:.1e} away from those of float64 on the CPU")
    return f"{apart:.0e} from float64 on the CPU"


def restores_after_an_error(device: str) -> str:
    """An error in any pass of any method leaves weights, buffers and gradients as they were."""
    for name in METHODS:
        for failing in (1, 2):
            training = Training(network(device), method(name))
            training.step(0)
            before = [t.clone() for t in training.model.state_dict().values()]
            passes = 0

            def losses(x: Tensor, y: Tensor, training: Training = training, failing: int = failing) -> Any:
                nonlocal passes
                passes += 1
                if passes == failing:
                    raise ConnectionError("injected")
                return training.losses(x, y)

            try:
                training.opt.backward(losses, training.x, training.y, index=torch.arange(SAMPLES))
            except ConnectionError:
                after = list(training.model.state_dict().values())
                if not all(torch.equal(a, b) for a, b in zip(before, after, strict=True)):
                    raise AssertionError(
                        f"{name} did not restore the weights: the error was in pass {failing}"
                    ) from None
                if any(p.grad is not None for p in training.model.parameters()):
                    raise AssertionError(f"{name} left a gradient after an error in pass {failing}") from None
    return f"{len(METHODS)} methods, to the last bit"


def mixed_precision(device: str) -> str:
    """Under autocast, with a GradScaler for float16, SAM's steps are near those of float32."""
    kind = torch.device(device).type
    exact = _mixed(device, None, None).state()
    remarks = []
    scales = kind in ("cpu", "cuda")  # elsewhere torch has no GradScaler, or no bfloat16
    for half in (torch.bfloat16, torch.float16) if scales else (torch.float16,):
        scaler = torch.amp.GradScaler(kind, init_scale=256.0) if scales and half is torch.float16 else None
        apart = distance(_mixed(device, half, scaler).state(), exact)
        name = str(half).removeprefix("torch.")
        if not apart < 0.1:
            raise AssertionError(f"with {name} the weights are {apart:.1e} away from those of float32")
        remarks.append(f"{name} {apart:.0e}")
    return f"{', '.join(remarks)} from float32"


def _mixed(device: str, half: torch.dtype | None, scaler: torch.amp.GradScaler | None) -> Training:
    """A few steps of SAM under autocast to this type; None: without it."""
    training = Training(network(device), SAM(0.05))

    def losses(x: Tensor, y: Tensor) -> Any:
        with torch.autocast(torch.device(device).type, half or torch.bfloat16, enabled=half is not None):
            return training.losses(x, y)

    def backward(loss: Tensor) -> None:
        torch.autograd.backward(loss if scaler is None else scaler.scale(loss))

    for batch in range(STEPS):
        here = slice(batch % 4 * 16, batch % 4 * 16 + 16)
        training.opt.backward(losses, training.x[here], training.y[here], backward=backward)
        if scaler is None:
            training.opt.step()
        else:
            scaler.step(training.opt)
            scaler.update()
        training.opt.zero_grad()
    return training


def compiled(device: str) -> str:
    """A compiled model takes the steps of the model itself."""
    states = []
    for compiles in (False, True):
        model = network(device)
        training = Training(cast("nn.Module", torch.compile(model)) if compiles else model, SAM(0.05))
        for batch in range(3):
            try:
                training.step(batch)
            except Exception as error:
                if compiles and _cannot_compile(error):
                    raise SkipCheckError(f"torch.compile does not work here: {_first_line(error)}") from None
                raise
        states.append(training.state())
    apart = distance(states[1], states[0])
    if not apart < 1e-4:
        raise AssertionError(f"compiled, the weights are {apart:.1e} away from those without")
    return f"{apart:.0e} from the model without"


def _cannot_compile(error: Exception) -> bool:
    """Whether torch lacks what it needs: a compiler, Triton, or support for this Python."""
    return any(
        word in f"{type(error).__name__} {error}".lower() for word in ("compiler", "triton", "dynamo", "backend")
    )


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)[:160]


def resumes(device: str) -> str:
    """Saved in the middle and loaded again, a training with memory and scores ends at the same bits."""

    def begin() -> tuple[Training, SelectiveBatchSampler]:
        return Training(network(device), LookSAM(0.05)), SelectiveBatchSampler(
            SAMPLES, 16, AUSampling(0.5, ramp=0), seed=3
        )

    def epoch(training: Training, sampler: SelectiveBatchSampler) -> None:
        for chosen in sampler:
            index = torch.tensor(chosen)
            here = index.to(training.x.device)
            sampler.update(training.opt.backward(training.losses, training.x[here], training.y[here], index=index))
            training.opt.step()
            training.opt.zero_grad()

    whole, sampler = begin()
    epoch(whole, sampler)
    file = io.BytesIO()
    torch.save([whole.model.state_dict(), whole.opt.state_dict(), sampler.state_dict()], file)
    epoch(whole, sampler)
    again, later = begin()
    file.seek(0)
    model, opt, scores = torch.load(file, map_location=device, weights_only=True)
    again.model.load_state_dict(model)
    again.opt.load_state_dict(opt)
    later.load_state_dict(scores)
    epoch(again, later)
    if not all(torch.equal(a, b) for a, b in zip(whole.state(), again.state(), strict=True)):
        raise AssertionError("the resumed training ended at other weights")
    return "to the last bit"


def workers(device: str) -> str:
    """Two loading processes hand out the batches that one process hands out, and the scores arrive."""
    training = Training(network(device), SAM(0.05))
    seen: list[list[list[int]]] = []
    for count in (0, 2):
        x, y = data()
        sampler = SelectiveBatchSampler(SAMPLES, 16, AUSampling(0.5, ramp=0), seed=5)
        loader = DataLoader(Indexed(TensorDataset(x, y)), batch_sampler=sampler, num_workers=count)
        batches = []
        own = copy.deepcopy(training.model.state_dict())
        for _ in range(2):
            for x_, y_, index in loader:
                batches.append(index.tolist())
                feedback = training.opt.backward(training.losses, x_.to(device), y_.to(device), index=index)
                sampler.update(feedback)
                training.opt.zero_grad()
        training.model.load_state_dict(own)
        if not bool((sampler.scores.count > 0).all()):
            raise AssertionError(f"with {count} workers some samples have no score after a whole epoch")
        seen.append(batches)
    if seen[0] != seen[1]:
        raise AssertionError("with two workers the batches are others than with none")
    return f"{len(seen[0])} equal batches"


def two_processes(device: str) -> str:
    """Two processes, each on its half of the batch, take the steps of one process on the whole."""
    kind = torch.device(device).type
    if kind == "cuda" and torch.cuda.device_count() < 2:
        raise SkipCheckError("there is one CUDA device; two processes need two")
    if kind not in ("cpu", "cuda"):
        raise SkipCheckError(f"torch has no process groups on {kind}")
    if not torch.distributed.is_available():
        raise SkipCheckError("this torch is built without torch.distributed")
    apart = processes.compare_with_one(kind)
    if not apart < 1e-4:
        raise AssertionError(f"the weights are {apart:.1e} away from those of one process")
    return f"{'nccl' if kind == 'cuda' else 'gloo'}, {apart:.0e} from one process"


def all_checks() -> dict[str, Check]:
    """Every check by its name, in the order of the table."""
    return {f"{name}: the steps of float64": partial(same_as_float64, name) for name in METHODS} | {
        "an error in any pass": restores_after_an_error,
        "mixed precision": mixed_precision,
        "resume": resumes,
        "sampler with workers": workers,
        "two processes": two_processes,
        "torch.compile": compiled,  # the slowest last
    }
