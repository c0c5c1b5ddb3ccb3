"""The tables of results.jsonl for the documentation, filled by ``make figures``.

A row of a table appears when at least three seeds of each of its rows have ended.
"""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from scipy import stats

RESULTS = Path(__file__).parent / "results.jsonl"
NOISES = {
    "clean": "right labels",
    "symmetric-20": "20 % wrong",
    "symmetric-40": "40 % wrong",
    "pairs-20": "20 % given the next class",
}
NAMES = {
    "sgd": "SGD at its best",
    "sgd-20": "SGD, 20 epochs",
    "sam-random-first": "SAM on a random half",
    "ausam": "AUSAM-0.5",
    "shuffled": "AUSAM-0.5, scores shuffled",
    "trusted": "SAM with Trusted",
    "sam": "SAM",
}
CONTRASTS = (("sam-random-first", "sgd"), ("ausam", "sam-random-first"))
EXPLORED = (("ausam", "sgd"), ("ausam", "sam"), ("ausam", "shuffled"))
MISSING = "*The runs have not ended. This table is filled from `research/transfer/results.jsonl`.*"
Runs = dict[int, dict[str, Any]]  # by seed


def table(part: str) -> str:
    """A table in Markdown: "accuracy", "likelihood", "contrasts", "explored" or "cost"."""
    parts = {"accuracy": accuracy, "likelihood": likelihood, "contrasts": contrasts, "explored": explored, "cost": cost}
    made = parts[part]
    found = read()
    return made(found) if found else MISSING


def read() -> dict[tuple[int, str, str], Runs]:
    """The finished runs by number of images, kind of labels and row; only those with three seeds or more."""
    found: dict[tuple[int, str, str], Runs] = {}
    if RESULTS.exists():
        for run in map(json.loads, RESULTS.read_text().splitlines()):
            found.setdefault((run["n"], run["noise"], run["row"]), {})[run["seed"]] = run
    return {key: runs for key, runs in found.items() if len(runs) >= 3}


def problems(found: dict[tuple[int, str, str], Runs]) -> list[tuple[int, str]]:
    """The problems in which every primary row has ended."""
    rows = {row for contrast in CONTRASTS for row in contrast}
    sizes = sorted({n for n, _, _ in found})
    return [(n, noise) for n in sizes for noise in NOISES if all((n, noise, row) in found for row in rows)]


def means(found: dict[tuple[int, str, str], Runs], figure: str, digits: int, best: Any) -> str:
    """A table of the means of a figure, the best of a line in bold. The seeds are those of the primary rows."""
    rows = [row for row in NAMES if row != "shuffled" and any(key[2] == row for key in found)]
    lines = [["images", "labels", "seeds", *(NAMES[row] for row in rows)]]
    for n, noise in problems(found):
        runs = [found.get((n, noise, row)) for row in rows]
        shown = [f"{statistics.fmean(r[figure] for r in of.values()):.{digits}f}" if of else "–" for of in runs]
        top = best(float(text) for text in shown if text != "–")
        seeds = min(len(found[n, noise, row]) for contrast in CONTRASTS for row in contrast)
        marked = [f"**{text}**" if text != "–" and float(text) == top else text for text in shown]
        lines.append([f"{n:,}", NOISES[noise], str(seeds), *marked])
    return markdown(lines, left=2)


def accuracy(found: dict[tuple[int, str, str], Runs]) -> str:
    """Mean test accuracy in percent."""
    return means(found, "accuracy", 2, max)


def likelihood(found: dict[tuple[int, str, str], Runs]) -> str:
    """Mean negative log-likelihood."""
    return means(found, "nll", 3, min)


def contrasts(found: dict[tuple[int, str, str], Runs]) -> str:
    """The primary contrasts, written down before the runs: paired by seed, with 95 % t intervals."""
    return differences(found, CONTRASTS)


def explored(found: dict[tuple[int, str, str], Runs]) -> str:
    """Other contrasts of AUSAM, in the same form. The shuffled row has its settings and its odds, dealt at random."""
    return differences(found, EXPLORED)


def differences(found: dict[tuple[int, str, str], Runs], chosen: tuple[tuple[str, str], ...]) -> str:
    """A line for each problem, a column for each contrast."""
    lines = [["images", "labels", *(f"{NAMES[one]} − {NAMES[other]}" for one, other in chosen)]]
    for n, noise in problems(found):
        runs = [(found.get((n, noise, one), {}), found.get((n, noise, other), {})) for one, other in chosen]
        lines.append([f"{n:,}", NOISES[noise], *(difference(one, other) for one, other in runs)])
    return markdown(lines, left=2)


def difference(one: Runs, other: Runs) -> str:
    """The mean difference in accuracy over the seeds that both have, with its interval."""
    d = [one[seed]["accuracy"] - other[seed]["accuracy"] for seed in sorted(one.keys() & other.keys())]
    if len(d) < 3:
        return "–"
    half = float(stats.t.ppf(0.975, len(d) - 1)) * statistics.stdev(d) / math.sqrt(len(d))
    mean = statistics.fmean(d)
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]".replace("-", "−")


def cost(found: dict[tuple[int, str, str], Runs]) -> str:
    """Cost in samples beside CPU seconds, of the runs on 20,000 images with right labels; SGD for 20 epochs is 1x."""
    lines = [["", "epochs", "batch size", "cost in samples", "CPU seconds"]]
    for row, name in NAMES.items():
        runs = found.get((20_000, "clean", row), {})
        if runs:
            samples = statistics.fmean(sum(r["samples"]) for r in runs.values()) / (40 * 20_000)
            seconds = statistics.fmean(r["cpu_seconds"] for r in runs.values())
            s = next(iter(runs.values()))["settings"]
            lines.append([name, str(s["epochs"]), str(s["batch_size"]), f"{samples:.2f}x", f"{seconds:.0f}"])
    return markdown(lines, left=1)


def markdown(lines: list[list[str]], left: int) -> str:
    """Rows of cells as a table, the first columns aligned to the left."""
    rule = ["---" if i < left else "---:" for i in range(len(lines[0]))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], rule, *lines[1:]))
