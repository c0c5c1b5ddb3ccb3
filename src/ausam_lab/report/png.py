"""The charts of a comparison as PNG files: ``python -m ausam_lab.report.png results.json FOLDER``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ausam_lab.records import files, store
from ausam_lab.records.comparison import Comparison
from ausam_lab.report import vega
from ausam_lab.report.pages.comparison import pictures


def write(
    comparison: Comparison, folder: Path, theme: Literal["light", "dark"] = "light", scale: float = 2.0
) -> list[Path]:
    """Write each chart of the page as ``NAME.png`` (time, curves, chosen, mislabelled, classes); returns the files.

    Arguments:
        comparison: the comparison.
        folder: the output folder; created if needed.
        theme: the colour theme.
        scale: pixels per unit; a chart is 640 units wide.
    """
    paths = []
    for picture in pictures(comparison):
        paths.append(folder / f"{picture.name}.png")
        files.write(paths[-1], vega.png(picture.spec, theme, scale))
    return paths


def main(argv: Sequence[str] | None = None) -> int:
    """Read the results, write the pictures, and print where they are."""
    parser = argparse.ArgumentParser(prog="python -m ausam_lab.report.png", description=__doc__)
    parser.add_argument("results", type=Path, help="the results.json of ausam compare")
    parser.add_argument("folder", type=Path, help="the output folder")
    parser.add_argument("--theme", choices=list(vega.THEMES), default="light")
    parser.add_argument("--scale", type=float, default=2.0, help="pixels per unit; a chart is 640 units wide (2)")
    args = parser.parse_args(argv)
    try:
        paths = write(store.read_finished(args.results, Comparison), args.folder, args.theme, args.scale)
    except ValueError as error:
        parser.error(str(error))
    sys.stdout.write("".join(f"{path}\n" for path in paths))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
