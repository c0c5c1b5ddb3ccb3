"""scikit-learn's digits: 1,797 handwritten digits of 8x8 pixels that ship with the package."""

from __future__ import annotations

import torch

from ausam.common.random import generator
from ausam_lab.data.images import ImageSet


def digits(data_dir: str = "") -> ImageSet:  # noqa: ARG001  (nothing to download)
    """1,000 digits for training and the other 797 for testing, always the same ones."""
    from sklearn.datasets import load_digits  # imported here because it takes a second

    loaded = load_digits()
    x = torch.tensor(loaded.images, dtype=torch.float32).unsqueeze(1) / 16.0
    y = torch.tensor(loaded.target, dtype=torch.int64)
    order = torch.randperm(len(y), generator=generator(0))
    train, test = order[:1000], order[1000:]
    mean, std = float(x[train].mean()), float(x[train].std())
    return ImageSet("digits", x[train], y[train], x[test], y[test], 10, (mean,), (std,))
