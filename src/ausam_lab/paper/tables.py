"""A table of the paper next to ours: its record, and the same as text and as a page."""

from __future__ import annotations

from dataclasses import dataclass

from ausam.common.settings import Count
from ausam_lab.paper.recipe import RecipeRow
from ausam_lab.records.comparison import Row
from ausam_lab.records.store import Record
from ausam_lab.report import html
from ausam_lab.report.summary import skipped_notes
from ausam_lab.report.table import Line, Section, Table, marked, to_html, to_text
from ausam_lab.report.text import NONE, Screen, capital, show, wrapped

MISSING = "missing"
STAR = "‡"
HEAD = ("Method", "Paper", "SAM%", "Ours (runs)", "SAM%")
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class TableRow:
    """A row of a block: the paper's figures, and ours if a run has ended."""

    label: str
    paper: RecipeRow
    ours: Row | None

    @property
    def in_paper(self) -> bool:
        """Whether the paper has figures for it."""
        return self.paper.score is not None


@dataclass(frozen=True)
class TableBlock:
    """A network on a data set."""

    name: str
    title: str
    about: str
    headline: str
    rows: tuple[TableRow, ...]


@dataclass(frozen=True)
class PaperTable(Record):
    """A table of the paper next to ours."""

    FORMAT = "table"
    VERSION = 2

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
    blocks: tuple[TableBlock, ...]
    deviations: tuple[str, ...] = ()  # from the paper's setup


def table(paper: PaperTable) -> Table:
    """The figures of the paper and ours, side by side, block by block."""
    return Table(HEAD, tuple(Section(tuple(_lines(block)), block.title) for block in paper.blocks))


def _lines(block: TableBlock) -> list[Line]:
    """A line for each row, those of the paper first, and one for each part that a figure averages.

    The best is marked, among the paper's figures and among ours.
    """
    lines: list[Line] = []
    figures: list[tuple[float | None, float | None]] = []  # of each line: the paper's, and ours
    for row in sorted(block.rows, key=lambda row: not row.in_paper):
        paper, ours = row.paper, row.ours
        digits = 1 if paper.parts else 2 if ours is None else ours.decimals
        note = ("" if paper.note is None else str(paper.note).translate(SUPERSCRIPT)) if row.in_paper else "†"
        cells = [row.label + note, show(paper.score, digits, paper.std), show(paper.speed, 0)]
        if ours is None:
            cells += [MISSING, NONE]
        else:
            cells += [f"{show(ours.mean, digits, ours.std)}{_star(ours)} ({ours.n})", show(ours.speed_of_sam, 0)]
        lines.append(Line(tuple(cells)))
        figures.append((paper.score, None if ours is None else round(ours.mean, digits)))
        for part, figure in paper.parts.items():
            mine = MISSING if ours is None else show(ours.parts.get(part), digits)
            lines.append(Line((f"· {part}", show(figure, digits), "", mine, "")))
            figures.append((None, None))
    lower = any(row.ours and row.ours.lower_is_better for row in block.rows)
    for column, whose in ((1, 0), (3, 1)):
        lines = marked(lines, column, [of_line[whose] for of_line in figures], lower=lower)
    return lines


def _star(ours: Row) -> str:
    return STAR if ours.against_sam is not None and ours.against_sam.clear else ""


def footnotes(paper: PaperTable) -> list[str]:
    """What the marks and columns mean, and what they do not show."""
    notes = [f"{k.translate(SUPERSCRIPT)} In the paper {v}." for k, v in paper.notes.items()]
    every = [row for block in paper.blocks for row in block.rows]
    ours = [row.ours for row in every if row.ours is not None]
    if any(not row.in_paper for row in every):
        notes.append("† Not in the paper's table: what else the same cost buys.")
    if any(map(_star, ours)):
        notes.append(
            f"{STAR} Ours differs significantly from our SAM at 5 %: paired over seeds, Holm's correction over the "
            "rows of a block."
        )
    unit = {"%": " in percent", "": ""}.get(paper.unit, f" in {paper.unit}")
    notes.append(
        f"{capital(paper.metric)}{unit}, mean ± standard deviation over seeds. "
        "SAM%: speed of training, SAM = 100, against runs on the same machine."
    )
    if any(line.bold for line in table(paper).lines):
        notes.append("Bold, or marked with ●: the best of a column of a block, in the paper and here.")
    if any(row.lower_is_better for row in ours):
        notes.append(f"Lower {paper.metric} is better.")
    if paper.scale == "small":
        notes.append(
            "Small scale: compare our rows with each other, not with the paper's figures, which use larger networks."
        )
        notes += [f"{block.title} here is {block.about}." for block in paper.blocks]
    notes += [f"Other than in the paper: {text}" for text in paper.deviations]
    notes += skipped_notes(ours)
    if paper.missing:
        notes.append(f"{paper.missing} of {paper.runs} runs are missing.")
    return notes


def text(paper: PaperTable, screen: Screen | None = None) -> str:
    """For a terminal."""
    notes = [wrapped(note, screen) for note in footnotes(paper)]
    return "\n".join([paper.title, "", to_text(table(paper), screen), "", *notes])


def render(paper: PaperTable) -> str:
    """The page that links the pages of the blocks."""
    fragments = [html.heading(paper.title, 1), to_html(table(paper))]
    fragments += [html.paragraph(note, "note") for note in footnotes(paper)]
    for block in paper.blocks:
        fragments += [
            html.heading(html.link(f"{block.name}/report.html", block.title)),
            html.paragraph(block.about, "soft"),
            html.paragraph(block.headline),
        ]
    made = html.facts({"created": paper.created, "seeds": paper.seeds})
    fragments.append(html.details("How it was made", [html.code(paper.command), made]))
    return html.page(paper.title, fragments, width=60)
