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


OWN = {  # data and labels
    ("digits", "any 0.01"): "digits, flipped to any class",
    ("digits", "any 0.2"): "digits, flipped to any class",
    ("fashion", "any 0.2"): "Fashion-MNIST, flipped to any class",
    ("features", "any 0.2"): "CIFAR-10 features, flipped to any class",
    ("features", "human"): "CIFAR-10 features, human errors",
    ("cifar", "human"): "CIFAR-10 images, human errors",
}


def table(part: str) -> str:
    """The short table of the stored predictions, or of our own trainings with SGD."""
    cases = json.loads((HERE / f"{part}.json").read_text(encoding="utf-8"))
    return of_predictions(cases) if part == "predictions" else of_trainings(cases)


def of_trainings(cases: list[dict[str, Any]]) -> str:
    """Of each problem the mean over seeds."""
    lines = [
        "| SGD on | wrong | AUC | AUC of cleanlab | flagged | wrong among them |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for (data, noise), name in OWN.items():
        of = [c for c in cases if (c["data"], c["noise"], c["method"]) == (data, noise, "SGD")]
        total = {w: {m: sum(c[w][m] for c in of) / len(of) for m in of[0][w]} for w in ("ausam", "cleanlab")}
        lines.append(line(name, {"share": of[0]["wrong"] / of[0]["n"], **total}))
    return "\n".join(lines)


def of_predictions(cases: list[dict[str, Any]]) -> str:
    """Of each network's predictions: clean labels, 1 % and all of its wrong labels."""
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
    return f"| {name} | {100 * case['share']:.1f} % | {auc[0]} | {auc[1]} | {ours['flagged']:,.0f} | {right} |"
