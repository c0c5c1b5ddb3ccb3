"""How often a policy chose samples in a run, by their score."""

from __future__ import annotations

import torch
from torch import Tensor

from ausam.policies import Policy
from ausam.policies.signals import signal_name
from ausam.sampler.scores import Scores
from ausam_lab.records.run import SampleGroup, SelectionSummary


def selection_summary(
    policy: Policy, scores: Scores, wrong: Tensor | None, labels: Tensor | None = None, bins: int = 20
) -> SelectionSummary | None:
    """How often samples were chosen, in equal-sized bins of their score; mislabelled samples separately.

    With ``labels``, also per class.
    """
    if policy.kept >= 1:
        return None
    score, chosen = scores.mean, scores.count.double()
    seen = score.isfinite()
    order = torch.argsort(torch.where(seen, score, torch.inf))[: int(seen.sum())]
    noisy = wrong is not None and bool(wrong.any())

    def group(index: Tensor, part: float | None = None) -> SampleGroup:
        known = score[index][seen[index]]
        return SampleGroup(len(index), float(known.mean()) if len(known) else None, float(chosen[index].mean()), part)

    groups = tuple(
        group(index, float(wrong[index].double().mean()) if noisy and wrong is not None else None)
        for index in torch.tensor_split(order, bins)
        if len(index)
    )
    present = [] if labels is None else torch.bincount(labels).nonzero().flatten().tolist()
    classes = {str(c): group((labels == c).nonzero().flatten().cpu()) for c in present}
    if not noisy or wrong is None:
        return SelectionSummary(signal_name(policy.signal), groups, classes=classes)
    right, mistaken = (group(which.nonzero().flatten()) for which in (~wrong, wrong))
    return SelectionSummary(signal_name(policy.signal), groups, right, mistaken, classes)
