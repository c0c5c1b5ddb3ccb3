"""The table of every report, and its emitters: text for a terminal, Markdown, LaTeX, CSV, and HTML for a page.

A report says what its table holds, once; the emitters say what it looks like:

    table = Table.of(["Method", "Accuracy %"], [["SGD", "94.00"], ["SAM", "96.00"]])
    to_text(table), to_markdown(table), to_latex(table), to_csv(table), to_html(table)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ausam.audit.review import csv_text
from ausam_lab.report import html
from ausam_lab.report.text import BOLD, PLAIN, UNDERLINED, Screen

if TYPE_CHECKING:
    from markupsafe import Markup

MARKS = "Bold is the best of a column, underlined the second best."
TEXT_MARKS = "● is the best of a column, ○ the second best."
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
LATEX = str.maketrans(
    {c: f"\\{c}" for c in "%&#_${}"}
    | {"±": "$\\pm$", "–": "--", "−": "$-$", "α": "$\\alpha$", "\\": "\\textbackslash{}"}
    | {"†": "\\textsuperscript{\\dag}", "‡": "\\textsuperscript{\\ddag}"}
    | {"~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    | {chr(to): f"\\textsuperscript{{{chr(c)}}}" for c, to in SUPERSCRIPT.items()}
)


@dataclass(frozen=True)
class Line:
    """A line of a table."""

    cells: tuple[object, ...]  # None is an empty cell
    style: str = ""  # CSS class, for pages: "ours", "best"
    bold: tuple[int, ...] = ()  # the numbers of the cells with the best figure of their column
    underlined: tuple[int, ...] = ()  # of those with the second best

    def texts(self, bold: str, underlined: str, escape: Callable[[str], str] = str) -> list[str]:
        """The cells as text, escaped; the two forms are those of the marked cells, e.g. ``**{}**``."""
        forms = dict.fromkeys(self.underlined, underlined) | dict.fromkeys(self.bold, bold)
        texts = ["" if cell is None else escape(str(cell)) for cell in self.cells]
        return [forms.get(i, "{}").format(text) for i, text in enumerate(texts)]


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
    title: str = ""
    spans: tuple[str, ...] = ()  # headings above the head; they share the columns after the first evenly
    left: tuple[int, ...] = (0,)  # the columns aligned to the left

    @classmethod
    def of(
        cls, head: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "", left: Sequence[int] = (0,)
    ) -> Table:
        """A table of plain lines in one section."""
        section = Section(tuple(Line(tuple(row)) for row in rows))
        return cls(tuple(head), (section,), title, left=tuple(left))

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines of all sections."""
        return tuple(line for section in self.sections for line in section.lines)

    @property
    def span(self) -> int:
        """The number of columns under each of the spans."""
        return (len(self.head) - 1) // len(self.spans) if self.spans else 0

    @property
    def flat_head(self) -> list[str]:
        """The headings in one row: the first column of each span has its heading, ``CIFAR-10: Paper``."""
        first = {1 + i * self.span: name for i, name in enumerate(self.spans)}
        return [f"{first[i]}: {name}" if i in first else name for i, name in enumerate(self.head)]


def marked(lines: Sequence[Line], column: int, values: Sequence[float | None], *, lower: bool = False) -> list[Line]:
    """The lines, with the best figure of a column in bold and, of three or more, the second best underlined.

    Arguments:
        lines: the lines.
        column: the number of the column.
        values: its figures, rounded as they are shown; None for a line that has none.
        lower: whether the lowest is the best.
    """
    order = sorted({value for value in values if value is not None}, reverse=not lower)
    out = []
    for line, value in zip(lines, values, strict=True):
        if len(order) > 1 and value == order[0]:
            line = replace(line, bold=(*line.bold, column))
        elif len(order) > 2 and value == order[1]:
            line = replace(line, underlined=(*line.underlined, column))
        out.append(line)
    return out


