"""Does the interval of a review contain the true share of wrong labels?

Claim: with 200 reviewed samples it does in at least 94 % of reviews, and if 5 % of the reviewer's decisions are slips,
the wide interval does. It is narrower than with 200 samples drawn at random from all.

    python research/label_errors/coverage.py FOLDER    # of stored predictions, as for scorecard.py

Each case has 1,000 simulated reviewers. Each draws samples of their own and sees the true label. Writes
``coverage.json``.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta

from ausam.audit import Decision, Review, draw_review, find_label_errors

HERE = Path(__file__).parent
REVIEWERS, SIZE, SLIPS = 1_000, 200, 0.05


def covered(order: np.ndarray, wrong: np.ndarray) -> dict[str, float]:
    """How often the intervals contain the true share, and how wide they are."""
    rng, truth, known = np.random.default_rng(0), wrong.mean(), {}
    exact = slipped = width = 0.0
    for seed in range(REVIEWERS):
        review = draw_review(order, SIZE, seed)
        for careless in (False, True):
            found = wrong[review.index] ^ (careless & (rng.random(SIZE) < SLIPS))
            key = tuple(np.bincount(review.stratum, found).astype(int).tolist())  # the estimate depends on it alone
            if key not in known:
                known[key] = estimate(review, found)
            share = known[key]
            if careless:
                slipped += share.low_if_slips <= truth <= share.high
            else:
                exact += share.low <= truth <= share.high
                width += share.high - share.low
    random = plain_width(wrong, rng)
    return {
        "covered": exact / REVIEWERS,
        "covered_with_slips": slipped / REVIEWERS,
        "width": width / REVIEWERS,
        "width_of_random": random,
    }


def estimate(review: Review, found: np.ndarray) -> Any:
    """What the review says if these of its samples are found wrong."""
    kinds = ("remove" if bad else "keep" for bad in found.tolist())
    return review.share(Decision(i, kind) for i, kind in zip(review.index.tolist(), kinds, strict=True))


@cache
def exact_width(k: int) -> float:
    """Of the interval of Clopper and Pearson."""
    low = beta.ppf(0.025, k, SIZE - k + 1) if k else 0.0
    return float((beta.ppf(0.975, k + 1, SIZE - k) if k < SIZE else 1.0) - low)


def plain_width(wrong: np.ndarray, rng: np.random.Generator) -> float:
    """The mean width of the exact interval with samples drawn at random from all."""
    counts = rng.hypergeometric(int(wrong.sum()), int((~wrong).sum()), SIZE, REVIEWERS)
    return float(np.mean([exact_width(k) for k in counts.tolist()]))


def table(part: str) -> str:
    """How many reviews cover the truth, and how wide their intervals are."""
    results = json.loads((HERE / f"{part}.json").read_text(encoding="utf-8"))
    lines = [
        "| predictions | wrong | reviews that cover | with 5 % slips | mean width | of 200 random samples |",
        f"|---|{'---:|' * 5}",
    ]
    for r in results:
        percent = [f"{100 * r[name]:.1f} %" for name in ("covered", "covered_with_slips", "width", "width_of_random")]
        lines.append(f"| {r['data']} | {100 * r['share']:.1f} % | {' | '.join(percent)} |")
    return "\n".join(lines)


def main() -> None:
    """Simulate, and print the table."""
    from scorecard import cases  # beside this file

    results = []
    for case, labels, p, wrong in cases(sys.argv[1]):
        if case["share"] not in (0.005, 0.02):
            order = find_label_errors(labels, probabilities=p).order
            results.append({"data": case["data"], "share": float(wrong.mean())} | covered(order, wrong))
            print(results[-1], flush=True)
    lines = ",\n".join(json.dumps(r) for r in results)
    (HERE / "coverage.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(table("coverage"))


if __name__ == "__main__":
    main()
