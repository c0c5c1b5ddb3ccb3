"""Classification: cross-entropy and accuracy, likelihood and calibration. For long-tailed data accuracy by class."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from ausam_lab.records.run import Score

GROUPS = ("head", "middle", "tail")
BINS = 15  # of confidence, in the calibration error


@dataclass(frozen=True)
class Classification:
    """The task of predicting labels.

    Args:
        tail: number of classes of long-tailed data, whose score has parts. 0 for other data.
    """

    tail: int = 0
    metric = "accuracy"

    def losses(self, z: Tensor, y: Tensor, smoothing: float) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(z, y, reduction="none", label_smoothing=smoothing)

    def score(self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Score:
        """Percentage of the samples that are classified correctly."""
        hits, confidences, nll = [], [], 0.0
        by_class = torch.zeros(2, self.tail, dtype=torch.float64)
        for x, y in batches:
            z = model(x)
            hit = z.argmax(1) == y
            if self.tail:
                by_class += torch.stack([torch.bincount(of, minlength=self.tail) for of in (y[hit], y)]).cpu()
            log_p = z.cpu().double().log_softmax(1)
            nll += float(F.nll_loss(log_p, y.cpu(), reduction="sum"))
            hits.append(hit.cpu())
            confidences.append(log_p.amax(1).exp())
        hit, count = torch.cat(hits), sum(map(len, hits))
        return Score(
            100.0 * float(hit.sum()) / count,
            self.metric,
            parts=parts(*by_class) if self.tail else {},
            nll=nll / count if math.isfinite(nll) else None,
            calibration_error=calibration_error(torch.cat(confidences), hit) if math.isfinite(nll) else None,
        )


def calibration_error(confidence: Tensor, hit: Tensor) -> float:
    """The expected calibration error in percent, over 15 equal bins of confidence (Guo et al., 2017).

        sum over bins of n_b / n * |accuracy_b - mean confidence_b|

    >>> calibration_error(torch.tensor([0.75, 0.75, 0.75, 0.75]), torch.tensor([True, True, False, False]))
    25.0
    """
    bins = (confidence.double() * BINS).ceil().long().clamp(1, BINS) - 1
    gap = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, hit.double() - confidence.double())
    return round(100.0 * float(gap.abs().sum()) / len(hit), 6)


def parts(right: Tensor, count: Tensor) -> dict[str, float]:
    """Balanced accuracy (the mean over classes), and the same over the first, middle and last third of the classes.

    In long-tailed data, classes with a larger number are rarer. Classes without test samples are left out.
    """
    share = 100 * right / count  # NaN for a class without samples
    groups = dict(zip(GROUPS, share.tensor_split(len(GROUPS)), strict=True)) if len(share) >= len(GROUPS) else {}
    return {name: float(of.nanmean()) for name, of in ({"balanced": share} | groups).items() if of.isfinite().any()}
