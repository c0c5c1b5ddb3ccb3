"""The paper's own networks for images."""

import math
from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from ausam_lab.networks.build import build
from ausam_lab.paper import catalogue
from ausam_lab.paper.networks.convolutional import PreActivation, Pyramidal
from tests.lab.networks.checks import IMAGES, check_gradients, check_meta, check_output_shape, check_size_and_cost

catalogue.register()

SMALL = ["wrn10-2", "pyramidnet14-24", "mobilenetv1-cifar-quarter"]

# Parameters by hand: stem, blocks (9ab a 3x3 convolution, 2b a BatchNorm), last layer.
WRN = 432 + sum((10 * a + 63 * b) * b + 2 * a + 14 * b for a, b in pairwise((16, 160, 320, 640))) + 1280 + 6410
PYRAMID = 464 + sum(9 * b * (2 * b - 5) + 6 * b - 10 for b in range(21, 287, 5)) + 2 * 286 + 2870
COSTS = [9 * b * (2 * b - 5) * 4 ** (5 - k // 18) for k, b in enumerate(range(21, 287, 5))]  # of PYRAMID's blocks
SIZES = (32, 64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
MOBILENET = 864 + 64 + sum(11 * a + a * b + 2 * b for a, b in pairwise(SIZES)) + 1025 * 10


@pytest.mark.parametrize(
    "figures",
    [
        ("wrn28-10", 36.5e6, WRN, 10, 32, 8, 5240),
        ("wrn34-10", 46.2e6, 46_160_474, 10, 32, 8, None),
        ("pyramidnet110-270", 28.3e6, PYRAMID, 10, 32, 8, sum(COSTS) / 1e6),  # 28,485,477; 0.65 % off
        ("mobilenetv1", 3.2e6, MOBILENET, 1000, 224, 7, 569),
        ("mobilenetv1-cifar", 3.2e6, MOBILENET, 10, 32, 2, None),
    ],
    ids=lambda figures: figures[0],
)
def test_published_size_and_cost(figures):
    check_size_and_cost(*figures)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(("channels", "pixels"), IMAGES)
def test_output_shapes(name, channels, pixels):
    check_output_shape(name, channels, pixels)


@pytest.mark.parametrize("name", SMALL)
def test_gradients_reach_every_parameter(name):
    check_gradients(name)


@pytest.mark.parametrize("name", catalogue.NETWORKS)
def test_every_network_builds_on_meta(name):
    check_meta(name)


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


def test_depthwise_convolutions_start_with_their_own_fan_out():
    weights = build("mobilenetv1-cifar", 10, 3, seed=5).state_dict()
    for key, fan_out in (("features.75.weight", 9), ("features.78.weight", 1024)):  # depthwise and pointwise
        assert weights[key].std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.03)


def test_images_are_enlarged_before_the_network_that_wants_224_pixels():
    plain, large = (build(name, 10, 3, seed=1).eval() for name in ("mobilenetv1", "mobilenetv1-224"))
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    resized = functional.interpolate(x, (224, 224), mode="bilinear", align_corners=False)
    assert torch.equal(large(x), plain(resized))
    assert not torch.equal(large(x), plain(x))
