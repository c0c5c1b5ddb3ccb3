"""The table of every report, and its two emitters: text for a terminal, and HTML for a page.

table = Table.of(["Method", "Accuracy %"], [["SGD", "94.00"], ["SAM", "96.00"]])
to_text(table), to_html(table)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ausam_lab.report import html
from ausam_lab.report.text import BOLD, PLAIN, Screen

if TYPE_CHECKING:
    from markupsafe import Markup

BEST = "●"  # marks the best figure of a column where text cannot be bold


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


def marked(lines: Sequence[Line], column: int, values: Sequence[float | None], *, lower: bool = False) -> list[Line]:
    """The lines, with the best figure of a column in bold, unless all figures are equal.

    Arguments:
        lines: the lines.
        column: the number of the column.
        values: its figures, rounded as they are shown. None for a line that has none.
        lower: whether the lowest is the best.
    """
    known = {value for value in values if value is not None}
    best = (min(known) if lower else max(known)) if len(known) > 1 else None
    bold = [(column,) if best is not None and value == best else () for value in values]
    return [replace(line, bold=(*line.bold, *of_line)) for line, of_line in zip(lines, bold, strict=True)]


def to_text(table: Table, screen: Screen | None = None) -> str:
    """For a terminal or a file. Without a width, as wide as its content. A screen shows the first columns that fit.

    The marked cells are bold on a screen with bold text. Elsewhere marked figures have a ●.
    """
    bold = screen is not None and screen.bold
    with_marks = {i for line in table.lines for i in line.bold if i and not bold}

    def cells(line: Line) -> list[str]:
        texts = ["" if cell is None else str(cell) for cell in line.cells]
        marks = dict.fromkeys(with_marks, "  ") | dict.fromkeys(line.bold, f" {BEST}")
        return [text + (marks[i] if i in with_marks else "") for i, text in enumerate(texts)]

    head = Line(table.head)
    widths = [max(map(len, column)) for column in zip(*map(cells, (head, *table.lines)), strict=True)]
    shown = len(widths)
    while screen is not None and shown > 1 and sum(widths[:shown]) + 2 * (shown - 1) > screen.columns:
        shown -= 1

    def aligned(line: Line) -> str:
        sides = zip(cells(line)[:shown], widths, strict=False)
        texts = [text.ljust(n) if i in table.left else text.rjust(n) for i, (text, n) in enumerate(sides)]
        strong = line.bold if bold else ()
        return "  ".join(f"{BOLD}{text}{PLAIN}" if i in strong else text for i, text in enumerate(texts)).rstrip()

    out = [aligned(head), "─" * (sum(widths[:shown]) + 2 * (shown - 1))]
    for number, section in enumerate(section for section in table.sections if section.lines):
        out += [""] if number else []
        out += [section.title] if section.title else []
        out += map(aligned, section.lines)
    if left_out := len(widths) - shown:
        out.append(f"Not shown: {left_out} more column{'s' * (left_out > 1)}, for which this terminal is too narrow.")
    return "\n".join(out)


def text_table(head: Sequence[str], rows: Iterable[Sequence[object]], left: Sequence[int] = (0,)) -> str:
    """A table of plain lines for a terminal."""
    return to_text(Table.of(head, rows, left=left))


def to_html(table: Table) -> Markup:
    """For a page, as a fragment."""
    return html.fill("table.html", table=table)
