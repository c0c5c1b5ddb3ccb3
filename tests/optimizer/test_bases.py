"""Base optimizers that docs/models.md names: the weights are those of SAM by hand."""

import copy
import functools

import pytest
import torch
from torch.nn.functional import cross_entropy

from ausam import SAM, SharpnessAware
from tests.helpers import data, losses_of, network, same_weights

TORCH = {
    "AdamW, fused": functools.partial(torch.optim.AdamW, lr=1e-2, fused=True),
    "SGD, Nesterov": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "RMSprop": functools.partial(torch.optim.RMSprop, lr=1e-3),
    "NAdam": torch.optim.NAdam,
    "Adagrad": torch.optim.Adagrad,
    "Adafactor": torch.optim.Adafactor,
    "Muon": lambda params: torch.optim.Muon([p for p in params if p.dim() == 2]),
}
OTHERS = ("Lion", "Prodigy", "SOAP", "Lamb", "ScheduleFreeAdamW")


def compare(make):
    ours, theirs = network(), network()
    opt, base = SharpnessAware(make(ours.parameters()), SAM(rho=0.1), ours), make(theirs.parameters())
    for step in range(6):
        x, y = data(seed=step)
        opt.backward(losses_of(ours), x, y)
        opt.step()
        opt.zero_grad()
        by_hand(theirs, base, x, y)
    same_weights(ours, theirs)
    assert opt.steps == 6


def by_hand(model, base, x, y):
    """One step of SAM; the perturbation moves what the base trains, and BatchNorm keeps the first pass's statistics."""
    params = [p for g in base.param_groups for p in g["params"]]
    cross_entropy(model(x), y).backward()
    buffers, old = copy.deepcopy(dict(model.named_buffers())), [p.detach().clone() for p in params]
    norm = torch.stack([p.grad.norm(p=2) for p in params]).norm(p=2)
    with torch.no_grad():
        for p in params:
            p.add_(p.grad * (0.1 / norm))
    model.zero_grad()
    cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p, w in zip(params, old, strict=True):
            p.copy_(w)
        for name, b in model.named_buffers():
            b.copy_(buffers[name])
    base.step()
    model.zero_grad()


@pytest.mark.parametrize("name", TORCH)
def test_torchs(name):
    compare(TORCH[name])


@pytest.mark.parametrize("name", OTHERS)
def test_those_of_pytorch_optimizer(name):
    other = pytest.importorskip("pytorch_optimizer", reason="needs pytorch_optimizer, which the extra dev brings")

    def make(params):
        opt = getattr(other, name)(params)
        if hasattr(opt, "train"):  # schedule-free ones
            opt.train()
        return opt

    compare(make)
