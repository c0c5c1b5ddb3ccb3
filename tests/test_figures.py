"""``make figures`` draws the picture of flagged labels and fills every table of the results."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_picture_has_its_caption():
    text = (ROOT / "README.md").read_text()
    flagged, wrong, found = map(
        int, re.search(r"of (\d+) flagged digits. (\d+) of 1,000 .* (\d+) of them", text).groups()
    )
    assert found <= min(flagged, wrong)
    assert (ROOT / "docs" / "pictures" / "flagged.png").exists()


def test_every_table_is_what_the_results_say():
    tool = runpy.run_path(str(ROOT / "tools" / "results_tables.py"), run_name="results_tables")
    text = {page: page.read_text() for page in tool["PAGES"]}
    assert {page: tool["filled"](old) for page, old in text.items()} == text  # else: make figures
    assert sum(page.count("<!-- table ") for page in text.values()) > 10
    changed = tool["filled"]("a\n<!-- table research/equal_cost/benchmark.py primary -->\nold\n<!-- /table -->\nb")
    assert "old" not in changed
    assert changed.startswith("a\n")
    assert changed.endswith("\nb")
