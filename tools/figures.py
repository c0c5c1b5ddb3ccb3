"""Every picture of the documentation, drawn from the results beside it: ``make figures``.

The results.json of a comparison is kept as ``docs/results/NAME.json``, and a chart of its report becomes a PNG beside
it. Pictures of research/ are drawn by its scripts.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

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
    name: str = "scores"  # which chart: scores, curves, mislabelled or classes
    narrow: bool = False  # for a phone


NARROW = 360  # units
COMPARISONS = {
    "demo.png": Chart("demo.json"),
    "demo-narrow.png": Chart("demo.json", narrow=True),
}


def draw(chart: Chart, target: Path) -> None:
    """One chart of a comparison's report, as a file."""
    drawn = {picture.name: picture for picture in pictures(store.read_finished(RESULTS / chart.source, Comparison))}
    spec = drawn[chart.name].spec
    if chart.narrow:
        legend = spec["config"]["legend"] | {"columns": 2}
        spec = spec | {"width": NARROW, "config": spec["config"] | {"legend": legend}}
    files.write(target, vega.png(spec, "light", 2 if chart.narrow else 1.5))


def slim(path: Path) -> None:
    """Save the picture with 256 colours, which a chart does not exceed visibly: a fifth of the size."""
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def main() -> None:
    """Draw all."""
    for name, chart in COMPARISONS.items():
        draw(chart, RESULTS / name)
    for name in COMPARISONS:
        slim(RESULTS / name)
        sys.stdout.write(f"{(RESULTS / name).relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
