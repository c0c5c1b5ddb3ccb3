"""The lab's own networks, and building by name."""

import math

import pytest
import torch

from ausam_lab.networks.build import MODELS, build, parameter_count
from tests.lab.networks.checks import IMAGES, check_gradients, check_meta, check_output_shape, check_size_and_cost

RESNETS = ["resnet-tiny", "resnet-small", "resnet18-w8", "resnet50-w8"]

# Parameters by hand: stem, blocks (9ab a 3x3 convolution, 2b a BatchNorm), last layer.
RESNET18 = 29 * 64 + 36 * 64**2 + 8 * 64 + sum(32 * s * s + 10 * s for s in (128, 256, 512)) + 513 * 10


@pytest.mark.parametrize(
    "figures",
    [("resnet18", 11.17e6, RESNET18, 10, 32, 4, 555.4), ("resnet50", 23.5e6, 23_520_842, 200, 64, 8, None)],
    ids=lambda figures: figures[0],
)
def test_published_size_and_cost(figures):
    check_size_and_cost(*figures)


@pytest.mark.parametrize("name", [*RESNETS, "mlp"])
@pytest.mark.parametrize(("channels", "pixels"), IMAGES)
def test_output_shapes(name, channels, pixels):
    check_output_shape(name, channels, pixels)


@pytest.mark.parametrize("name", [*RESNETS, "mlp"])
def test_gradients_reach_every_parameter(name):
    check_gradients(name)


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("resnet")])
def test_every_network_builds_on_meta(name):
    check_meta(name)


def test_build_depends_on_the_seed_alone():
    before = torch.get_rng_state()
    first = build("resnet18-w16", 10, 3, seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    again, other = (build("resnet18-w16", 10, 3, seed=seed).state_dict() for seed in (5, 6))
    assert all(torch.equal(first[key], again[key]) for key in first)
    changed = {key for key in first if not torch.equal(first[key], other[key])}
    assert changed == {key for key in first if first[key].dim() == 4} | {"head.weight", "head.bias"}
    assert first["features.10.body.3.weight"].std().item() == pytest.approx(math.sqrt(2 / (9 * 128)), rel=0.03)


def test_impossible_requests_say_what_would_work():
    for ask, answer in (
        (lambda: build("resnet-18", 10, 3), r"resnet-18.*Did you mean resnet18"),
        (lambda: parameter_count("vgg"), r"vgg.*module:function"),
    ):
        with pytest.raises(ValueError, match=answer):
            ask()
