"""The tables of the results' pages are those of the results beside them."""

import re
import runpy
from pathlib import Path

import pytest

from ausam.lab.records import results as records
from ausam.lab.records.results import EqualCost

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(ROOT / "tools" / "results_tables.py"), run_name="results_tables")


@pytest.fixture(scope="module")
def found(tool):
    return records.read_finished(tool["RESULTS"] / "equal-cost.json", EqualCost)


def test_every_table_is_what_the_results_say(tool, found):
    text = {page.name: page.read_text() for page in tool["PAGES"]}
    assert {name: tool["filled"](page, found) for name, page in text.items()} == text  # else: make figures
    shown = re.findall(r"<!-- table (\S+) -->", text["tables.md"])
    begun = [p.name for p in found.problems if any(e.row is not None for e in p.entries)]
    assert sorted(shown) == sorted([*begun, "winners"])


def test_no_row_lacks_a_seed(found):
    rows = [(len(p.seeds), e.row) for p in found.problems for e in p.entries if e.row is not None]
    assert len(rows) > 30
    assert all(row.n == seeds for seeds, row in rows)


def test_a_table_that_differs_is_written_again(tool, found):
    page = "before\n<!-- table etth1 -->\nold\n<!-- /table -->\nafter"
    text = tool["filled"](page, found)
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter")
    (sam,) = re.findall(r"\| 100 % \| SAM \(c\) \| (\S+) ±", text)
    row = next(e.row for p in found.problems for e in p.entries if p.name == "etth1" and e.name == "sam")
    assert float(sam) == round(row.mean, 4)
    assert "Train s" not in text
