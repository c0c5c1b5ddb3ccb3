"""``make figures`` draws every picture and fills every table of the results."""

import runpy
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def figures():
    return runpy.run_path(str(ROOT / "tools" / "figures.py"), run_name="figures")


def test_every_picture_comes_from_a_script(figures):
    others = {"equal-cost-gains.png", "equal-cost-gains-narrow.png"}  # research/equal_cost/benchmark.py
    assert {p.name for p in RESULTS.glob("*.png")} == {*figures["COMPARISONS"], *others}


def test_a_picture_is_what_the_results_say(figures, tmp_path):
    figures["draw"](figures["COMPARISONS"]["demo.png"], tmp_path / "a.png")
    figures["slim"](tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as new, Image.open(RESULTS / "demo.png") as kept:
        assert new.size == kept.size


def test_every_table_is_what_the_results_say():
    tool = runpy.run_path(str(ROOT / "tools" / "results_tables.py"), run_name="results_tables")
    text = {page: page.read_text() for page in tool["PAGES"]}
    assert {page: tool["filled"](old) for page, old in text.items()} == text  # else: make figures
    assert sum(page.count("<!-- table ") for page in text.values()) > 10
    changed = tool["filled"]("a\n<!-- table research/equal_cost/benchmark.py primary -->\nold\n<!-- /table -->\nb")
    assert "old" not in changed
    assert changed.startswith("a\n")
    assert changed.endswith("\nb")
