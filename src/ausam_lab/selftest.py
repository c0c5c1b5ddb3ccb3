"""``ausam selftest``: does the library do on this device what it does on the CPU? Needs nothing but torch."""

from __future__ import annotations

import argparse
import io
import platform
import sys
import unittest
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.testing import assert_close

from ausam import METHODS, SAM, AUSampling, LookSAM, Method, SelectiveBatchSampler, SharpnessAware, __version__
from ausam.common.random import generator
from ausam_lab.names.lookup import device as available

ABOUT = (
    "Check on a device of yours that every method takes the steps that it takes in float64 on the CPU, mixed "
    "precision, and a sampler saved and loaded. The output can be pasted into an issue. The exit code is 1 if a check "
    "failed."
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
        self.x = torch.randn(SAMPLES, FEATURES, generator=rng, dtype=torch.float64).to(device, dtype)
        self.y = torch.randint(CLASSES, (SAMPLES,), generator=rng).to(device)
        base = torch.optim.SGD(self.network.parameters(), lr=0.05, momentum=0.9)
        self.opt = SharpnessAware(base, method or SAM(0.05), self.network)

    def losses(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Per-sample losses, and the outputs."""
        z = self.network(x)
        return F.cross_entropy(z, y, reduction="none"), z

    def steps(self, batches: Iterable[Tensor], sampler: SelectiveBatchSampler | None = None) -> list[Tensor]:
        """Take a step on each of these batches of indices. The weights and buffers afterwards."""
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


class Checks(unittest.TestCase):
    """What has to hold on a device."""

    device = "cpu"

    def test_methods(self) -> None:
        """Every method: the weights that it has in float64 on the CPU."""
        for name, kind in METHODS.items():
            with self.subTest(name):
                method = kind(**ARGUMENTS.get(name, {}))
                exact = Training("cpu", method, torch.float64).steps(BATCHES)
                assert_close(Training(self.device, method).steps(BATCHES), exact, rtol=1e-3, atol=1e-4)

    def test_mixed_precision(self) -> None:
        """Autocast, with a GradScaler for float16: near the weights of float32."""
        kind = torch.device(self.device).type
        exact = Training(self.device).steps(BATCHES)
        for half in (torch.float16,) if kind == "mps" else (torch.float16, torch.bfloat16):  # as torch allows
            with self.subTest(half):
                assert_close(_mixed_precision(self.device, half), exact, rtol=0.02, atol=0.02)

    def test_resuming(self) -> None:
        """Method and sampler saved in the middle and loaded again: the same bits."""

        def begin() -> tuple[Training, SelectiveBatchSampler]:
            sampler = SelectiveBatchSampler(SAMPLES, BATCH, AUSampling(0.5, ramp=0), seed=3)
            return Training(self.device, LookSAM(0.05)), sampler

        (whole, sampler), (again, later) = begin(), begin()
        whole.steps(map(torch.tensor, sampler), sampler)
        file = io.BytesIO()
        torch.save([part.state_dict() for part in (whole.network, whole.opt, sampler)], file)
        file.seek(0)
        saved = torch.load(file, map_location=self.device, weights_only=True)
        again.network.load_state_dict(saved[0])
        again.opt.load_state_dict(saved[1])
        later.load_state_dict(saved[2])
        end = whole.steps(map(torch.tensor, sampler), sampler)
        assert_close(again.steps(map(torch.tensor, later), later), end, rtol=0, atol=0)


def _mixed_precision(device: str, half: torch.dtype) -> list[Tensor]:
    """The weights after a few steps of SAM under autocast."""
    kind, training = torch.device(device).type, Training(device)
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
    return training.state()


def main(argv: list[str]) -> int:
    """``ausam selftest`` without the packages that the rest of the command line needs."""
    parser = argparse.ArgumentParser(prog="ausam selftest", description=ABOUT)
    text = "cpu, cuda, cuda:0, mps, xpu, or auto for cuda if there is one (default: auto)"
    parser.add_argument("--device", default="auto", help=text)
    try:
        Checks.device = available(parser.parse_args(argv).device)
    except ValueError as error:
        sys.stderr.write(f"ausam: {error}\n")
        return 2
    kind = torch.cuda.get_device_name(Checks.device) if Checks.device.startswith("cuda") else platform.processor()
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}"
    sys.stdout.write(f"```\nausam {__version__} selftest: {Checks.device} ({kind}), {versions}\n")
    checks = unittest.defaultTestLoader.loadTestsFromTestCase(Checks)
    result = unittest.TextTestRunner(sys.stdout, verbosity=2, warnings="ignore").run(checks)
    sys.stdout.write("```\n")
    return int(not result.wasSuccessful())
