"""From single runs to the figures of a comparison."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from ausam.lab.io import files

Result = dict[str, Any]

NUMBER = int | float
# What the result of a run must hold to be shown beside others.
NEEDED: dict[str, Any] = {
    **dict.fromkeys(("method", "policy", "weights_sha256"), str),
    **dict.fromkeys(("seed", "epochs", "samples_forward", "samples_backward"), int),
    **dict.fromkeys(("test_accuracy", "train_seconds"), NUMBER),
    **dict.fromkeys(("data", "hardware", "versions", "config"), dict),
}


def read(folder: Path) -> Result | None:
    """The result of the run in a folder; None if it has none; a ValueError for one that no run has written."""
    path = folder / "result.json"
    if (found := files.read_json(path)) is None:
        return None
    for name, kind in NEEDED.items():
        value = found.get(name)
        if not isinstance(value, kind) or (isinstance(value, NUMBER) and not abs(value) < 1e15):
            raise ValueError(
                f"{path} is not as a run writes it: {name} is {value!r:.80}. Remove it; the command that made the run "
                "writes it anew."
            )
    return found


def read_finished(folder: Path) -> Result:
    """The result of a run that has ended; a ValueError without one that can be read."""
    if (found := read(folder)) is None:
        raise ValueError(
            f"{folder / 'result.json'} is damaged. Remove it; the command that made the run writes it anew."
        )
    return found


def table(names: list[tuple[str, str]], runs: list[Result]) -> list[dict[str, Any]]:
    """One row a name, in the order given: mean and spread over seeds, and speed and samples relative to SAM."""
    by_name = {name: [r for r in runs if r["name"] == name] for name, _ in names}
    sam = {r["seed"]: r for r in by_name.get("sam", [])}
    return [_row(name, label, by_name[name], sam) for name, label in names if by_name[name]]


def _row(name: str, label: str, runs: list[Result], sam: dict[int, Result]) -> dict[str, Any]:
    accuracy = [r["test_accuracy"] for r in runs]
    seconds = [r["train_seconds"] for r in runs]
    # the same seeds on either side of a ratio, and either side quantised or none
    both = [(r, sam[r["seed"]]) for r in runs if r["seed"] in sam and _bits(r) == _bits(sam[r["seed"]])]
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
        "parts": _parts(runs),
        "train_seconds_mean": statistics.fmean(seconds),
        "train_seconds_std": statistics.stdev(seconds) if len(runs) > 1 else None,
        "speed_of_sam": relative(alike, lambda r: r["train_seconds"]),
        "samples_of_sam": None if samples is None else 1e4 / samples,
        "samples_forward": runs[0]["samples_forward"],
        "samples_backward": runs[0]["samples_backward"],
    }


def _parts(runs: list[Result]) -> dict[str, float]:
    """The means of the other scores that every run has, as those of groups of joints."""
    names = [k for k in runs[0] if k.startswith("test_") and k != "test_accuracy" and all(k in r for r in runs)]
    return {k.removeprefix("test_"): statistics.fmean(r[k] for r in runs) for k in names}


def _bits(run: Result) -> int:
    return int(run.get("config", {}).get("quantize", 0))
