"""SimCC (Li et al. 2022): the position of a joint as two classifications, of its column and of its row."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ausam.lab.records.score import Score
from ausam.paper.pose.pckh import counts, pckh
from ausam.paper.pose.skeleton import MIRRORED

SPLIT = 2  # bins per pixel


class SimCC:
    """The task with outputs (n, joints, 2, bins), for x and y, and targets (n, joints, 4) from `People.target`."""

    metric = "PCKh@0.5"

    def losses(self, z: Tensor, y: Tensor, smoothing: float) -> Tensor:
        """The loss of each person: the mean over joints of visible * (KL of x + KL of y).

        KL(q | p) is taken to the smoothed label q: 1 - s in the true bin, s spread evenly over the others. The mean is
        over all joints, visible or not, as in the official code, which also divides by the number of bins, a constant.
        A joint outside the crop counts as not visible.
        """
        bins = z.shape[-1]
        at = (SPLIT * y[..., :2]).round()
        visible = (y[..., 2] > 0) & ((at >= 0) & (at < bins)).all(-1)
        log_p = z.float().log_softmax(-1)
        true = log_p.gather(-1, at.clamp(0, bins - 1).long()[..., None]).squeeze(-1)
        cross = -(1 - smoothing) * true
        entropy = 0.0
        if smoothing:
            each = smoothing / (bins - 1)
            cross = cross - each * (log_p.sum(-1) - true)
            entropy = -(1 - smoothing) * math.log(1 - smoothing) - smoothing * math.log(each)
        return (visible * (cross - entropy).sum(-1)).mean(-1)

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Score:
        """PCKh@0.5: the mean over joints, and each group of joints."""
        total: Tensor | None = None
        for x, y in batches:
            count = counts(located(model, x), y)
            total = count if total is None else total + count
        if total is None:
            raise ValueError("There are no people to evaluate on. Use a larger test set.")
        mean, groups = pckh(total)
        return Score(mean, self.metric, parts=groups)


SIMCC = SimCC()


def located(model: nn.Module, x: Tensor) -> Tensor:
    """Predicted joints (n, joints, 2) in pixels of the crop, averaged over the crop and its mirror image."""
    p = model(x).softmax(-1) + unmirrored(model(x.flip(3)).softmax(-1))
    at: Tensor = p.argmax(-1) / SPLIT
    return at


def unmirrored(p: Tensor) -> Tensor:
    """Turn probabilities for the mirrored crop into those of the crop: swap left and right joints, and reverse x.

    Pixel x of a crop W wide is W - 1 - x in the mirror, so bin b is 2 W - 2 - b; the last bin has no mirror image.
    """
    p = p[:, list(MIRRORED)]
    x = p[:, :, 0].flip(-1).roll(1 - SPLIT, -1)
    x[..., 1 - SPLIT :] = 0
    return torch.stack([x, p[:, :, 1]], 2)
