"""What a method remembers belongs to its parameters: by name, also after saving, copying and pickling."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ausam import AESAM, FriendlySAM, LookSAM, SharpnessAware
from ausam.optimizer.parameters import Memory
from tests.helpers import make

X, Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 1, 2])
REMEMBER = {
    "FriendlySAM": lambda: FriendlySAM(0.1),
    "LookSAM": lambda: LookSAM(0.1, k=3),
    "VSAM": lambda: make("VSAM"),
    "MESA": lambda: make("MESA"),
    "AE-LookSAM": lambda: AESAM(LookSAM(0.1, k=3), total_steps=20),
}


def saved(opt, model):
    """A new optimizer of the same model, with what the old one saved."""
    again = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), opt.method, model)
    again.load_state_dict(copy.deepcopy(opt.state_dict()))
    return again, model


def deepcopied(opt, model):
    again, model = copy.deepcopy((opt, model))
    return again, model


def pickled(opt, model):
    return pickle.loads(pickle.dumps((opt, model)))


def network():
    """Three layers of one shape: an entry of one fits another."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def steps(opt, model, n):
    def losses(x, y):
        z = model(x)
        return F.cross_entropy(z, y, reduction="none"), z

    for _ in range(n):
        opt.backward(losses, X, Y)
        opt.step()
        opt.zero_grad()


@pytest.mark.parametrize("how", [saved, deepcopied, pickled], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", REMEMBER)
def test_a_layer_that_is_frozen_or_thawed_begins_the_memory_afresh(name, how):
    """Layer 0 is exchanged for layer 4: as many parameters of the same shapes, but others."""
    model = network()
    model[4].requires_grad_(False)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), REMEMBER[name](), model)
    steps(opt, model, 4)
    again, twin = how(opt, model)
    assert again._memory.values.keys() == opt._memory.values.keys()
    fresh, expected = how(opt, model)
    fresh._memory = Memory()
    for m in (twin, expected):
        m[0].requires_grad_(False)
        m[4].requires_grad_(True)
    fresh.steps = again.steps
    steps(again, twin, 3)
    if expected is not twin:
        steps(fresh, expected, 3)
        for p, q in zip(twin.parameters(), expected.parameters(), strict=True):
            assert torch.equal(p, q)
    assert again._memory.owners == [f"{i}.{kind}" for i in (2, 4) for kind in ("weight", "bias")]


def test_the_memory_survives_a_wrapper_around_the_model():
    """The names are those without the wrapper, so a compiled model resumes an ordinary one's memory."""
    model = network()
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), FriendlySAM(0.1), model)
    steps(opt, model, 2)
    compiled = torch.compile(model, backend="eager")
    again = SharpnessAware(torch.optim.SGD(compiled.parameters(), lr=0.1), FriendlySAM(0.1), compiled)
    again.load_state_dict(opt.state_dict())
    steps(again, compiled, 1)
    assert again._memory.owners == opt._memory.owners


def test_looksam_remembers_the_whole_step_not_its_last_micro_batch():
    """Against the formula written out for two micro-batches: g_v is made of the sums over both."""
    rho, alpha, lr, parts = 0.3, 0.7, 0.1, list(zip(X.double().chunk(2), Y.chunk(2), strict=True))
    model = network().double()
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=lr), LookSAM(rho, k=2, alpha=alpha), model)
    twin = network().double()
    w = nn.utils.parameters_to_vector(twin.parameters()).detach()

    def slow_gradient(w, x, y):
        nn.utils.vector_to_parameters(w, twin.parameters())
        gradients = torch.autograd.grad(F.cross_entropy(twin(x), y) / 2, list(twin.parameters()))
        return torch.cat([g.flatten() for g in gradients])

    for step in range(4):
        for x, y in parts:
            opt.backward(
                lambda x, y: F.cross_entropy(model(x), y, reduction="none"),
                x,
                y,
                backward=lambda loss: (loss / 2).backward(),
            )
        opt.step()
        opt.zero_grad()
        plain = [slow_gradient(w, x, y) for x, y in parts]
        if step % 2 == 0:
            sharp = [slow_gradient(w + rho * g / g.norm(), x, y) for g, (x, y) in zip(plain, parts, strict=True)]
            g, g_s = sum(plain), sum(sharp)
            vertical = g_s - (g_s @ g) / (g @ g) * g
            w = w - lr * g_s
        else:
            w = w - lr * sum(g + alpha * g.norm() / vertical.norm() * vertical for g in plain)
        ours = nn.utils.parameters_to_vector(model.parameters()).detach()
        torch.testing.assert_close(ours, w, rtol=0, atol=1e-10)
