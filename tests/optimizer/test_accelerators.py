"""A stand-in for accelerators: on torch's meta device, reading a number or mixing devices fails.

What a method reads from the device in each step is counted, too: nothing, but for AESAM's branch and VSAM's quota.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ausam import AESAM, METHODS, RST, SAM, LookSAM, SharpnessAware
from tests.helpers import make

CASES = {
    **{name: (lambda n=name: make(n)) for name in METHODS},
    "G-RST": lambda: RST(gamma=2.0),
    "AE-LookSAM": lambda: AESAM(LookSAM(), total_steps=60),
    "SAM-groups": lambda: SAM(m=4),
    "SAM-ascent": lambda: SAM(ascent=0.5),
}


class Device(TorchDispatchMode):
    """The meta device as one that can be read: counts each reading, and answers zero, whatever the number.

    Whatever else makes the host wait (a shape that depends on values, a comparison of values) fails on it.
    """

    def __init__(self):
        super().__init__()
        self.readings = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default and args[0].device.type == "meta":
            self.readings += 1
            return False if args[0].dtype == torch.bool else 0.0
        return func(*args, **(kwargs or {}))


def subject(name, nonfinite):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).to("meta")
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = SharpnessAware(base, CASES[name](), model, nonfinite=nonfinite)
    x, y = torch.randn(16, 4, device="meta"), torch.zeros(16, dtype=torch.int64, device="meta")

    def losses(x, y):
        z = model(x)
        return F.cross_entropy(z, y, reduction="none"), z

    def step():
        feedback = opt.backward(losses, x, y, index=torch.arange(16))
        opt.step()
        opt.zero_grad()
        return feedback

    return step


def readings(name, nonfinite, steps):
    """How often each of the steps reads from the device."""
    step = subject(name, nonfinite)
    counts = []
    for _ in range(steps):
        with Device() as device:
            feedback = step()
        assert feedback.loss.device.type == "meta"
        counts.append(device.readings)
    return counts


@pytest.mark.parametrize("name", CASES)
def test_a_step_reads_from_the_device_as_little_as_it_can(name):
    """Nothing else is read, and no tensor is mixed with one of another device: both would fail here."""
    steps = 24 if name == "VSAM" else 5 if "LookSAM" in name else 2  # LookSAM looks every four
    alone = readings(name, "ignore", steps)
    if name == "VSAM":
        assert max(alone) <= 2
        assert sum(n > 0 for n in alone) == 3  # 20 steps after the warm-up hold three windows of 6
    else:
        assert alone == [1 if name in ("AESAM", "AE-LookSAM") else 0] * steps
    assert readings(name, "skip", steps) == [n + 1 for n in alone]


def test_without_a_reading_the_meta_device_itself_is_enough():
    step = subject("SAM", "ignore")
    for _ in range(2):
        step()
