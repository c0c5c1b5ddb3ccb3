"""``make figures`` draws every picture of the results, and nothing else does."""

import runpy
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def figures():
    return runpy.run_path(str(ROOT / "tools" / "figures.py"), run_name="figures")


def test_every_picture_comes_from_the_script(figures):
    assert {p.name for p in RESULTS.glob("*.png")} == {
        *figures["COMPARISONS"],
        *figures["EQUAL_COST"],
        *figures["GAINS"],
        *figures["THEORY"],
    }


def test_a_picture_shows_the_rows_that_it_names(figures, tmp_path):
    chart = figures["COMPARISONS"]["cifar10-memorised-curves.png"]
    figures["draw"](chart, tmp_path / "a.png")
    figures["slim"](tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as new, Image.open(RESULTS / "cifar10-memorised-curves.png") as kept:
        assert new.size == kept.size
