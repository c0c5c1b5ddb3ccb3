"""FunctionalSAM against a slow transcription of its formula, where it is SAM, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ausam import AESAM, RST, SAM, FunctionalSAM, Plain, SharpnessAware
from tests.helpers import data, losses_of, refused, with_logits
from tests.methods.slow import EXACT, GUARD, LR, D, batch, length, losses_at, network, plus, sgd


def outputs_at(w, x):
    return torch.tanh(x @ w[0].T + w[1]) @ w[2].T + w[3]


def slow_functional(w, x, y, rho, weight):
    """Sample by sample and output by output: the sum of v_ic * grad z_ic(w + e), v the slope of cross-entropy at w."""
    moved = plus(w, g := weighted_grad(w, x, y, weight), rho / (length(g) + GUARD))
    z = outputs_at(w, x)
    total = [torch.zeros_like(t) for t in w]
    for i in range(len(y)):
        v = z[i].exp() / z[i].exp().sum()
        v[y[i]] -= 1
        for c in range(z.shape[1]):
            inner = [t.detach().clone().requires_grad_() for t in moved]
            gradient = torch.autograd.grad(outputs_at(inner, x[i : i + 1])[0, c], inner)
            total = plus(total, gradient, float(weight[i] * v[c]) / len(y))
    return total, losses_at(moved, x, y)


def weighted_grad(w, x, y, weight):
    w = [t.detach().clone().requires_grad_() for t in w]
    return list(torch.autograd.grad((weight * losses_at(w, x, y)).mean(), w))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rho", [0.3, 0.05])
def test_equals_the_transcription(rho, weighted):
    model = network(batchnorm=False)
    opt = SharpnessAware(sgd(model), FunctionalSAM(rho), model)
    weight = torch.linspace(0.0, 2.0, 8, dtype=D) if weighted else torch.ones(8, dtype=D)
    for step in range(4):
        x, y = batch(step)
        w = [p.detach().clone() for p in model.parameters()]
        feedback = opt.backward(with_logits(model), x, y, weight=weight if weighted else None)
        slow, after = slow_functional(w, x, y, rho, weight)
        for p, g in zip(model.parameters(), slow, strict=True):
            torch.testing.assert_close(p.grad, g, **EXACT)
        torch.testing.assert_close(feedback.loss, losses_at(w, x, y), **EXACT)
        torch.testing.assert_close(feedback.perturbed, after, **EXACT)
        opt.step()
        opt.zero_grad()


def test_without_a_radius_it_is_the_base_optimizer():
    gradients = []
    for method in (FunctionalSAM(0.0), Plain()):
        model = network()
        opt = SharpnessAware(sgd(model), method, model)
        opt.backward(with_logits(model), *batch(0))
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


@pytest.mark.parametrize("linear", [True, False])
def test_where_the_loss_is_linear_in_the_outputs_it_is_sam(linear):
    paths = []
    for method in (FunctionalSAM(0.3), SAM(0.3)):
        model = network(batchnorm=False)
        opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=LR), method, model)

        def losses(x, y, model=model):
            z = model(x)
            return (z * (y[:, None] - 1)).sum(1) if linear else z.square().sum(1), z

        for step in range(5):
            opt.backward(losses, *batch(step))
            opt.step()
            opt.zero_grad()
        paths.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(*paths, rtol=0, atol=1e-12) == linear


def test_outputs_of_any_shape():
    """Sequences: the mean over the positions is the loss of a sample."""
    model = nn.Linear(4, 3).double()
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), FunctionalSAM(0.3), model)
    x, y = torch.randn(5, 7, 4, dtype=D, generator=torch.Generator().manual_seed(0)), torch.arange(35).view(5, 7) % 3

    def losses(x, y):
        z = model(x)
        return F.cross_entropy(z.transpose(1, 2), y, reduction="none").mean(1), z

    assert opt.backward(losses, x, y).sharpness.shape == (5,)
    w, b = (p.detach() for p in model.parameters())
    v = (x @ w.T + b).softmax(2) - F.one_hot(y, 3)
    torch.testing.assert_close(model.bias.grad, v.mean((0, 1)), **EXACT)  # the Jacobian of a linear layer is constant


def test_refuses_outputs_that_cannot_serve():
    model = network(batchnorm=False, dtype=torch.float32)
    opt = SharpnessAware(sgd(model), FunctionalSAM(), model)
    x, y = data()
    before = [p.detach().clone() for p in model.parameters()]
    for outputs, parts in (
        (lambda z: z.detach(), ("not computed from the outputs", "not detached")),
        (lambda z: (z,), ("are a tuple", "one row for each of the 8 samples")),
        (lambda z: z[:3], ("of shape (3, 3)", "one row for each of the 8 samples")),
        (lambda z: 2 * z, ("not computed from the outputs", "return F.cross_entropy")),
    ):

        def losses(x, y, outputs=outputs):
            z = model(x)
            return F.cross_entropy(z, y, reduction="none"), outputs(z)

        with refused(TypeError, "FunctionalSAM: ", *parts):
            opt.backward(losses, x, y)
        assert all(torch.equal(p, w) for p, w in zip(model.parameters(), before, strict=True))
    with refused(TypeError, "needs the model's outputs"):
        opt.backward(losses_of(model), x, y)


def test_inside_other_methods():
    assert RST(FunctionalSAM(), p=0.5).passes == (1.5, 1.5)
    for make in (lambda: RST(FunctionalSAM(), gamma=2.0), lambda: AESAM(FunctionalSAM(), total_steps=9)):
        with refused(ValueError, "inner is FunctionalSAM", "second(step, g)"):
            make()
