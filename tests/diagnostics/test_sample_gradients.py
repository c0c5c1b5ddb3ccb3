"""Per-sample gradients against closed forms and against a loop, and what is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ausam.diagnostics import sample_gradient_norms, sample_gradients
from tests.diagnostics.closed_forms import loop


def test_linear_regression_by_hand(linear):
    model, losses, x, y = linear
    residual = x @ model.weight[0].detach() - y
    result = sample_gradients(model, losses, x, y)
    torch.testing.assert_close(result, residual[:, None] * x, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sample_gradient_norms(model, losses, x, y), residual.abs() * x.norm(dim=1))


def test_logistic_regression_by_hand():
    torch.manual_seed(0)
    model = nn.Linear(3, 1).double()
    x, y = torch.randn(7, 3).double(), torch.randint(2, (7,)).double()
    result = sample_gradients(
        model, lambda x, y: F.binary_cross_entropy_with_logits(model(x)[:, 0], y, reduction="none"), x, y
    )
    pull = torch.sigmoid(model(x)[:, 0]) - y
    torch.testing.assert_close(result, torch.cat([pull[:, None] * x, pull[:, None]], dim=1))


@pytest.mark.parametrize("means", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_equal_to_a_loop_whatever_the_chunk(conv, means, chunk):
    model, losses, x, y = conv
    result = sample_gradients(model, losses, x, y, means=means, chunk=chunk)
    assert model.training
    model.eval()  # the stated rule: running statistics, no dropout
    torch.testing.assert_close(result, loop(model, losses, x, y), rtol=1e-9, atol=1e-11)


def test_the_mean_of_the_rows_is_the_gradient_of_the_batch(net):
    model, losses, x, y = net
    whole = torch.autograd.grad(losses(x, y).mean(), list(model.parameters()))
    expected = torch.cat([g.reshape(-1) for g in whole])
    torch.testing.assert_close(sample_gradients(model, losses, x, y).mean(0), expected)


def test_frozen_and_unreached_parameters():
    model = nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    model["b"].requires_grad_(False)
    x = torch.randn(3, 2)
    result = sample_gradients(model, lambda x: (model["a"](x) + model["b"](x))[:, 0], x)
    assert result.shape == (3, 6)  # a's three and the unused three
    assert not result[:, 3:].any()
    assert result[:, :2].equal(x)


def test_shared_parameters_count_once():
    layer = nn.Linear(2, 2, bias=False)
    model = nn.Sequential(layer, layer)
    x = torch.randn(3, 2)

    def losses(x):
        return model(x).sum(1)

    weight = layer.weight
    assert sample_gradients(model, losses, x).shape == (3, 4)
    assert layer.weight is weight
    torch.testing.assert_close(sample_gradients(model, losses, x), loop(model, lambda x, _: losses(x), x, x))


def test_falls_back_to_a_loop_where_vmap_cannot():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return torch.stack([v * self.w[0] if v > 0 else -2 * v * self.w[0] for v in x])

    model = Branching()
    x = torch.tensor([1.0, -3.0])
    assert sample_gradients(model, lambda x: model(x), x).tolist() == [[1.0], [6.0]]
    with pytest.raises(RuntimeError, match=r'cannot vectorise this model over samples .* Use means="loop"'):
        sample_gradients(model, lambda x: model(x), x, means="vmap")


def test_nested_batches_and_outputs(net):
    model, _, x, y = net

    def losses(batch):
        out = model(batch["x"])
        return F.cross_entropy(out, batch["y"], reduction="none"), out

    result = sample_gradients(model, losses, {"x": x, "y": y}, chunk=7)
    torch.testing.assert_close(result, loop(model, lambda x, y: losses({"x": x, "y": y})[0], x, y))


class TestRefused:
    def test_batchnorm_in_training_mode(self, conv):
        model, losses, x, y = conv

        def training(x, y):
            model.train()
            return losses(x, y)

        for means in ("auto", "vmap", "loop"):
            with pytest.raises(RuntimeError, match="loss_fn put the model into training mode"):
                sample_gradients(model, training, x, y, means=means)

    def test_batchnorm_without_statistics(self):
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, track_running_stats=False))
        with pytest.raises(ValueError, match=r"BatchNorm1d has no running statistics.* track_running_stats=True"):
            sample_gradients(model, lambda x: model(x).sum(1), torch.randn(4, 2))

    @pytest.mark.parametrize("means", ["vmap", "loop"])
    def test_samples_that_act_on_one_another(self, net, means):
        model, _, x, _ = net

        def contrast(x):
            out = model(x)
            return F.cross_entropy(out @ out.T, torch.arange(len(x)), reduction="none")

        with pytest.raises(
            ValueError, match=r"The loss of sample 0 is .* in its batch and .* on its own: samples affect one another"
        ):
            sample_gradients(model, contrast, x, means=means)

    def test_random_losses(self, net):
        model, losses, x, y = net
        with pytest.raises(ValueError, match="no randomness in loss_fn"):
            sample_gradients(model, lambda x, y: losses(x, y) * torch.rand(len(x)), x, y, means="loop")

    def test_a_mean_loss(self, net):
        model, losses, x, y = net
        with pytest.raises(TypeError, match=r'returned a scalar.*reduction="none"'):
            sample_gradients(model, lambda x, y: losses(x, y).mean(), x, y)

    def test_wrappers(self, net):
        model, losses, x, y = net

        class DistributedDataParallel(nn.Module):
            def __init__(self, module):
                super().__init__()
                self.module = module

        with pytest.raises(ValueError, match=r"wrapped in DistributedDataParallel.*model\.module"):
            sample_gradients(DistributedDataParallel(model), losses, x, y)

    def test_arguments(self, net):
        model, losses, x, y = net
        with pytest.raises(ValueError, match="chunk is 0"):
            sample_gradients(model, losses, x, y, chunk=0)
        with pytest.raises(ValueError, match="means is 'magic'"):
            sample_gradients(model, losses, x, y, means="magic")
        for p in model.parameters():
            p.requires_grad_(False)
        with pytest.raises(ValueError, match="no parameter that requires a gradient"):
            sample_gradients(model, losses, x, y)
