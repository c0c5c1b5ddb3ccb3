"""From single runs to the figures of a comparison."""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import Tensor

from ausam import Policy, Scores

Result = dict[str, Any]


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


def table(names: list[tuple[str, str]], runs: list[Result]) -> list[dict[str, Any]]:
    """One row a name, in the order given: mean and spread over seeds, and speed and samples relative to SAM."""
    by_name = {name: [r for r in runs if r["name"] == name] for name, _ in names}
    sam = {r["seed"]: r for r in by_name.get("sam", [])}
    return [_row(name, label, by_name[name], sam) for name, label in names if by_name[name]]


def _row(name: str, label: str, runs: list[Result], sam: dict[int, Result]) -> dict[str, Any]:
    accuracy = [r["test_accuracy"] for r in runs]
    seconds = [r["train_seconds"] for r in runs]
    both = [(r, sam[r["seed"]]) for r in runs if r["seed"] in sam]  # the same seeds on either side of a ratio
    # seconds of another machine say nothing about speed
    alike = [(r, s) for r, s in both if r.get("hardware") == s.get("hardware")]

    def relative(pairs: list[tuple[Result, Result]], key: Any) -> float | None:
        return 100.0 * sum(key(s) for _, s in pairs) / sum(key(r) for r, _ in pairs) if pairs else None

    samples = relative(both, lambda r: r["samples_forward"] + r["samples_backward"])
    return {
        "name": name,
        "label": label,
        "method": runs[0]["method"],
        "policy": runs[0]["policy"],
        "pair": runs[0].get("pair", ""),
        "epochs": runs[0]["epochs"],
        "n": len(runs),
        "accuracy_mean": statistics.fmean(accuracy),
        "accuracy_std": statistics.stdev(accuracy) if len(runs) > 1 else None,
        "train_seconds_mean": statistics.fmean(seconds),
        "train_seconds_std": statistics.stdev(seconds) if len(runs) > 1 else None,
        "speed_of_sam": relative(alike, lambda r: r["train_seconds"]),
        "samples_of_sam": None if samples is None else 1e4 / samples,
        "samples_forward": runs[0]["samples_forward"],
        "samples_backward": runs[0]["samples_backward"],
    }
