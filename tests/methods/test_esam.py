"""ESAM against a slow transcription of its formula, step by step, and the tensors and rows that it takes."""

from __future__ import annotations

import torch
from torch import nn

from ausam import ESAM, SharpnessAware
from tests.helpers import losses_of
from tests.methods.slow import (
    LR,
    batch,
)


def test_takes_only_tensors_that_have_a_gradient():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(20)])
            self.used = nn.Linear(4, 3)

        def forward(self, x):
            return self.used(x)

    torch.manual_seed(0)
    model = Half()
    x, y = batch(0)
    for seed in range(10):
        model.zero_grad()
        base = torch.optim.SGD(model.parameters(), lr=LR)
        opt = SharpnessAware(base, ESAM(0.3, beta=0.001, gamma=1), model, seed=seed)
        feedback = opt.backward(losses_of(model), x.float(), y)
        assert (feedback.sharpness > 0).any()
        assert all(p.grad is None for p in model.unused)
