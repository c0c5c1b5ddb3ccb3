"""ASAM, GSAM and WSAM against another library, step by step.

It takes its norms in float32 and subtracts e instead of copying w back, hence the tolerance.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from ausam import ASAM, GSAM, WSAM, Plain
from tests.methods.slow import LR, MOMENTUM, assert_path, batch, identical, network, ours

SGD = {"lr": LR, "momentum": MOMENTUM}
STEPS = 6


class Constant:
    """The radius of its GSAM comes from a scheduler object."""

    def step(self):
        return 0.3


def adaptive_sam(other, model):
    opt = other.SAM(model.parameters(), torch.optim.SGD, rho=0.8, adaptive=True, **SGD)

    def step(closure):
        opt.zero_grad()
        closure()
        opt.step(lambda: (opt.zero_grad(), closure())[1])

    return step


def gsam(alpha):
    def build(other, model):
        base = torch.optim.SGD(model.parameters(), **SGD)
        opt = other.GSAM(model.parameters(), base, model, Constant(), alpha=alpha)

        def step(closure):
            opt.set_closure(F.cross_entropy, *closure.batch)
            opt.step()

        return step

    return build


def wsam(gamma, decouple):
    def build(other, model):
        opt = other.WSAM(model, model.parameters(), torch.optim.SGD, rho=0.3, gamma=gamma, decouple=decouple, **SGD)

        def step(closure):
            opt.zero_grad()
            opt.step(closure)

        return step

    return build


class Closure:
    """Forward and backward of one batch."""

    def __init__(self, model, batch):
        self.model, self.batch = model, batch

    def __call__(self):
        x, y = self.batch
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


@pytest.mark.parametrize(
    ("method", "peer"),
    [
        (ASAM(0.8, eta=0, scaled="all"), adaptive_sam),
        *((GSAM(0.3, alpha), gsam(alpha)) for alpha in (0.0, 0.4, 0.9)),
        *((WSAM(0.3, gamma, decouple=d), wsam(gamma, d)) for gamma in (0.2, 0.5, 0.9) for d in (True, False)),
    ],
    ids=lambda v: "" if callable(v) else str(v),
)
def test_equals_pytorch_optimizers(method, peer):
    model = network(batchnorm=False)
    step = peer(pytest.importorskip("pytorch_optimizer"), model)
    path = []
    for number in range(STEPS):
        step(Closure(model, batch(number)))
        path.append([p.detach().clone() for p in model.parameters()])
    assert_path(ours(method, STEPS), path, tol=1e-6)
    assert not identical(path, ours(Plain(), STEPS))
