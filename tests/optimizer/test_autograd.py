"""Back-propagation without torch.autograd.backward's checks: the same gradients, the same refusals."""

import pytest
import torch

from ausam.optimizer import autograd


class Marked(torch.Tensor):
    """A tensor of another type, as some libraries return them."""


def leaf_and_losses(kind=torch.Tensor):
    w = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    return w, (w.as_subclass(kind) if kind is not torch.Tensor else w).square() * torch.tensor([1.0, 2.0, 4.0])


@pytest.mark.parametrize("kind", [torch.Tensor, Marked])
@pytest.mark.parametrize("lacks_engine", [False, True])
def test_it_is_torch_autograd_backward(kind, lacks_engine, monkeypatch):
    if lacks_engine:
        monkeypatch.setattr(autograd, "_run_engine", None)
    share = torch.tensor([0.5, 0.25, 0.125])
    w, losses = leaf_and_losses(kind)
    w.grad = torch.ones(3)
    autograd.backward(losses, share)
    other, losses = leaf_and_losses()
    other.grad = torch.ones(3)
    torch.autograd.backward(losses, share)
    assert torch.equal(w.grad, other.grad)
    assert w.grad.tolist() == [2.0, -1.0, 4.0]


def test_the_graph_is_freed():
    _, losses = leaf_and_losses()
    autograd.backward(losses, torch.ones(3))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        autograd.backward(losses, torch.ones(3))


def test_losses_without_a_graph_are_refused():
    with pytest.raises(RuntimeError, match="does not require grad"):
        autograd.backward(torch.ones(3), torch.ones(3))


def test_a_functorch_transform_is_refused_as_by_torch():
    def inside(x):
        w = torch.ones(3, requires_grad=True)
        autograd.backward(w * x, torch.ones(3))
        return x

    with pytest.raises(RuntimeError, match="inside a functorch transform"):
        torch.func.vmap(inside)(torch.ones(2, 3))
