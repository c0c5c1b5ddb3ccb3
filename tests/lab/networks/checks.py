"""What is asked of every network for images, the lab's and the paper's."""

import math

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from ausam_lab.networks.build import MODELS, build, parameter_count

IMAGES = [(1, 7), (1, 8), (3, 8), (1, 28), (3, 32), (3, 64)]  # channels and pixels


def check_size_and_cost(name, published, exact, classes, pixels, final, cost):
    """Parameters; multiply-adds in millions and the last feature map, which see strides and resolutions."""
    assert parameter_count(name) == exact == pytest.approx(published, rel=0.007)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model, x = MODELS[name](classes, 3), torch.empty(1, 3, pixels, pixels)
        features = model.features(x)
        model.head(model.flatten(model.pool(features)))
    assert features.shape[2:] == (final, final)
    assert cost is None or counter.get_total_flops() / 2e6 == pytest.approx(cost, rel=1e-3)


def check_output_shape(name, channels, pixels):
    """One finite score per class."""
    logits = build(name, 7, channels, seed=0)(torch.randn(2, channels, pixels, pixels))
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()


def check_gradients(name):
    """A gradient in every parameter."""
    # eval: with batch statistics a scale or bias that only meets further BatchNorms has gradient zero, and rightly so.
    model = build(name, 10, 3, seed=0).eval()
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    functional.cross_entropy(model(x), torch.arange(8)).backward()
    norms = {name: math.nan if p.grad is None else p.grad.norm().item() for name, p in model.named_parameters()}
    assert {name: norm for name, norm in norms.items() if not 1e-4 < norm < math.inf} == {}


def check_meta(name):
    """It can be built without memory, and the head has a row per class."""
    with torch.device("meta"):
        model = MODELS[name](100, 1)
        assert model(torch.empty(2, 1, 32, 32)).shape == (2, 100)
    assert parameter_count(name, 11) - parameter_count(name, 10) == model.head.in_features + 1
