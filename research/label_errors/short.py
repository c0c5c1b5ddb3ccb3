"""The short tables of the scorecard for the documentation, filled by ``make figures``: one metric a cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = {
    "human-aggregate-resnet50d": "human errors, ResNet-50-D",
    "human-aggregate-twins": "human errors, Twins-SVT",
    "synthetic20-resnet18": "synthetic errors, ResNet-18",
    "synthetic20-swin": "synthetic errors, Swin",
}


def table(part: str) -> str:
    """Of each network's predictions: clean labels, 1 % and all of its wrong labels."""
    cases = json.loads((HERE / f"{part}.json").read_text(encoding="utf-8"))
    lines = [
        "| CIFAR-10, predictions of | wrong | AUC | AUC of cleanlab | flagged | wrong among them |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for data, name in NAMES.items():
        of = [case for case in cases if case["data"] == data]
        most = max(case["share"] for case in of)
        lines += [line(name, case) for case in of if case["share"] in (0.0, 0.01, most)]
    return "\n".join(lines)


def line(name: str, case: dict[str, Any]) -> str:
    """A row of the table."""
    ours, theirs = case["ausam"], case["cleanlab"]
    right = f"{100 * ours['hits'] / ours['flagged']:.0f} %" if ours["flagged"] else "–"
    auc = [f"{who['auc']:.3f}" if "auc" in who else "–" for who in (ours, theirs)]
    return f"| {name} | {100 * case['share']:.1f} % | {auc[0]} | {auc[1]} | {ours['flagged']:,} | {right} |"