def to_text(table: Table, screen: Screen | None = None) -> str:
    """For a terminal or a file; None: as wide as its content. A screen shows the first columns that fit.

    On a screen with bold text the marked cells are bold and underlined, elsewhere they have ● and ○.
    """
    bold = screen is not None and screen.bold
    with_marks = {i for line in table.lines for i in (*line.bold, *line.underlined)}

    def cells(line: Line) -> list[str]:
        if bold:
            return line.texts("{}", "{}")
        room = with_marks - {*line.bold, *line.underlined}
        return [text + "  " * (i in room) for i, text in enumerate(line.texts("{} ●", "{} ○"))]

    head = Line(tuple(table.flat_head))
    widths = [max(map(len, column)) for column in zip(*map(cells, (head, *table.lines)), strict=True)]
    shown = len(widths)
    while screen is not None and shown > 1 and sum(widths[:shown]) + 2 * (shown - 1) > screen.columns:
        shown -= 1

    def aligned(line: Line) -> str:
        sides = zip(cells(line)[:shown], widths, strict=False)
        texts = [text.ljust(n) if i in table.left else text.rjust(n) for i, (text, n) in enumerate(sides)]
        styles = dict.fromkeys(line.underlined, UNDERLINED) | dict.fromkeys(line.bold, BOLD) if bold else {}
        return "  ".join(f"{styles[i]}{text}{PLAIN}" if i in styles else text for i, text in enumerate(texts)).rstrip()

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


def to_markdown(table: Table) -> str:
    """For a README; a section with a title becomes a table of its own, under its title."""

    def escape(text: str) -> str:
        return text.replace("*", "\\*").replace("|", "\\|")

    def row(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    head = [
        row(map(escape, table.flat_head)),
        row("---" if i in table.left else "---:" for i in range(len(table.head))),
    ]
    blocks = {section.title: section.lines for section in table.sections}
    if not any(blocks):
        blocks = {"": table.lines}
    tables = []
    for title, lines in blocks.items():
        rows = [row(line.texts("**{}**", "<u>{}</u>", escape)) for line in lines]
        tables.append("\n".join([*([f"### {title}", ""] if title else []), *head, *rows]))
    return "\n\n".join(tables)


def to_latex(table: Table, notes: Sequence[str] = ()) -> str:
    """For a paper, with the table's title as caption and notes under it; needs the package booktabs."""
    width, n = len(table.head), table.span
    columns = "".join("l" if i in table.left else "r" for i in range(width))
    out = [r"\begin{table*}", r"\centering", f"\\begin{{tabular}}{{{columns}}}", r"\toprule"]
    if table.spans:
        out.append("".join(f" & \\multicolumn{{{n}}}{{c}}{{{latex_text(name)}}}" for name in table.spans) + r" \\")
        ends = [(2 + n * i, 1 + n * (i + 1)) for i in range(len(table.spans))]
        out.append(" ".join(f"\\cmidrule(lr){{{first}-{last}}}" for first, last in ends))
    out.append(" & ".join(map(latex_text, table.head)) + r" \\")
    for section in table.sections:
        title = f"\\multicolumn{{{width}}}{{l}}{{\\textbf{{{latex_text(section.title)}}}}} \\\\"
        out += [r"\midrule", *([title] if section.title else [])]
        for line in section.lines:
            out.append(" & ".join(line.texts("\\textbf{{{}}}", "\\underline{{{}}}", latex_text)) + r" \\")
    out += [r"\bottomrule", r"\end{tabular}"]
    if notes:
        out += [r"\begin{flushleft}\small", *(f"{latex_text(note)}\\par" for note in notes), r"\end{flushleft}"]
    return "\n".join([*out, f"\\caption{{{latex_text(table.title)}}}", r"\end{table*}"])


def latex_text(text: str) -> str:
    """Text in which nothing is a command of LaTeX."""
    return text.translate(LATEX)


def to_csv(table: Table) -> str:
    """For spreadsheets and data frames; numbers are written in full, and text is never a formula."""
    return csv_text(table.flat_head, [line.cells for line in table.lines])


def to_html(table: Table) -> Markup:
    """For a page, as a fragment; the table's title is not shown."""
    return html.fill("table.html", table=table)
