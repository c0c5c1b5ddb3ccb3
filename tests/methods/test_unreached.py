"""Parameters that a batch, or a pass of it, does not reach."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ausam import ASAM, ESAM, GSAM, METHODS, SAM, VSAM, FriendlySAM, LookSAM, SharpnessAware
from tests.helpers import VARIANTS, data, losses_of, make


@pytest.mark.parametrize("name", [*METHODS, *VARIANTS])
def test_a_remembered_vector_does_not_move_what_the_batch_does_not_reach(name):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = nn.ModuleList([nn.Linear(4, 3), nn.Linear(4, 3)])

        def forward(self, x, which):
            return self.branches[which](x)

    torch.manual_seed(0)
    model = Branches()
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9), make(name), model)

    def losses(x, y, which):
        z = model(x, which)
        return F.cross_entropy(z, y, reduction="none"), z

    for step, which in enumerate((0, 1, 0, 1, 1)):
        opt.backward(losses, *data(step), which, index=torch.arange(8))
        reached = [p.grad is not None for p in model.parameters()]
        assert reached == [which == 0] * 2 + [which == 1] * 2
        opt.step()
        opt.zero_grad()


@pytest.mark.parametrize("method", [SAM(0.3), ASAM(0.3), FriendlySAM(0.3), GSAM(0.3), LookSAM(0.3), VSAM(0.3)])
def test_what_only_the_first_pass_reaches_gets_no_gradient(method):
    """As with SAM. GSAM would otherwise climb there: minus alpha times a gradient."""

    class Forgetful(nn.Module):
        def __init__(self):
            super().__init__()
            self.always, self.once, self.calls = nn.Linear(4, 3), nn.Linear(4, 3), 0

        def forward(self, x):
            self.calls += 1
            return self.always(x) + (self.once(x) if self.calls == 1 else 0)

    torch.manual_seed(0)
    model = Forgetful()
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.2), method, model)
    opt.backward(losses_of(model), *data())
    assert model.calls == 2
    assert all(p.grad is not None for p in model.always.parameters())
    assert all(p.grad is None for p in model.once.parameters())


def test_esam_draws_among_the_tensors_that_have_a_gradient():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(20)])
            self.used = nn.Linear(4, 3)

        def forward(self, x):
            return self.used(x)

    torch.manual_seed(0)
    model = Half()
    x, y = data()
    for seed in range(10):
        model.zero_grad()
        base = torch.optim.SGD(model.parameters(), lr=0.2)
        opt = SharpnessAware(base, ESAM(0.3, beta=0.001, gamma=1), model, seed=seed)
        feedback = opt.backward(losses_of(model), x, y)
        assert (feedback.sharpness > 0).any()
        assert all(p.grad is None for p in model.unused)
