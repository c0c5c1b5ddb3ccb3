"""Join parts of the equal-cost benchmark that ran in different folders.

    python tools/join_equal_cost.py PART.json [PART.json ...] --out docs/results/equal-cost.json

Each part is the results.json of ``ausam reproduce equal-cost``. Scores that two parts share must be equal. Rows
that lack a seed are left out.
"""

from __future__ import annotations

import argparse
import functools
import sys
from dataclasses import replace
from pathlib import Path

from ausam.lab.records import results as records
from ausam.lab.records.results import EqualCost
from ausam.paper import budgets, equal_cost


def main() -> None:
    """Read the parts, write the whole and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="the joined results.json")
    arguments = parser.parse_args()
    parts = [records.read_finished(path, EqualCost) for path in arguments.parts]
    found = budgets.without_incomplete(functools.reduce(budgets.join_parts, parts))
    found = replace(found, command="ausam reproduce equal-cost")
    records.write(arguments.out, found)
    sys.stdout.write(equal_cost.markdown(found))


if __name__ == "__main__":
    main()
