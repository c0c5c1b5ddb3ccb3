"""The tables of the results' pages are those of the results beside them."""

import re
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from ausam_lab.paper.records.equal_cost import EqualCost
from ausam_lab.records import store

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


def without(benchmark, *names):
    """The benchmark as if these rows had never run."""
    return replace(
        benchmark,
        problems=tuple(
            replace(p, entries=tuple(replace(e, row=None, cost=None) if e.name in names else e for e in p.entries))
            for p in benchmark.problems
        ),
    )


def test_rows_that_ran_later_join_the_others():
    join = runpy.run_path(str(ROOT / "tools" / "join_results.py"))["join"]
    whole = store.read_finished(ROOT / "docs" / "results" / "equal-cost.json", EqualCost)
    names = {e.name for p in whole.problems for e in p.entries} - {"sam", "sam+trusted-0.5"}
    joined = join(without(whole, "sam", "sam+trusted-0.5"), without(whole, *names))
    assert joined.problems == whole.problems  # with their differences, which neither part could know
    assert (joined.runs, joined.missing) == (whole.runs, whole.missing)
    more = replace(whole, problems=tuple(replace(p, seeds=(*p.seeds, 99)) for p in whole.problems))
    with pytest.raises(ValueError, match=r"seeds here and .* there"):
        join(whole, more)
