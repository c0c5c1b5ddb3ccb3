"""A table of the paper next to ours: its record, and the same as text, Markdown, LaTeX and a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ausam.common.settings import Count
from ausam_lab.records.comparison import Row
from ausam_lab.records.store import Record
from ausam_lab.report import html
from ausam_lab.report.summary import skipped_notes
from ausam_lab.report.table import (
    MARKS,
    SUPERSCRIPT,
    TEXT_MARKS,
    Line,
    Section,
    Table,
    marked,
    to_html,
    to_latex,
    to_markdown,
    to_text,
)
from ausam_lab.report.text import NONE, capital, show

MISSING = "missing"
STAR = "‡"
HEAD = ("Paper", "SAM%", "Ours (runs)", "SAM%")


@dataclass(frozen=True)
class Published:
    """The paper's figures for a row; None where it has none."""

    score: float | None = None
    std: float | None = None
    speed: float | None = None  # SAM = 100
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TableCell:
    """One pair in one column of a table: the paper's figures, and ours if a run has ended."""

    name: str
    label: str
    note: str  # a key of the table's notes
    paper: Published
    ours: Row | None

    @property
    def in_paper(self) -> bool:
        """Whether the paper has figures for it."""
        return self.paper.score is not None


@dataclass(frozen=True)
class TableColumn:
    """A network on a data set: a column of a table, under the heading of its group."""

    name: str
    group: str
    heading: str
    title: str
    about: str
    headline: str
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class PaperTable(Record):
    """A table of the paper next to ours."""

    FORMAT = "table"

    table: str
    scale: str
    title: str
    command: str
    created: str
    seeds: tuple[int, ...]
    runs: Count  # that the whole table has
    missing: Count
    notes: dict[str, str]
    metric: str
    unit: str
    columns: tuple[TableColumn, ...]
    deviations: tuple[str, ...] = ()  # from the paper's setup


def table(paper: PaperTable) -> Table:
    """The figures of the paper and ours, side by side."""
    named, names = parts(paper), list(dict.fromkeys(c.heading for c in paper.columns))
    sections = [
        Section(_lines(paper, group, names, named), group) for group in dict.fromkeys(c.group for c in paper.columns)
    ]
    head = ("Whose (runs)", *(part[:3].capitalize() for part in named), "Mean", "SAM%") if named else HEAD
    return Table(("Method", *head * len(names)), tuple(sections), paper.title, tuple(names))


def parts(paper: PaperTable) -> list[str]:
    """The parts that a figure averages, where the paper lists them: the groups of joints."""
    return list(dict.fromkeys(k for c in paper.columns for cell in c.cells for k in cell.paper.parts))


# The cells of a row in one column of the paper, and the figures to compare, by whose they are and their position.
Figures = tuple[list[str], dict[tuple[str, int], float | None]]


def _lines(paper: PaperTable, group: str, headings: list[str], named: list[str]) -> tuple[Line, ...]:
    """The lines of one part of the table: a label, then the figures of each column, in the paper's order.

    The paper's figures and ours are side by side; where a figure has parts, ours are on a separate line. The best
    and the second best are marked, among the paper's figures and among ours.
    """
    inside = {c.heading: c for c in paper.columns if c.group == group}
    rows = {(cell.name, cell.note): cell for c in inside.values() for cell in c.cells}
    lower = any(cell.ours and cell.ours.lower_is_better for cell in rows.values())
    width = len(named) + 3 if named else len(HEAD)
    lines: list[Line] = []
    figures: list[dict[tuple[str, int], float | None]] = []  # of each line
    for key, row in sorted(rows.items(), key=lambda item: not item[1].in_paper):
        own = {h: cell for h, c in inside.items() for cell in c.cells if (cell.name, cell.note) == key}
        forms = [partial(f, named) for f in (_paper, _ours)] if named else [_both]
        for form in forms[0 if row.in_paper else -1 :]:
            line = [row.label + (row.note.translate(SUPERSCRIPT) if row.in_paper else "†")]
            figures.append({})
            for heading in headings:
                cells, values = form(own[heading]) if heading in own else ([""] * width, {})
                figures[-1] |= {(whose, len(line) + i): value for (whose, i), value in values.items()}
                line += cells
            lines.append(Line(tuple(line)))
    for whose, column in sorted({key for of_line in figures for key in of_line}):
        lines = marked(lines, column, [of_line.get((whose, column)) for of_line in figures], lower=lower)
    return tuple(lines)


