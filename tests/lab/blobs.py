"""A problem that a linear network solves in a second, for tests of whole runs."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from ausam_lab.data.catalogue import resolve

ME = "tests.lab.blobs"
N, CLASSES = 300, 3


def blobs():
    """Three groups of points, far apart."""
    y = torch.arange(N) % CLASSES
    x = 0.3 * torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
    x[torch.arange(N), y] += 2.0
    return TensorDataset(x, y), TensorDataset(x[:30], y[:30])


def linear(classes, channels):
    """The smallest network."""
    return nn.Linear(channels, classes)


def config(**settings):
    """A run on them, with a tenth of wrong labels."""
    own = {"data": f"{ME}:blobs", "model": f"{ME}:linear", "label_noise": 0.1, "epochs": 8, "batch_size": 30}
    return resolve(**own | {"rho": 0.05, "threads": 1, "device": "cpu"} | settings)
