"""Every picture of the documentation, drawn from the results beside it: ``make figures``.

The results.json of a comparison is kept as ``docs/results/NAME.json``, and a chart of its report becomes a PNG beside
it. Pictures of research/ are drawn by its scripts. The picture of flagged labels, and the sentence below it, are what
README's first block of code found.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont

from ausam_lab.records import files, store
from ausam_lab.records.comparison import Comparison
from ausam_lab.report import vega
from ausam_lab.report.pages.comparison import pictures

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PICTURES = ROOT / "docs" / "pictures"


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


def flagged() -> None:
    """Run README's first block, draw the first twelve labels that it flags, and write the sentence below them."""
    page = ROOT / "README.md"
    text = page.read_text()
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    if block is None:
        raise LookupError("README.md has no block of Python.")
    scope: dict[str, Any] = {}
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(block[1], str(page), "exec"), scope)
    errors = scope["errors"]
    wrong, found = scope["wrong"], torch.as_tensor(errors.index)
    tiles = [
        tile(scope["x"][i].reshape(8, 8), f"labelled {scope['labels'][i]}", f"likely {errors.likely[i]}")
        for i in errors.index[:12]
    ]
    width, height = tiles[0].size
    picture = Image.new("RGBA", (6 * width, 2 * height), (0, 0, 0, 0))
    for i, one in enumerate(tiles):
        picture.paste(one, (i % 6 * width, i // 6 * height))
    picture.save(PICTURES / "flagged.png", optimize=True)
    caption = (
        f"<sub>The first twelve of {len(found)} flagged digits. {int(wrong.sum())} of 1,000 labels were wrong, and "
        f"{int(wrong[found].sum())} of them were flagged.</sub>"
    )
    filled = re.sub(
        r"(<!-- caption -->\n).*?(<!-- /caption -->)", lambda m: f"{m[1]}{caption}\n{m[2]}", text, flags=re.DOTALL
    )
    page.write_text(filled)


def tile(pixels: torch.Tensor, *lines: str) -> Image.Image:
    """One digit, with words below it that are readable on a light and on a dark page."""
    digit = Image.fromarray((255 * (1 - pixels)).to(torch.uint8).numpy()).resize((112, 112), Image.Resampling.NEAREST)
    made = Image.new("RGBA", (140, 176), (0, 0, 0, 0))
    made.paste(digit, (14, 8))
    draw = ImageDraw.Draw(made)
    for i, line in enumerate(lines):
        font = ImageFont.load_default(size=18)
        draw.text((70, 132 + 20 * i), line, anchor="mm", font=font, fill=(200, 60, 40) if i == 0 else (20, 130, 90))
    return made


def main() -> None:
    """Draw all."""
    flagged()
    for name, chart in COMPARISONS.items():
        draw(chart, RESULTS / name)
    for name in COMPARISONS:
        slim(RESULTS / name)
        sys.stdout.write(f"{(RESULTS / name).relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
