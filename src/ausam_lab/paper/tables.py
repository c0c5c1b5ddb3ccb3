"""A table of the paper next to ours, as text and as a page."""

from __future__ import annotations

from dataclasses import dataclass

from ausam_lab.config import Config
from ausam_lab.data.catalogue import changes
from ausam_lab.names.pairs import label
from ausam_lab.paper.recipe import Block, Recipe
from ausam_lab.records.comparison import Comparison, Row
from ausam_lab.report import html
from ausam_lab.report.summary import headline, skipped_notes, underfitting
from ausam_lab.report.table import Line, Section, Table, marked, to_html, to_text
from ausam_lab.report.text import NONE, capital, show, wrapped

MISSING = "missing"
STAR = "‡"
HEAD = ("Method", "Paper", "SAM%", "Ours (runs)", "SAM%")
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper next to ours: its recipe, and what was measured for each of its blocks."""

    recipe: Recipe
    results: tuple[Comparison, ...]
    command: str

    @property
    def blocks(self) -> list[tuple[Block, Comparison]]:
        """Each block with its results."""
        return list(zip(self.recipe.blocks, self.results, strict=True))

    @property
    def title(self) -> str:
        """The title of the recipe, and of its scale."""
        return self.recipe.title + (" (small scale)" if self.recipe.scale == "small" else "")


def table(paper: PaperTable) -> Table:
    """The figures of the paper and ours, side by side, block by block."""
    return Table(HEAD, tuple(Section(tuple(_lines(*block)), block[0].title) for block in paper.blocks))


def _lines(block: Block, results: Comparison) -> list[Line]:
    """A line for each row, those of the paper first, and one for each part that a figure averages.

    The best is marked, among the paper's figures and among ours.
    """
    lines: list[Line] = []
    figures: list[tuple[float | None, float | None]] = []  # of each line: the paper's, and ours
    known = {row.name: row for row in results.rows}
    for paper in sorted(block.rows, key=lambda row: row.score is None):
        ours = known.get(paper.name)
        digits = 1 if paper.parts else 2
        note = "†" if paper.score is None else "" if paper.note is None else str(paper.note).translate(SUPERSCRIPT)
        name = label(paper.name, results.config.base)
        cells = [name + note, show(paper.score, digits, paper.std), show(paper.speed, 0)]
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
    for column, whose in ((1, 0), (3, 1)):
        lines = marked(lines, column, [of_line[whose] for of_line in figures])
    return lines


def _star(ours: Row) -> str:
    return STAR if ours.against_sam is not None and ours.against_sam.clear else ""


def footnotes(paper: PaperTable) -> list[str]:
    """What the marks and columns mean, and what they do not show."""
    recipe = paper.recipe
    notes = [f"{k.translate(SUPERSCRIPT)} In the paper: {v}." for k, v in recipe.notes.items()]
    ours = [row for results in paper.results for row in results.rows]
    if any(row.score is None for block in recipe.blocks for row in block.rows):
        notes.append("† Not in the paper's table: what else the same cost buys.")
    if any(map(_star, ours)):
        notes.append(
            f"{STAR} Ours differs significantly from our SAM at 5 %: paired over seeds, Holm's correction over the "
            "rows of a block."
        )
    notes.append(
        f"{capital(recipe.metric)} in percent, mean ± standard deviation over seeds. "
        "SAM%: speed of training, SAM = 100, against runs on the same machine."
    )
    if any(line.bold for line in table(paper).lines):
        notes.append("Bold, or marked with ●: the best of a column of a block, in the paper and here.")
    if recipe.scale == "small":
        notes.append(
            "Small scale: compare our rows with each other, not with the paper's figures, which use larger networks."
        )
        notes += [f"{block.title} here is {_about(results.config)}." for block, results in paper.blocks]
    else:
        notes += [f"Other than in the paper: {text}" for text in recipe.deviations]
    notes += skipped_notes(ours)
    runs = sum(len(results.seeds) * len(block.names) for block, results in paper.blocks)
    if missing := runs - sum(len(results.runs) for results in paper.results):
        notes.append(f"{missing} of {runs} runs are missing.")
    return notes


def _about(config: Config) -> str:
    size = f", {config.train_size:,} images" if config.train_size else ""
    bits = f" with {config.quantize}-bit weights and activations" if config.quantize else ""
    return f"{config.model}{bits} on {config.data}{size}{changes(config)}, {config.epochs} epochs"


def text(paper: PaperTable, columns: int | None = None) -> str:
    """For a terminal with so many columns."""
    notes = [wrapped(note, columns) for note in footnotes(paper)]
    return "\n".join([paper.title, "", to_text(table(paper), columns), "", *notes])


def render(paper: PaperTable) -> str:
    """The page that links the pages of the blocks."""
    fragments = [html.heading(paper.title, 1), to_html(table(paper))]
    fragments += [html.paragraph(note, "note") for note in footnotes(paper)]
    for block, results in paper.blocks:
        fragments += [
            html.heading(html.link(f"{block.name}/report.html", block.title)),
            html.paragraph(_about(results.config), "soft"),
            html.paragraph(underfitting(results.rows), "open"),
            html.paragraph(headline(results)),
        ]
    fragments.append(html.details("How it was made", [html.code(paper.command)]))
    return html.page(paper.title, fragments, width=60)
