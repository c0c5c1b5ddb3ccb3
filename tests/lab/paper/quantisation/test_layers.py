"""Quantised layers: what they see and what integers compute."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ausam import METHODS, SharpnessAware
from ausam_lab.data.catalogue import resolve
from ausam_lab.networks.build import build
from ausam_lab.paper.quantisation import QuantConv2d, QuantLinear, extremes, grid, quantize, weight_on_grid


def layers(model):
    return {k: m for k, m in model.named_modules() if isinstance(m, QuantConv2d | QuantLinear)}


def test_names_and_bits_and_what_is_left_alone():
    model = build("resnet18-w8", 10, 3)
    before = copy.deepcopy(model.state_dict())
    quantised = quantize(model, bits=4)
    assert not layers(model)  # a copy was made
    assert [k for k, _ in quantised.named_parameters()] == [k for k, _ in model.named_parameters()]
    new = set(quantised.state_dict()) - set(before)
    assert new == {f"{k}.inputs.{b}" for k in layers(quantised) for b in ("low", "high", "seen")}
    assert all(torch.equal(quantised.state_dict()[k], v) for k, v in before.items())
    bits = {k: m.inputs.bits for k, m in layers(quantised).items()}
    assert len(bits) == 21  # 17 convolutions, 3 projections, 1 linear
    assert bits.pop("features.0") == bits.pop("head") == 8
    assert set(bits.values()) == {4}
    x = torch.randn(4, 3, 32, 32)
    quantised.load_state_dict(before, strict=False)
    wide = quantize(model, bits=8)  # 8 bits hardly change what the network answers, 4 do
    near, far = ((m.train()(x) - model.train()(x)).norm() for m in (wide, quantised))
    assert near < 0.1 * model(x).norm()
    assert far > 2 * near


def test_layers_of_another_class_are_left_and_told(caplog):
    class Own(nn.Linear):
        pass

    model = quantize(nn.Sequential(nn.Linear(3, 3), Own(3, 3)))
    assert list(layers(model)) == ["0"]
    assert "Not quantised, because they are subclasses of Conv2d or Linear: 1." in caplog.text
    with pytest.raises(ValueError, match="ReLU has no full-precision Conv2d or Linear layer to quantise"):
        quantize(nn.ReLU())
    with pytest.raises(ValueError, match=r"bits is 1\. Use 2 <= bits <= 8"):
        quantize(model, bits=1)
    with pytest.raises(ValueError, match=r"quantize is 1. It must be 0, or a number of bits from 2 to 8"):
        resolve(quantize=1)


def test_a_layer_used_twice_is_quantised_once():
    shared = nn.Linear(3, 3)
    model = quantize(nn.Sequential(nn.Linear(3, 3), shared, nn.ReLU(), shared, nn.Linear(3, 2)))
    assert model[1] is model[3]
    model(torch.randn(4, 3))
    assert model[1].inputs.seen == 2


@pytest.fixture(scope="module")
def trained():
    """Small networks after some steps of SAM in 4 bits, in eval mode, and a batch of their data."""
    networks = {}
    for name, channels, size in (("resnet-tiny", 1, 8), ("mobilenetv1-cifar-quarter", 3, 16)):
        torch.manual_seed(0)
        model = quantize(build(name, 10, channels))
        opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9), METHODS["SAM"](), model)
        x, y = torch.randn(16, channels, size, size), torch.arange(16) % 10
        for _ in range(4):
            opt.backward(lambda x, y, model=model: F.cross_entropy(model(x), y, reduction="none"), x, y)
            opt.step()
            opt.zero_grad()
        networks[name] = model.eval(), x
    return networks


@pytest.fixture(params=["resnet-tiny", "mobilenetv1-cifar-quarter"])
def case(trained, request):
    return trained[request.param]


def seen_by(model, x):
    """What goes in and out of every quantised layer: {name: (its input, quantised input, quantised weight, output)}."""
    seen, hooks = {}, []
    for name, layer in layers(model).items():
        w = layer.weight.detach()
        seen[name] = {"weight": (w, weight_on_grid(w, layer.inputs.bits))}
        for what, module in (("input", layer.inputs), ("output", layer)):

            def keep(_, inputs, output, name=name, what=what):
                seen[name][what] = (inputs[0].detach(), output.detach())

            hooks.append(module.register_forward_hook(keep))
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return seen


def test_weights_and_activations_have_at_most_sixteen_values(case):
    model, x = case
    layers = seen_by(model, x)
    ends = (next(iter(layers)), list(layers)[-1])
    most = {16: 0, 256: 0}
    for name, tensors in layers.items():
        for what in ("input", "weight"):
            before, after = tensors[what]
            limit, count = 256 if name in ends else 16, len(after.unique())
            assert count <= limit, (name, what)
            assert len(before.unique()) > count
            assert not after[before == 0].any()  # zero stays zero
            most[limit] = max(most[limit], count)
    assert most[16] == 16
    assert most[256] > 100


def integer_layer(layer, x):
    """The layer in integers: q of inputs and weights, sums of products in int64, one multiplication at the end."""
    (sx, zx), (sw, zw) = layer.inputs.grid(), grid(*extremes(layer.weight), layer.inputs.bits)
    top = 2**layer.inputs.bits - 1
    qx = (torch.round(x / sx).long() + zx).clamp(0, top) - zx
    qw = (torch.round(layer.weight.detach() / sw).long() + zw).clamp(0, top) - zw
    assert qx.dtype == qw.dtype == torch.int64
    if isinstance(layer, nn.Linear):
        total = qx @ qw.T
    else:
        p, k, s = layer.padding[0], layer.kernel_size[0], layer.stride[0]
        padded = F.pad(qx, (p, p, p, p))  # an integer 0 here is the real 0
        patches = padded.unfold(2, k, s).unfold(3, k, s)  # n, channels, h, w, k, k
        n, c, h, w = patches.shape[:4]
        per = c // layer.groups
        groups = patches.reshape(n, layer.groups, per, h, w, k, k)
        kernels = qw.reshape(layer.groups, -1, per, k, k)
        total = torch.einsum("ngchwij,gocij->ngohw", groups, kernels).reshape(n, -1, h, w)
    assert total.dtype == torch.int64
    out = total.double() * (sx.double() * sw.double())
    if layer.bias is not None:
        out = out + (layer.bias if isinstance(layer, nn.Linear) else layer.bias[:, None, None]).detach()
    return out


def test_true_integers_give_the_same_layer(case):
    model, x = case
    for name, tensors in seen_by(model, x[:4]).items():
        before = tensors["input"][0]
        expected = integer_layer(layers(model)[name], before)
        torch.testing.assert_close(tensors["output"][1].double(), expected, rtol=1e-5, atol=1e-5)
