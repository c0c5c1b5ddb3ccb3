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
    }


def test_a_picture_is_what_the_results_say(figures, tmp_path):
    figures["draw"](figures["COMPARISONS"]["demo.png"], tmp_path / "a.png")
    figures["slim"](tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as new, Image.open(RESULTS / "demo.png") as kept:
        assert new.size == kept.size
