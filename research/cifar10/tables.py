"""The table of gate.jsonl for README.md, filled by ``make figures``."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

GATE = Path(__file__).parent / "gate.jsonl"
MISSING = "*The runs have not ended.*"


def table(part: str) -> str:
    """Every setting of the gate ("gate"): validation accuracy by seed, likelihood and cost."""
    assert part == "gate"
    runs = [json.loads(line) for line in GATE.read_text().splitlines()] if GATE.exists() else []
    settings: dict[tuple[str, float, float], list[dict[str, Any]]] = {}
    for run in sorted(runs, key=lambda run: run["seed"]):
        settings.setdefault((run["row"], run["lr"], run["rho"]), []).append(run)
    if not settings:
        return MISSING
    head = ["method", "rate", "rho", "seeds", "accuracy %, by seed", "mean", "NLL", "CPU seconds"]
    lines = [head, ["---", *["---:"] * 7]]
    for (row, lr, rho), found in sorted(settings.items(), reverse=True):
        accuracy = [run["accuracy"] for run in found]
        lines.append(
            [
                row.upper(),
                f"{lr:g}",
                f"{rho:g}" if rho else "",
                str(len(found)),
                ", ".join(f"{value:.2f}" for value in accuracy),
                f"{statistics.fmean(accuracy):.2f}",
                f"{statistics.fmean(run['nll'] for run in found):.3f}",
                f"{statistics.fmean(run['cpu_seconds'] for run in found):.0f}",
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
