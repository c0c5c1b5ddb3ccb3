"""Every picture of the documentation, drawn from the results beside it: ``make figures``.

The results.json of a comparison is kept as ``docs/results/NAME.json``, and a chart of its report becomes a PNG beside
it. ``equal-cost*.json`` are the results.json of ``ausam reproduce equal-cost``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from ausam_lab.paper import equal_cost
from ausam_lab.paper.records.equal_cost import EqualCost
from ausam_lab.records import files, store
from ausam_lab.records.comparison import Comparison
from ausam_lab.report import vega
from ausam_lab.report.pages.comparison import pictures

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"


@dataclass(frozen=True)
class Chart:
    """One chart of a comparison's report."""

    source: str  # the results it is drawn from
    name: str = "time"  # which chart: time, curves, chosen or mislabelled
    narrow: bool = False  # for a phone


NARROW = 360  # units
COMPARISONS = {
    "demo.png": Chart("demo.json"),
    "demo-narrow.png": Chart("demo.json", narrow=True),
    "long-tail-chosen.png": Chart("long-tail.json", "classes"),
}
PROBLEMS = (
    "digits-noisy",
    "digits-longtail",
    "digits-longtail-0.1",
    "digits-longtail-0.01",
    "etth1",
    "cifar10",
    "cifar10-longtail",
)
# Rows so far from the others that nothing else could be told apart; the page names them.
OFF_SCALE = {"etth1": ("s2-sam@0.5", "sgd", "sgd@1.5", "sgd@2")}
EQUAL_COST = {f"equal-cost-{name}.png": name for name in PROBLEMS}
GAINS = {"equal-cost-gains.png": None, "equal-cost-gains-narrow.png": NARROW}


def draw(chart: Chart, target: Path) -> None:
    """One chart of a comparison's report, as a file."""
    drawn = {picture.name: picture for picture in pictures(store.read_finished(RESULTS / chart.source, Comparison))}
    spec = drawn[chart.name].spec
    if chart.narrow:
        legend = spec["config"]["legend"] | {"columns": 2}
        spec = spec | {"width": NARROW, "config": spec["config"] | {"legend": legend}}
    files.write(target, vega.png(spec, "light", 2 if chart.narrow else 1.5))


def draw_frontier(problem: str, target: Path) -> None:
    """What each budget bought on one problem of the benchmark at equal cost, as a file."""
    whole = store.read_finished(RESULTS / "equal-cost-0.2.json", EqualCost)
    measured = next(one for one in whole.problems if one.name == problem)
    shown = tuple(entry for entry in measured.entries if entry.name not in OFF_SCALE.get(problem, ()))
    spec = equal_cost.frontier(replace(measured, entries=shown))
    if spec is None:
        raise ValueError(f"equal-cost-0.2.json has no finished run of {problem}.")
    files.write(target, vega.png(spec, "light", 1.5))


def draw_gains(width: int | None, target: Path) -> None:
    """The gain of the primary contender of each problem over its random twin and over SGD, as a file."""
    spec = equal_cost.gains(store.read_finished(RESULTS / "equal-cost.json", EqualCost))
    if spec is None:
        raise ValueError("equal-cost.json has no finished primary contrast.")
    if width is not None:
        legend = spec["config"]["legend"] | {"columns": 1}
        axis = spec["config"].get("axisX", {}) | {"titleAnchor": "end"}
        spec = spec | {"width": width, "config": spec["config"] | {"legend": legend, "axisX": axis}}
    files.write(target, vega.png(spec, "light", 1.5 if width is None else 2))


def slim(path: Path) -> None:
    """Save the picture with 256 colours, which a chart does not exceed visibly: a fifth of the size."""
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def main() -> None:
    """Draw all."""
    for name, chart in COMPARISONS.items():
        draw(chart, RESULTS / name)
    for name, problem in EQUAL_COST.items():
        draw_frontier(problem, RESULTS / name)
    for name, width in GAINS.items():
        draw_gains(width, RESULTS / name)
    for name in (*COMPARISONS, *EQUAL_COST, *GAINS):
        slim(RESULTS / name)
        sys.stdout.write(f"{(RESULTS / name).relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
