"""Fill the tables of the documentation from what was measured: ``make figures``.

A table stands between ``<!-- table SCRIPT PART -->`` and ``<!-- /table -->``: what the function ``table`` of the script
returns for the part. ``<!-- table NAME -->`` stands for benchmarks/NAME.py and docs/results/NAME.jsonl.
"""

from __future__ import annotations

import functools
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))  # a benchmark imports its neighbours
RESULTS = ROOT / "docs" / "results"
PAGES = sorted(
    page for place in ("README.md", "docs/*.md", "docs/results/*.md", "research/*/*.md") for page in ROOT.glob(place)
)
BLOCK = re.compile(r"(<!-- table (\S+)(?: (\S+))? -->\n).*?(<!-- /table -->)", re.DOTALL)


@functools.cache
def script(path: Path) -> Callable[[str | Path], str]:
    """The function that makes the tables of a script."""
    made: Callable[[str | Path], str] = runpy.run_path(str(path))["table"]
    return made


def table(source: str, part: str | None) -> str:
    """A table in Markdown."""
    if part is not None:
        return script(ROOT / source)(part)
    return script(ROOT / "benchmarks" / f"{source.replace('-', '_')}.py")(RESULTS / f"{source}.jsonl")


def filled(page: str) -> str:
    """The page with every table as the results have it."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{table(match[2], match[3])}\n\n{match[4]}", page)


def main() -> None:
    """Write the pages."""
    for page in PAGES:
        if (new := filled(old := page.read_text())) != old:
            page.write_text(new)


if __name__ == "__main__":
    main()
