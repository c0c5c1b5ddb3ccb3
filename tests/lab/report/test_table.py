"""One table, two emitters: both have every cell, and what means something there is escaped."""

import pytest

from ausam_lab.report.table import Line, Section, Table, marked, to_html, to_text
from ausam_lab.report.text import wrapped

ROWS = [["SGD", "94.0 ± 0.3", "better*"], ["a|b_c", 1.5, None]]
PLAIN = Table.of(["Method", "Score %", "Verdict"], ROWS, left=(0, 2))
GROUPED = Table(
    ("Method", "Paper", "Ours", "Paper", "Ours"),
    (Section((Line(("SAM", "1", "2", "3", "4")),), "ResNet"), Section((Line(("SGD", "5", "6", "7", "8")),), "WRN")),
)


def test_text_is_aligned_and_sections_are_apart():
    head, rule, first, second = to_text(PLAIN).splitlines()
    assert set(rule) == {"─"}
    assert first.index("better*") == head.index("Verdict")  # left
    assert second.index("1.5") + 3 == head.index("Score %") + len("Score %")  # right
    lines = to_text(GROUPED).splitlines()
    assert [line.strip() for line in lines[2:]] == ["ResNet", "SAM" + lines[3][3:], "", "WRN", "SGD" + lines[6][3:]]


def test_html_escapes():
    line = Line(("<b>", "1", "2"), style="ours", bold=(2,))
    page = str(to_html(Table(("Method", "A & B", "C"), (Section((line,)),))))
    assert "&lt;b&gt;</th>" in page
    assert "A &amp; B" in page
    assert "<b>2</b>" in page
    assert '<tr class="ours">' in page
    assert str(to_html(GROUPED)).count("<tbody>") == 2


@pytest.mark.parametrize("emit", [to_text, to_html])
def test_an_empty_table(emit):
    assert "Method" in emit(Table.of(["Method", "Score"], []))


def marks(values):
    lines = marked([Line((name, "1*")) for name in "abcd"[: len(values)]], 1, values)
    return ["best" if line.bold else "" for line in lines]


def test_the_best_of_a_column():
    assert marks([90.0, 92.0, 91.0]) == ["", "best", ""]
    assert marks([92.0, None, 92.0, 90.0]) == ["best", "", "best", ""]
    assert marks([92.0, 92.0]) == marks([None, None]) == ["", ""]


def test_every_form_shows_the_mark():
    lines = marked([Line(("a", "1*")), Line(("b", "3_")), Line(("c", "2%"))], 1, [1.0, 3.0, 2.0])
    table = Table(("Method", "Score"), (Section(tuple(lines)),))
    body = to_text(table).splitlines()[2:]
    assert [line[-3:] for line in body] == [" 1*", "_ ●", " 2%"]
    assert len({line.index(figure) for line, figure in zip(body, "132", strict=True)}) == 1  # under each other
    assert "<b>3_</b>" in to_html(table)


def test_a_figure_and_its_unit_stay_on_one_line():
    assert wrapped("AUSAM-0.5 reaches 93.18 %", 25) == "AUSAM-0.5 reaches\n93.18 %"
