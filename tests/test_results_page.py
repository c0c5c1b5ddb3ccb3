"""The tables of the results' pages are those of the results beside them."""

import re
import runpy
from pathlib import Path

import pytest

from ausam.lab.records import store
from ausam.paper.records.equal_cost import EqualCost

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def tool():
    return runpy.run_path(str(ROOT / "tools" / "results_tables.py"), run_name="results_tables")


def test_every_table_is_what_the_results_say(tool):
    text = {page.name: page.read_text() for page in tool["PAGES"]}
    assert {name: tool["filled"](page) for name, page in text.items()} == text  # else: make figures
    assert len(re.findall(r"<!-- table (\S+) -->", "".join(text.values()))) > 10


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "results").glob("equal-cost*.json")), ids=lambda path: path.stem
)
def test_no_row_lacks_a_seed(path):
    benchmark = store.read_finished(path, EqualCost)
    rows = [(len(p.seeds), e.row) for p in benchmark.problems for e in p.entries if e.row is not None]
    assert rows
    assert all(row.n == seeds for seeds, row in rows)


def test_a_table_that_differs_is_written_again(tool):
    text = tool["filled"]("before\n<!-- table equal-cost-0.2/etth1 -->\nold\n<!-- /table -->\nafter")
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter")
    (sam,) = re.findall(r"\| 100 % \| SAM \(c\) \| (\S+) ±", text)
    problems = tool["benchmark"]("equal-cost-0.2").problems
    row = next(e.row for p in problems for e in p.entries if p.name == "etth1" and e.name == "sam")
    assert float(sam) == round(row.mean, 4)
