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
    assert (ROOT / "docs" / "pictures" / "flagged-dark.png").exists()


def test_every_table_is_what_the_results_say():
    tool = runpy.run_path(str(ROOT / "tools" / "results_tables.py"), run_name="results_tables")
    text = {page: page.read_text() for page in tool["PAGES"]}
    assert {page: tool["filled"](old) for page, old in text.items()} == text  # else: make figures
    assert sum(page.count("<!-- table ") for page in text.values()) > 10
    changed = tool["filled"]("a\n<!-- table research/equal_cost/benchmark.py primary -->\nold\n<!-- /table -->\nb")
    assert "old" not in changed
    assert changed.startswith("a\n")
    assert changed.endswith("\nb")


def tool(name):
    return runpy.run_path(str(ROOT / "tools" / f"{name}.py"), run_name=name)


def test_every_figure_in_a_sentence_has_a_source_that_agrees():
    complaints = tool("figures_in_text")["complaints"]
    said = "SGD reaches 52.5 %.\n<!-- figures\n52.5 % = equal-cost mean cifar10 sgd@0.5\n-->\n"
    assert list(complaints(said)) == []
    (wrong,) = complaints(said.replace("52.5", "52.6"))
    assert "52.53" in wrong
    (unknown,) = complaints("SGD reaches 52.5 %, and `alpha=0.5` is a setting.\n")
    assert "52.5 %" in unknown
    (share,) = complaints("It failed with two of the five seeds.\n")
    assert "two of the five" in share
    failed = "With two of five seeds it failed.\n<!-- figures\ntwo of five seeds = failed 2000 0.2 SAM\n-->\n"
    assert "1, 5" in next(complaints(failed))
    (elsewhere,) = complaints("Another paragraph.\n" + said[said.index("<!--") :])
    assert "not in the paragraph" in elsewhere


def test_long_sentences_and_private_words_are_found():
    complaints = tool("prose")["complaints"]
    assert list(complaints("You train. `opt` " + "word " * 23 + "and ends.\n\n| a cell | another; `code` |\n")) == [
        "26 words: code " + "word " * 23 + "and ends.",
        "a semicolon: another; code",
    ]
    assert len(list(complaints("Its random twin, at the price of SGD.\n"))) == 2
    assert list(complaints("```\na; b\n```\n")) == []
    source = 'def f(x):\n    """Add; then stop.\n\n    >>> f(1); 2\n    3; 4\n\n    y = x; ``z; z``\n    """\n'
    assert list(complaints(source, tool("prose")["docstring_pieces"])) == ["a semicolon: Add; then stop."]
