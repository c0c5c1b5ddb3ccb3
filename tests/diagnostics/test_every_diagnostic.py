"""Every diagnostic leaves the model as it was, is fixed by its seed, and does not depend on the chunk size."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from ausam import diagnostics as dg
from tests.helpers import losses_of

EVERY = {
    "hessian_eigenvalues": lambda m, f, x, y, c: dg.hessian_eigenvalues(m, f, [(x, y)], 2, steps=12, chunk=c),
    "hessian_trace": lambda m, f, x, y, c: dg.hessian_trace(m, f, [(x, y)], probes=5, chunk=c),
    "sharpness": lambda m, f, x, y, c: dg.sharpness(m, f, [(x, y)], [0.1, 0.3], m=4, adaptive=True, chunk=c),
    "loss_line": lambda m, f, x, y, c: dg.loss_line(m, f, [(x, y)], points=5, chunk=c),
    "loss_surface": lambda m, f, x, y, c: dg.loss_surface(m, f, [(x, y)], points=3, chunk=c),
}


def plain(result):
    """The numbers of a result in a row."""
    if isinstance(result, torch.Tensor):
        return result.flatten().tolist()
    if dataclasses.is_dataclass(result):
        return plain(list(dataclasses.asdict(result).values()))
    if isinstance(result, (list, tuple)):
        return [v for item in result for v in plain(item)]
    if isinstance(result, dict):
        return plain(list(result.values()))
    return [] if isinstance(result, str) or result is None else [float(result)]


@pytest.mark.parametrize("name", EVERY)
def test_leaves_the_model_as_it_was(conv, name):
    model, losses, x, y = conv
    model[2].eval()  # flags are those of each module
    model[0].bias.requires_grad_(False)
    for p in model.parameters():
        p.grad = torch.rand_like(p)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    tensors = [id(t) for t in (*model.parameters(), *model.buffers())]
    addresses = [t.data_ptr() for t in (*model.parameters(), *model.buffers())]
    grads = [(p.grad, p.grad.clone()) for p in model.parameters()]
    flags = [(m.training, [p.requires_grad for p in m.parameters()]) for m in model.modules()]
    rng = torch.get_rng_state()
    EVERY[name](model, losses, x, y, 4)
    assert torch.get_rng_state().equal(rng)
    assert all(v.equal(before[k]) for k, v in model.state_dict().items())
    assert [id(t) for t in (*model.parameters(), *model.buffers())] == tensors
    assert [t.data_ptr() for t in (*model.parameters(), *model.buffers())] == addresses
    assert all(p.grad is g and g.equal(saved) for p, (g, saved) in zip(model.parameters(), grads, strict=True))
    assert [(m.training, [p.requires_grad for p in m.parameters()]) for m in model.modules()] == flags
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", EVERY)
def test_equal_for_every_chunk_and_at_every_call(conv, name):
    model, losses, x, y = conv
    first = plain(EVERY[name](model, losses, x, y, 64))
    assert first
    torch.rand(3)  # the state of torch's own generator does not matter
    assert plain(EVERY[name](model, losses, x, y, 64)) == pytest.approx(first, rel=0, abs=0)
    for chunk in (1, 3):
        again = plain(EVERY[name](model, losses, x, y, chunk))
        assert again == pytest.approx(first, rel=1e-6, abs=1e-9), chunk


def test_seeds_matter(conv):
    model, losses, x, y = conv
    for function, options in (
        (dg.hessian_trace, {"probes": 5}),
        (dg.loss_line, {"points": 5}),
        (dg.sharpness, {"rho": [0.1]}),
    ):
        assert function(model, losses, [(x, y)], seed=0, **options) != function(
            model, losses, [(x, y)], seed=1, **options
        )


def test_restores_after_an_error(conv):
    model, _losses, x, y = conv

    def failing(x, y):
        model[1].running_mean.add_(1)  # what a forward may do
        torch.rand(1)
        raise KeyError("mine")

    before, rng = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    with pytest.raises(KeyError, match="mine"):
        dg.sharpness(model, failing, [(x, y)], 0.1)
    assert all(v.equal(before[k]) for k, v in model.state_dict().items())
    assert all(m.training for m in model.modules())
    assert torch.get_rng_state().equal(rng)


def test_buffers_that_a_forward_replaces_or_fills():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2))
            self.register_buffer("seen", torch.tensor(float("nan")))
            self.register_buffer("range", torch.zeros(0))

        def forward(self, x):
            self.seen = torch.tensor(1.0)
            self.range.resize_(2).copy_(x[0].detach())
            return x @ self.w

    model = Counting()
    seen = model.seen
    dg.sharpness(model, lambda x: model(x), [(torch.ones(3, 2),)], 0.1)
    assert model.seen is seen
    assert bool(model.seen.isnan())
    assert model.range.shape == (0,)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    "other",
    [
        lambda model: losses_of(copy.deepcopy(model)),
        lambda model: lambda x, y: x.flatten(1).sum(1),
        lambda model: torch.no_grad()(losses_of(model)),
    ],
    ids=["copy", "constant", "no_grad"],
)
def test_a_loss_that_gives_the_model_no_gradient_is_refused(conv, name, other):
    model, _, x, y = conv
    with pytest.raises(ValueError, match="not from a copy"):
        EVERY[name](model, other(model), x, y, 4)
    assert all(m.training for m in model.modules())


@pytest.mark.parametrize("name", EVERY)
def test_a_gradient_of_zero_is_not_a_missing_one(net, name):
    model, losses, x, y = net
    EVERY[name](model, lambda x, y: 0 * losses(x, y), x, y, 4)


@pytest.mark.parametrize("name", ["sharpness", "loss_line"])
def test_inside_inference_mode(conv, name):
    model, losses, x, y = conv
    expected = EVERY[name](model, losses, x, y, 4)
    with torch.inference_mode():
        assert EVERY[name](model, losses, x, y, 4) == expected
        assert torch.is_inference_mode_enabled()


def test_what_has_no_fixed_loss_is_refused(net):
    model, losses, x, y = net

    def trains(x, y):
        model.train()
        return losses(x, y)

    with pytest.raises(RuntimeError, match=r"Remove model.train\(\)"):
        dg.sharpness(model, trains, [(x, y)], 0.1)
    batchnorm = nn.BatchNorm1d(4, track_running_stats=False).double()
    with pytest.raises(ValueError, match="track_running_stats=True"):
        dg.sharpness(batchnorm, lambda x, y: batchnorm(x).sum(1), [(x, y)], 0.1)
    with pytest.raises(ValueError, match="requires a gradient"):
        dg.sharpness(model.requires_grad_(False), losses, [(x, y)], 0.1)


def test_results_become_json(net):
    import json

    model, losses, x, y = net
    result = dg.sharpness(model, losses, [(x, y)], 0.1)
    assert json.loads(json.dumps(dataclasses.asdict(result)))["samples"] == 18


def test_batches_of_another_form_are_refused(net):
    model, losses, x, y = net
    with pytest.raises(ValueError, match="consumed once"):
        dg.sharpness(model, losses, iter([]), 0.1)
    with pytest.raises(TypeError, match=r"\[\(x, y\)\], not \(x, y\)"):
        dg.sharpness(model, losses, (x, y), 0.1)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("kind", [np.asarray, list])
def test_batches_are_cut_as_by_backward(net, name, kind):
    model, losses, x, y = net
    given = EVERY[name](model, lambda x, y: losses(x, torch.as_tensor(y)), x, kind(y.tolist()), 4)
    assert plain(given) == plain(EVERY[name](model, losses, x, y, 4))


def test_compiled_models(net):
    model, _, x, y = net
    fast = torch.compile(model, backend="eager")

    def losses(x, y):
        return torch.nn.functional.cross_entropy(fast(x), y, reduction="none")

    compiled = dg.hessian_eigenvalues(fast, losses, [(x, y)])
    assert plain(compiled) == pytest.approx(plain(dg.hessian_eigenvalues(model, losses_of(model), [(x, y)])))


def test_attention_has_curvature():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
    x = torch.randn(3, 4, 8)
    result = dg.hessian_eigenvalues(model, lambda x: model(x).square().mean((1, 2)), [(x,)], steps=30)
    assert result.values[0] > 0
