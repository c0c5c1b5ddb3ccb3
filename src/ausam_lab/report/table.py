"""The table of every report, and its emitters: text for a terminal, Markdown, LaTeX, CSV, and HTML for a page.

A report says what its table holds, once; the emitters say what it looks like:

    table = Table.of(["Method", "Accuracy %"], [["SGD", "94.00"], ["SAM", "96.00"]])
    to_text(table), to_markdown(table), to_latex(table), to_csv(table), to_html(table)
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ausam_lab.report import html
from ausam_lab.report.text import clean

if TYPE_CHECKING:
    from markupsafe import Markup

BEST, SECOND = "●", "○"  # in plain text, which has neither bold nor underlined figures
WIDE = "\u2800\u2800"  # as wide as a mark with its space, and not removed at the end of a cell as spaces would be
MARKS = "Bold is the best of a column, underlined the second best."
TEXT_MARKS = f"{BEST} is the best of a column, {SECOND} the second best."
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # text that begins so is a formula in a spreadsheet
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
LATEX = str.maketrans(
    {c: f"\\{c}" for c in "%&#_${}"}
    | {
        "±": "$\\pm$",
        "–": "--",
        "−": "$-$",
        "α": "$\\alpha$",
        "†": "\\textsuperscript{\\dag}",
        "‡": "\\textsuperscript{\\ddag}",
        "\\": "\\textbackslash{}",
    }
    | {"~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    | {chr(to): f"\\textsuperscript{{{chr(c)}}}" for c, to in SUPERSCRIPT.items()}
)


@dataclass(frozen=True)
class Line:
    """A line of a table."""

    cells: tuple[object, ...]  # None is an empty cell
    style: str = ""  # CSS classes: ours, best; for pages
    detail: str = ""  # small print under the first cell; for pages
    bold: tuple[int, ...] = ()  # the numbers of the cells with the best figure of their column
    underlined: tuple[int, ...] = ()  # of those with the second best


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
        """The headings in one row: the first column of each span carries its heading, ``CIFAR-10: Paper``."""
        first = {1 + i * self.span: name for i, name in enumerate(self.spans)}
        return [f"{first[i]}: {name}" if i in first else name for i, name in enumerate(self.head)]


def ranks(values: Sequence[float | None], *, lower: bool = False) -> list[int]:
    """The rank of each figure of a column, 0 for the best; None has the last. Equal figures share a rank.

    >>> ranks([90.0, 92.5, None, 92.5, 91.0])
    [2, 0, 3, 0, 1]
    """
    order = sorted({v for v in values if v is not None}, reverse=not lower)
    return [len(order) if v is None else order.index(v) for v in values]


def marked(lines: Sequence[Line], column: int, values: Sequence[float | None], *, lower: bool = False) -> list[Line]:
    """The lines, with the best figure of a column in bold and, of three or more, the second best underlined.

    Arguments:
        lines: the lines.
        column: the number of the column.
        values: its figures, rounded as they are shown; None for a line that has none.
        lower: whether the lowest is the best.
    """
    different = len({v for v in values if v is not None})
    out = []
    for line, rank in zip(lines, ranks(values, lower=lower), strict=True):
        bold = (column,) if rank == 0 and different > 1 else ()
        underlined = (column,) if rank == 1 and different > 2 else ()
        out.append(replace(line, bold=line.bold + bold, underlined=line.underlined + underlined))
    return out


def to_text(table: Table) -> str:
    """For a terminal or a file; as wide as its content, whatever the terminal's width."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, name in enumerate(table.flat_head):
        drawn.add_column(Text(clean(name)), justify="left" if i in table.left else "right", no_wrap=True)
    columns = {i for line in table.lines for i in (*line.bold, *line.underlined)}
    for section in filter(lambda section: section.lines, table.sections):
        rows = [*([[section.title]] if section.title else []), *(_with_marks(line, columns) for line in section.lines)]
        for row in rows:
            drawn.add_row(*(Text(clean(cell)) for cell in row))
        drawn.add_section()
    console = Console(width=10_000, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as captured:
        console.print(drawn)
    return "\n".join(line.replace(WIDE, "  ").rstrip() for line in captured.get().splitlines())


def _with_marks(line: Line, columns: set[int]) -> list[str]:
    """The texts, as wide in a column with marks as if each had one, so that figures stay under each other."""
    mark = (
        dict.fromkeys(columns, WIDE)
        | dict.fromkeys(line.underlined, f" {SECOND}")
        | dict.fromkeys(line.bold, f" {BEST}")
    )
    return [text + mark.get(i, "") for i, text in enumerate(_texts(line))]


def text_table(head: Sequence[str], rows: Iterable[Sequence[object]], left: Sequence[int] = (0,)) -> str:
    """A table of plain lines for a terminal."""
    return to_text(Table.of(head, rows, left=left))


def to_markdown(table: Table) -> str:
    """For a README; a section with a title becomes a table of its own, under its title."""
    rule = ["---" if i in table.left else "---:" for i in range(len(table.head))]
    head = [_markdown(table.flat_head), _markdown(rule)]
    if not any(section.title for section in table.sections):
        return "\n".join([*head, *map(_markdown_line, table.lines)])
    tables = []
    for section in table.sections:
        title = [f"### {section.title}", ""] if section.title else []
        tables.append("\n".join([*title, *head, *map(_markdown_line, section.lines)]))
    return "\n\n".join(tables)


def _markdown(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(_markdown_text, cells)) + " |"


def _markdown_text(text: str) -> str:
    return text.replace("*", "\\*").replace("|", "\\|")


def _markdown_line(line: Line) -> str:
    cells = _emphasised(line, map(_markdown_text, _texts(line)), bold="**{}**", underlined="<u>{}</u>")
    return "| " + " | ".join(cells) + " |"


def _emphasised(line: Line, cells: Iterable[str], *, bold: str, underlined: str) -> list[str]:
    form = dict.fromkeys(line.underlined, underlined) | dict.fromkeys(line.bold, bold)
    return [form.get(i, "{}").format(cell) for i, cell in enumerate(cells)]


def to_latex(table: Table, notes: Sequence[str] = ()) -> str:
    """For a paper, with the table's title as caption and notes under it; needs the package booktabs."""
    width, n = len(table.head), table.span
    columns = "".join("l" if i in table.left else "r" for i in range(width))
    out = [r"\begin{table*}", r"\centering", f"\\begin{{tabular}}{{{columns}}}", r"\toprule"]
    if table.spans:
        out.append("".join(f" & \\multicolumn{{{n}}}{{c}}{{{latex_text(name)}}}" for name in table.spans) + r" \\")
        ends = [(2 + n * i, 1 + n * (i + 1)) for i in range(len(table.spans))]
        out.append(" ".join(f"\\cmidrule(lr){{{first}-{last}}}" for first, last in ends))
    out.append(_latex(table.head))
    for section in table.sections:
        title = f"\\multicolumn{{{width}}}{{l}}{{\\textbf{{{latex_text(section.title)}}}}} \\\\"
        out += [r"\midrule", *([title] if section.title else []), *map(_latex_line, section.lines)]
    out += [r"\bottomrule", r"\end{tabular}"]
    if notes:
        out += [r"\begin{flushleft}\small", *(f"{latex_text(note)}\\par" for note in notes), r"\end{flushleft}"]
    return "\n".join([*out, f"\\caption{{{latex_text(table.title)}}}", r"\end{table*}"])


def latex_text(text: str) -> str:
    """Text in which nothing is a command of LaTeX."""
    return text.translate(LATEX)


def _latex(cells: Iterable[str]) -> str:
    return " & ".join(map(latex_text, cells)) + r" \\"


def _latex_line(line: Line) -> str:
    cells = _emphasised(line, map(latex_text, _texts(line)), bold="\\textbf{{{}}}", underlined="\\underline{{{}}}")
    return " & ".join(cells) + r" \\"


def to_csv(table: Table) -> str:
    """For spreadsheets and data frames; numbers are written in full, and text is never a formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.flat_head)
    writer.writerows([_spreadsheet_cell(cell) for cell in line.cells] for line in table.lines)
    return out.getvalue()


def _spreadsheet_cell(value: object) -> object:
    """Prefix text that a spreadsheet would evaluate with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def to_html(table: Table, *, stack: bool = False) -> Markup:
    """For a page, as a fragment.

    Arguments:
        table: the table; its title is not shown.
        stack: on a narrow screen, every line becomes a block with its headings; otherwise the table scrolls.
    """
    return html.fill("table.html", table=table, stack=stack)


def _texts(line: Line) -> list[str]:
    return ["" if cell is None else str(cell) for cell in line.cells]
