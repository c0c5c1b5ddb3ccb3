"""One table, five emitters: every form has every cell, and what means something there is escaped."""

import csv
import io

import pytest

from ausam_lab.report.table import Line, Section, Table, marked, to_csv, to_html, to_latex, to_markdown, to_text

ROWS = [["SGD", "94.0 ± 0.3", "better*"], ["a|b_c", 1.5, None]]
PLAIN = Table.of(["Method", "Score %", "Verdict"], ROWS, left=(0, 2))
GROUPED = Table(
    ("Method", "Paper", "Ours", "Paper", "Ours"),
    (Section((Line(("SAM", "1", "2", "3", "4")),), "ResNet"), Section((Line(("SGD", "5", "6", "7", "8")),), "WRN")),
    title="Both & more",
    spans=("A", "B"),
)


def test_text_is_aligned_and_sections_are_apart():
    head, rule, first, second = to_text(PLAIN).splitlines()
    assert set(rule) == {"─"}
    assert first.index("better*") == head.index("Verdict")  # left
    assert second.index("1.5") + 3 == head.index("Score %") + len("Score %")  # right
    lines = to_text(GROUPED).splitlines()
    assert lines[0].split() == ["Method", "A:", "Paper", "Ours", "B:", "Paper", "Ours"]
    assert [line.strip() for line in lines[2:]] == ["ResNet", "SAM" + lines[3][3:], "", "WRN", "SGD" + lines[6][3:]]


def test_markdown_escapes_and_titled_sections_are_tables():
    assert to_markdown(PLAIN).splitlines() == [
        "| Method | Score % | Verdict |",
        "| --- | ---: | --- |",
        "| SGD | 94.0 ± 0.3 | better\\* |",
        "| a\\|b_c | 1.5 |  |",
    ]
    assert to_markdown(GROUPED).count("| Method | A: Paper | Ours | B: Paper | Ours |") == 2
    assert "### WRN" in to_markdown(GROUPED)


def test_latex_has_spans_sections_and_notes():
    tex = to_latex(GROUPED, ["100 % of it"])
    assert r" & \multicolumn{2}{c}{A} & \multicolumn{2}{c}{B} \\" in tex
    assert r"\cmidrule(lr){2-3} \cmidrule(lr){4-5}" in tex
    assert tex.count(r"\midrule") == 2
    assert r"\textbf{WRN}" in tex
    assert r"\caption{Both \& more}" in tex
    assert r"100 \% of it\par" in tex
    assert r"a|b\_c & 1.5 &  \\" in to_latex(PLAIN)


def test_csv_keeps_numbers_and_writes_no_formula():
    table = Table.of(["name", "score"], [["=1+1", 0.1], ["@x", -2.5], ["x", None]])
    assert list(csv.reader(io.StringIO(to_csv(table)))) == [
        ["name", "score"],
        ["'=1+1", "0.1"],
        ["'@x", "-2.5"],
        ["x", ""],
    ]


def test_html_escapes():
    line = Line(("<b>", "1", "2"), style="ours", bold=(2,))
    page = str(to_html(Table(("Method", "A & B", "C"), (Section((line,)),))))
    assert "&lt;b&gt;</th>" in page
    assert "A &amp; B" in page
    assert "<b>2</b>" in page
    assert '<tr class="ours">' in page
    assert str(to_html(GROUPED)).count('colspan="2"') == 2
    assert str(to_html(GROUPED)).count("<tbody>") == 2


@pytest.mark.parametrize("emit", [to_text, to_markdown, to_latex, to_csv, to_html])
def test_an_empty_table(emit):
    assert "Method" in emit(Table.of(["Method", "Score"], []))


def marks(values, **how):
    lines = marked([Line((name, "1*")) for name in "abcd"[: len(values)]], 1, values, **how)
    return ["best" if line.bold else "second" if line.underlined else "" for line in lines]


def test_the_best_and_the_second_best_of_a_column():
    assert marks([90.0, 92.0, 91.0]) == ["", "best", "second"]
    assert marks([90.0, 92.0, 91.0], lower=True) == ["best", "", "second"]
    assert marks([92.0, 92.0, 91.0, 90.0]) == ["best", "best", "second", ""]
    assert marks([None, 92.0, 91.0]) == ["", "best", ""]  # of two, the other one needs no mark
    assert marks([92.0, 92.0]) == marks([None, None]) == ["", ""]


def test_every_form_shows_the_marks_but_the_spreadsheet():
    lines = marked([Line(("a", "1*")), Line(("b", "3_")), Line(("c", "2%"))], 1, [1.0, 3.0, 2.0])
    table = Table(("Method", "Score"), (Section(tuple(lines)),))
    assert [line.rstrip()[-3:] for line in to_text(table).splitlines()[2:]] == [" 1*", "_ ●", "% ○"]
    body = to_text(table).splitlines()[2:]
    assert len({line.index(figure) for line, figure in zip(body, "132", strict=True)}) == 1  # under each other
    assert to_markdown(table).splitlines()[2:] == ["| a | 1\\* |", "| b | **3_** |", "| c | <u>2%</u> |"]
    assert r"b & \textbf{3\_} \\" in to_latex(table)
    assert r"c & \underline{2\%} \\" in to_latex(table)
    assert "<b>3_</b>" in to_html(table)
    assert "<u>2%</u>" in to_html(table)
    assert to_csv(table) == "Method,Score\na,1*\nb,3_\nc,2%\n"
