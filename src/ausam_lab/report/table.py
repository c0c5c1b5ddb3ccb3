"""The table of every report, and its two emitters: text for a terminal, and HTML for a page.

table = Table.of(["Method", "Accuracy %"], [["SGD", "94.00"], ["SAM", "96.00"]])
to_text(table), to_html(table)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from ausam_lab.report import html
from ausam_lab.report.text import BEST


@dataclass(frozen=True)
class Line:
    """A line of a table."""

    cells: tuple[object, ...]  # None is an empty cell
    style: str = ""  # CSS class, for pages: "ours"
    bold: tuple[int, ...] = ()  # the numbers of the cells with the best figure of their column


@dataclass(frozen=True)
class Section:
    """Lines that belong together, under a title if they have one."""

    lines: tuple[Line, ...]
    title: str = ""


@dataclass(frozen=True)
class Table:
    """A table: headings, and lines in sections."""

    head: tuple[str, ...]
    sections: tuple[Section, ...]
    left: tuple[int, ...] = (0,)  # the columns aligned to the left

    @classmethod
    def of(cls, head: Sequence[str], rows: Iterable[Sequence[object]], *, left: Sequence[int] = (0,)) -> Table:
        """A table of plain lines in one section."""
        section = Section(tuple(Line(tuple(row)) for row in rows))
        return cls(tuple(head), (section,), tuple(left))

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines of all sections."""
        return tuple(line for section in self.sections for line in section.lines)


def marked(lines: Sequence[Line], column: int, values: Sequence[float | None]) -> list[Line]:
    """The lines, with the best figure of a column in bold, unless all figures are equal.

    Arguments:
        lines: the lines.
        column: the number of the column.
        values: its figures, rounded as they are shown. None for a line that has none.
    """
    known = {value for value in values if value is not None}
    best = max(known) if len(known) > 1 else None
    bold = [(column,) if best is not None and value == best else () for value in values]
    return [replace(line, bold=(*line.bold, *of_line)) for line, of_line in zip(lines, bold, strict=True)]


def to_text(table: Table, columns: int | None = None) -> str:
    """For a terminal or a file: the columns that fit. Without a width, all of them. A ● marks the best figures."""
    with_marks = {i for line in table.lines for i in line.bold if i}

    def cells(line: Line) -> list[str]:
        texts = ["" if cell is None else str(cell) for cell in line.cells]
        marks = dict.fromkeys(with_marks, "  ") | dict.fromkeys(line.bold, f" {BEST}")
        return [text + (marks[i] if i in with_marks else "") for i, text in enumerate(texts)]

    head = Line(table.head)
    widths = [max(map(len, column)) for column in zip(*map(cells, (head, *table.lines)), strict=True)]
    shown = len(widths)
    while columns is not None and shown > 1 and sum(widths[:shown]) + 2 * (shown - 1) > columns:
        shown -= 1

    def aligned(line: Line) -> str:
        sides = zip(cells(line)[:shown], widths, strict=False)
        texts = (text.ljust(n) if i in table.left else text.rjust(n) for i, (text, n) in enumerate(sides))
        return "  ".join(texts).rstrip()

    out = [aligned(head), "─" * (sum(widths[:shown]) + 2 * (shown - 1))]
    for number, section in enumerate(section for section in table.sections if section.lines):
        out += [""] if number else []
        out += [section.title] if section.title else []
        out += map(aligned, section.lines)
    if left_out := len(widths) - shown:
        out.append(f"Not shown: {left_out} more column{'s' * (left_out > 1)}, for which this terminal is too narrow.")
    return "\n".join(out)


def to_html(table: Table) -> Markup:
    """For a page, as a fragment."""
    return html.fill("table.html", table=table)
