"""What a policy chose in a run, against the score of the samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ausam import Policy, Scores


def selection_summary(policy: Policy, scores: Scores, wrong: Tensor | None, bins: int = 20) -> dict[str, Any] | None:
    """How often samples were chosen against their score, in bins of equal size; and the mislabelled ones apart."""
    if policy.kept >= 1:
        return None
    score, chosen = scores.mean, scores.count.double()
    seen = score.isfinite()
    order = torch.argsort(torch.where(seen, score, torch.inf))[: int(seen.sum())]
    groups = [g for g in torch.tensor_split(order, bins) if len(g)]

    def group(index: Tensor) -> dict[str, Any]:
        known = score[index][seen[index]]
        mean = float(known.mean()) if len(known) else None
        return {"n": len(index), "score": mean, "chosen": float(chosen[index].mean())}

    noisy = wrong is not None and bool(wrong.any())
    return {
        "signal": policy.signal,
        "bins": [
            {**group(g), "wrong": float(wrong[g].double().mean()) if noisy and wrong is not None else None}
            for g in groups
        ],
        "right": group((~wrong).nonzero().flatten()) if noisy and wrong is not None else None,
        "wrong": group(wrong.nonzero().flatten()) if noisy and wrong is not None else None,
    }
