import math
from itertools import pairwise

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from ausam.lab.networks.build import (
    FORECAST_MODELS,
    MODELS,
    POSE_MODELS,
    build,
    parameter_count,
)
from ausam.paper import catalogue
from ausam.paper.networks.mobilenet import MobileNet
from ausam.paper.networks.pyramidnet import Pyramidal, PyramidNet
from ausam.paper.networks.wideresnet import PreActivation, WideResNet

catalogue.register()

RESNETS = ["resnet-tiny", "resnet-small", "resnet18-w8", "resnet50-w8"]
SMALL = [*RESNETS, "wrn10-2", "pyramidnet14-24", "mobilenetv1-cifar-quarter"]

# Parameters by hand: stem, blocks (9ab a 3x3 convolution, 2b a BatchNorm), last layer.
RESNET18 = 29 * 64 + 36 * 64**2 + 8 * 64 + sum(32 * s * s + 10 * s for s in (128, 256, 512)) + 513 * 10
WRN = 432 + sum((10 * a + 63 * b) * b + 2 * a + 14 * b for a, b in pairwise((16, 160, 320, 640))) + 1280 + 6410
PYRAMID = 464 + sum(9 * b * (2 * b - 5) + 6 * b - 10 for b in range(21, 287, 5)) + 2 * 286 + 2870
COSTS = [9 * b * (2 * b - 5) * 4 ** (5 - k // 18) for k, b in enumerate(range(21, 287, 5))]  # of PYRAMID's blocks
SIZES = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
MOBILENET = 864 + 64 + sum(11 * a + a * b + 2 * b for a, b in pairwise(SIZES)) + 1025 * 10


# Multiply-adds (in millions) and the last feature map see what parameters do not: strides and resolutions.
@pytest.mark.parametrize(
    ("name", "published", "exact", "classes", "pixels", "final", "cost"),
    [
        ("resnet18", 11.17e6, RESNET18, 10, 32, 4, 555.4),
        ("resnet50", 23.5e6, 23_520_842, 200, 64, 8, None),
        ("wrn28-10", 36.5e6, WRN, 10, 32, 8, 5240),
        ("pyramidnet110-270", 28.3e6, PYRAMID, 10, 32, 8, sum(COSTS) / 1e6),  # 28,485,477; 0.65 % off
        ("mobilenetv1", 3.2e6, MOBILENET, 1000, 224, 7, 569),
        ("mobilenetv1-cifar", 3.2e6, MOBILENET, 10, 32, 2, None),
    ],
)
def test_published_size_and_cost(name, published, exact, classes, pixels, final, cost):
    assert parameter_count(name) == exact == pytest.approx(published, rel=0.007)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model, x = MODELS[name](classes, 3), torch.empty(1, 3, pixels, pixels)
        features = model.features(x)
        model.head(model.flatten(model.pool(features)))
    assert features.shape[2:] == (final, final)
    assert cost is None or counter.get_total_flops() / 2e6 == pytest.approx(cost, rel=1e-3)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("channels", "pixels"), [(1, 7), (1, 8), (3, 8), (1, 28), (3, 32), (3, 64)])
def test_output_shapes(name, channels, pixels):
    logits = build(name, 7, channels, seed=0)(torch.randn(2, channels, pixels, pixels))
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", SMALL)
def test_gradients_reach_every_parameter(name):
    # eval: with batch statistics a scale or bias that only meets further BatchNorms has gradient zero, and rightly so.
    model = build(name, 10, 3, seed=0).eval()
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    functional.cross_entropy(model(x), torch.arange(8)).backward()
    norms = {name: math.nan if p.grad is None else p.grad.norm().item() for name, p in model.named_parameters()}
    assert {name: norm for name, norm in norms.items() if not 1e-4 < norm < math.inf} == {}


@pytest.mark.parametrize("block", [PreActivation, Pyramidal])
def test_blocks_against_their_formula(block):
    layer, generator = block(4, 6, 2).eval(), torch.Generator().manual_seed(0)
    w = {name: torch.nn.init.normal_(p, generator=generator).detach() for name, p in layer.named_parameters()}
    x = torch.randn(2, 4, 5, 5, generator=generator)

    def bn(at, h):  # running mean 0, variance 1
        return h / math.sqrt(1 + 1e-5) * w[f"{at}.weight"].view(-1, 1, 1) + w[f"{at}.bias"].view(-1, 1, 1)

    def conv(at, h, stride=1):
        return functional.conv2d(h, w[f"{at}.weight"], stride=stride, padding=w[f"{at}.weight"].shape[-1] // 2)

    if block is PreActivation:
        a = bn("activate.0", x).relu()
        expected = conv("body.3", bn("body.1", conv("body.0", a, 2)).relu()) + conv("project", a, 2)
    else:
        expected = bn("body.5", conv("body.4", bn("body.2", conv("body.1", bn("body.0", x), 2)).relu()))
        for i, j in [(i, j) for i in range(3) for j in range(3)]:  # the two new channels get nothing
            expected[:, :4, i, j] += x[:, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean((2, 3))
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-4)


def test_build_depends_on_the_seed_alone():
    before = torch.get_rng_state()
    first = build("mobilenetv1-cifar", 10, 3, seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    again, other = (build("mobilenetv1-cifar", 10, 3, seed=seed).state_dict() for seed in (5, 6))
    assert all(torch.equal(first[key], again[key]) for key in first)
    changed = {key for key in first if not torch.equal(first[key], other[key])}
    assert changed == {key for key in first if first[key].dim() == 4} | {"head.weight", "head.bias"}
    for key, fan_out in (("features.75.weight", 9), ("features.78.weight", 1024)):  # depthwise and pointwise
        assert first[key].std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.03)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in POSE_MODELS | FORECAST_MODELS])
def test_every_model_builds_on_meta(name):
    with torch.device("meta"):
        model = MODELS[name](100, 1)
        assert model(torch.empty(2, 1, 32, 32)).shape == (2, 100)
    assert parameter_count(name, 11) - parameter_count(name, 10) == model.head.in_features + 1


def test_impossible_requests_say_what_would_work():
    for ask, answer in (
        (lambda: build("resnet-18", 10, 3), r'no model "resnet-18"\. Did you mean resnet18\? See ausam list\.$'),
        (
            lambda: parameter_count("vgg"),
            r'no model "vgg"\. Write a name, or your own as module:function\. See ausam list',
        ),
        (lambda: build("resnet-tiny", 0, 3), "at least one class"),
        (lambda: WideResNet(27), r"depth=27.*Use 10, 16"),
        (lambda: PyramidNet(111), r"depth=111.*Use 8, 14"),
        (lambda: MobileNet(width=0), r"width=0.*at least"),
    ):
        with pytest.raises(ValueError, match=answer):
            ask()


def test_images_are_enlarged_before_the_network_that_wants_224_pixels():
    plain, large = (build(name, 10, 3, seed=1).eval() for name in ("mobilenetv1", "mobilenetv1-224"))
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    resized = functional.interpolate(x, (224, 224), mode="bilinear", align_corners=False)
    assert torch.equal(large(x), plain(resized))
    assert not torch.equal(large(x), plain(x))