def _both(cell: TableCell) -> Figures:
    d = 2 if cell.ours is None else cell.ours.decimals
    paper = [show(cell.paper.score, d, cell.paper.std), show(cell.paper.speed, 0)]
    if (ours := cell.ours) is None:
        return [*paper, MISSING, NONE], {("paper", 0): cell.paper.score}
    own = [f"{show(ours.mean, d, ours.std)}{_star(ours)} ({ours.n})", show(ours.speed_of_sam, 0)]
    return [*paper, *own], {("paper", 0): cell.paper.score, ("ours", 2): round(ours.mean, d)}


def _paper(parts: list[str], cell: TableCell) -> Figures:
    figures = [show(cell.paper.parts.get(part), 1) for part in parts]
    cells = ["paper", *figures, show(cell.paper.score, 1, cell.paper.std), show(cell.paper.speed, 0)]
    return cells, {("paper", 1 + len(parts)): cell.paper.score}


def _ours(parts: list[str], cell: TableCell) -> Figures:
    if (ours := cell.ours) is None:
        return ["ours", *[MISSING] * (len(parts) + 1), NONE], {}
    d = 1 if ours.unit == "%" else ours.decimals
    figures = [show(ours.parts.get(part), d) for part in parts]
    mean = f"{show(ours.mean, d, ours.std)}{_star(ours)}"
    cells = [f"ours ({ours.n})", *figures, mean, show(ours.speed_of_sam, 0)]
    return cells, {("ours", 1 + len(parts)): round(ours.mean, d)}


def _star(ours: Row) -> str:
    return STAR if ours.against_sam is not None and ours.against_sam.clear else ""


def footnotes(paper: PaperTable) -> list[str]:
    """What the marks and columns mean, and what they do not show."""
    notes = [f"{k.translate(SUPERSCRIPT)} In the paper {v}." for k, v in paper.notes.items()]
    every = [cell for c in paper.columns for cell in c.cells]
    if any(not cell.in_paper for cell in every):
        notes.append("† Not in the paper's table: what else the same cost buys.")
    if any(cell.ours is not None and _star(cell.ours) for cell in every):
        notes.append(
            f"{STAR} Ours differs significantly from our SAM at 5 %: paired over seeds, Holm's correction over the "
            "rows of a column."
        )
    unit = {"%": " in percent", "": ""}.get(paper.unit, f" in {paper.unit}")
    notes.append(
        f"{capital(paper.metric)}{unit}, mean ± standard deviation over seeds. "
        "SAM%: speed of training, SAM = 100, against runs on the same machine."
    )
    if any(line.bold for line in table(paper).lines):
        notes.append(f"{MARKS} The paper's figures and ours are marked separately.")
    if any(cell.ours is not None and cell.ours.lower_is_better for cell in every):
        notes.append(f"Lower {paper.metric} is better.")
    if paper.scale == "small":
        notes.append(
            "Small scale: compare our rows with each other, not with the paper's figures, which use larger networks."
        )
        notes += [f"{c.title} here is {c.about}." for c in paper.columns]
    notes += [f"Other than in the paper: {text}" for text in paper.deviations]
    notes += skipped_notes(cell.ours for cell in every if cell.ours is not None)
    if paper.missing:
        notes.append(f"{paper.missing} of {paper.runs} runs are missing.")
    return notes


def text(paper: PaperTable) -> str:
    """For a terminal."""
    notes = [note.replace(MARKS, TEXT_MARKS) for note in footnotes(paper)]
    return "\n".join([paper.title, "", to_text(table(paper)), "", *notes])


def markdown(paper: PaperTable) -> str:
    """For a README."""
    notes = [f"{note}  " for note in footnotes(paper)]
    return "\n".join([f"## {paper.title}", "", to_markdown(table(paper)), "", *notes]) + "\n"


def latex(paper: PaperTable) -> str:
    """For a paper; needs the package booktabs."""
    return to_latex(table(paper), footnotes(paper)) + "\n"


def render(paper: PaperTable) -> str:
    """The page that links the pages of the blocks."""
    fragments = [html.heading(paper.title, 1), to_html(table(paper))]
    fragments += [html.paragraph(note, "note") for note in footnotes(paper)]
    for column in paper.columns:
        fragments += [
            html.heading(html.link(f"{column.name}/report.html", column.title)),
            html.paragraph(column.about, "soft"),
            html.paragraph(column.headline),
        ]
    fragments += [html.heading("Conditions"), html.code(paper.command)]
    fragments.append(html.facts({"created": paper.created, "seeds": paper.seeds}))
    return html.page(paper.title, fragments, width=66)


OUTPUT_FILES: dict[str, Callable[[PaperTable], str]] = {
    "table.md": markdown,
    "table.tex": latex,
    "report.html": render,
}
