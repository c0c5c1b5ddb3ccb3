"""Buffers of unusual kinds: views that cannot be written, tensors of inference mode, lazy modules, BatchNorm of one."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ausam import METHODS, SAM, SharpnessAware
from tests.helpers import make

X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])


class Odd(nn.Module):
    """BatchNorm beside buffers that nobody can write."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.register_buffer("expanded", torch.ones(1).expand(5))
        with torch.inference_mode():
            self.register_buffer("inferred", torch.full((5,), 2.0))
        self.register_buffer("nothing", None)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            self.count += 1
        return self.last(self.norm(self.first(x)) * self.expanded)


def train(model, method, steps=3):
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), method, model)

    def losses(x, y):
        z = model(x)
        return F.cross_entropy(z, y, reduction="none"), z

    for _ in range(steps):
        opt.backward(losses, X, Y, index=torch.arange(6))
        opt.step()
        opt.zero_grad()
    return opt


@pytest.mark.parametrize("name", METHODS)
def test_buffers_that_cannot_be_written_are_left_alone(name):
    torch.manual_seed(0)
    model = Odd()
    train(model, make(name))
    assert int(model.count) == int(model.norm.num_batches_tracked) == 3
    assert model.expanded.tolist() == [1.0] * 5
    assert model.inferred.tolist() == [2.0] * 5


@pytest.mark.parametrize("name", METHODS)
def test_lazy_modules_are_made_by_the_first_step(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.LazyBatchNorm1d(), nn.Linear(5, 3))
    train(model, make(name))
    assert type(model[1]) is nn.BatchNorm1d
    assert int(model[1].num_batches_tracked) == 3
    assert model[1].running_mean.abs().sum() > 0


def test_a_single_sample_and_batchnorm_name_the_remedy():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), SAM(0.1), model)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel") as error:
        opt.backward(lambda x, y: F.cross_entropy(model(x), y, reduction="none"), X[:1], Y[:1])
    assert any("min_batch=2" in note for note in error.value.__notes__)
    with pytest.raises(ValueError, match="something else") as error:
        opt.backward(lambda x, y: (_ for _ in ()).throw(ValueError("something else")), X, Y)
    assert not hasattr(error.value, "__notes__")
