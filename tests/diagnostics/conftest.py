"""Small problems in double precision, so that closed forms can be compared to many digits."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn


@pytest.fixture
def linear():
    """Linear regression without bias: L_i = (x_i w - y_i)^2 / 2."""
    torch.manual_seed(0)
    model = nn.Linear(3, 1, bias=False).double()
    x, y = torch.randn(12, 3).double(), torch.randn(12).double()
    return model, lambda x, y: (model(x)[:, 0] - y).square() / 2, x, y


@pytest.fixture
def net():
    """A small smooth network with three classes."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    x, y = torch.randn(18, 4).double(), torch.randint(3, (18,))
    return model, lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y


@pytest.fixture
def conv():
    """BatchNorm and dropout, in training mode, with statistics that are not those of a new layer."""
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 3)
    ).double()
    x, y = torch.randn(10, 1, 6, 6).double(), torch.randint(3, (10,))
    model(x)
    return model, lambda x, y: F.cross_entropy(model(x), y, reduction="none"), x, y
