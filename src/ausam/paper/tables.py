"""A table of the paper next to ours, as text, Markdown, LaTeX and a page, all from one record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ausam.lab.records.results import PaperTable, Row, TableCell
from ausam.lab.report.shell import fill, page
from ausam.lab.report.skipped import notes as skipped_notes
from ausam.lab.report.text import NONE, capital, show, text_table

TextLine = list[str]

MISSING = "missing"
STAR = "‡"
HEAD = ("Paper", "SAM%", "Ours (runs)", "SAM%")
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


def headings(found: PaperTable) -> list[str]:
    """The column headings, in the paper's order."""
    return list(dict.fromkeys(c.heading for c in found.columns))


def parts(found: PaperTable) -> list[str]:
    """The parts that a figure averages, where the paper lists them: the groups of joints."""
    return list(dict.fromkeys(k for c in found.columns for cell in c.cells for k in cell.paper.parts))


def head(found: PaperTable) -> tuple[str, ...]:
    """The headings of the figures of a column."""
    named = parts(found)
    return ("Whose (runs)", *(part[:3].capitalize() for part in named), "Mean", "SAM%") if named else HEAD


def groups(found: PaperTable) -> dict[str, list[TextLine]]:
    """The lines of each part of the table: a label, then the figures of each column.

    The paper's figures and ours are side by side; where a figure has parts, ours are on a separate line.
    """
    out = {}
    for group in dict.fromkeys(c.group for c in found.columns):
        inside = {c.heading: c for c in found.columns if c.group == group}
        rows = {(cell.name, cell.note): cell for c in inside.values() for cell in c.cells}
        lines = []
        for key, row in sorted(rows.items(), key=lambda item: not item[1].in_paper):
            mark = row.note.translate(SUPERSCRIPT) if row.in_paper else "†"
            own = {h: cell for h, c in inside.items() for cell in c.cells if (cell.name, cell.note) == key}
            forms = [partial(f, parts(found)) for f in (_paper, _ours)] if parts(found) else [_both]
            for form in forms[0 if row.in_paper else -1 :]:
                line = [row.label + mark]
                for heading in headings(found):
                    line += form(own[heading]) if heading in own else [""] * len(head(found))
                lines.append(line)
        out[group] = lines
    return out


def _both(cell: TableCell) -> TextLine:
    d = 2 if cell.ours is None else cell.ours.decimals
    figures = [show(cell.paper.score, d, cell.paper.std), show(cell.paper.speed, 0)]
    if cell.ours is None:
        return [*figures, MISSING, NONE]
    ours = cell.ours
    return [*figures, f"{show(ours.mean, ours.decimals, ours.std)}{_star(ours)} ({ours.n})", show(ours.speed_of_sam, 0)]


def _paper(parts: list[str], cell: TableCell) -> TextLine:
    paper = cell.paper
    figures = [show(paper.parts.get(part), 1) for part in parts]
    return ["paper", *figures, show(paper.score, 1, paper.std), show(paper.speed, 0)]


def _ours(parts: list[str], cell: TableCell) -> TextLine:
    if (ours := cell.ours) is None:
        return ["ours", *[MISSING] * (len(parts) + 1), NONE]
    d = 1 if ours.unit == "%" else ours.decimals
    figures = [show(ours.parts.get(part), d) for part in parts]
    return [f"ours ({ours.n})", *figures, f"{show(ours.mean, d, ours.std)}{_star(ours)}", show(ours.speed_of_sam, 0)]


def _star(ours: Row) -> str:
    return STAR if ours.against_sam is not None and ours.against_sam.clear else ""


def footnotes(found: PaperTable) -> list[str]:
    """What the marks and columns mean, and what they do not show."""
    notes = [f"{k.translate(SUPERSCRIPT)} In the paper {v}." for k, v in found.notes.items()]
    every = [cell for c in found.columns for cell in c.cells]
    if any(not cell.in_paper for cell in every):
        notes.append("† Not in the paper's table: what else the same cost buys.")
    if any(cell.ours is not None and _star(cell.ours) for cell in every):
        notes.append(
            f"{STAR} Ours differs significantly from our SAM at 5 %: paired over seeds, Holm's correction over the "
            "rows of a column."
        )
    unit = {"%": " in percent", "": ""}.get(found.unit, f" in {found.unit}")
    notes.append(
        f"{capital(found.metric)}{unit}, mean ± standard deviation over seeds. "
        "SAM%: speed of training, SAM = 100, against runs on the same machine."
    )
    if any(cell.ours is not None and cell.ours.lower_is_better for cell in every):
        notes.append(f"Lower {found.metric} is better.")
    if found.scale == "small":
        notes.append(
            "Small scale: compare our rows with each other, not with the paper's figures, which use larger networks."
        )
        notes += [f"{c.title} here is {c.about}." for c in found.columns]
    notes += skipped_notes(cell.ours for cell in every if cell.ours is not None)
    if found.missing:
        notes.append(f"{found.missing} of {found.runs} runs are missing.")
    return notes


def text(found: PaperTable) -> str:
    """For a terminal."""
    heading, rows, sections = ["Method"], [], []
    for name in headings(found):
        first, *rest = head(found)
        heading += [f"{name}: {first}", *rest]
    for group, lines in groups(found).items():
        rows += [[group]] if group else []
        rows += lines
        sections.append(len(rows) - 1)
    return "\n".join([found.title, "", text_table(heading, rows, sections[:-1]), "", *footnotes(found)])


def markdown(found: PaperTable) -> str:
    """For a README."""

    def form(line: TextLine) -> str:
        return "| " + " | ".join(cell.replace("*", "\\*").replace("|", "\\|") for cell in line) + " |"

    first = ["Method"]
    for column in headings(found):
        whose, *rest = (h if "%" in h or parts(found) else h.lower() for h in head(found))
        first += [f"{column}: {whose}", *rest]
    out = [f"## {found.title}", ""]
    for group, lines in groups(found).items():
        out += [f"### {group}", ""] if group else []
        out += [form(first), form(["---"] + ["---:"] * (len(first) - 1)), *map(form, lines), ""]
    return "\n".join([*out, *(f"{note}  " for note in footnotes(found))]) + "\n"


def latex(found: PaperTable) -> str:
    """For a paper; needs the package booktabs."""

    def form(line: Sequence[str]) -> str:
        return " & ".join(cell.translate(LATEX) for cell in line) + r" \\"

    def wide(content: str) -> str:
        return f"\\multicolumn{{{width}}}{{l}}{{{content}}} \\\\"

    names, n = headings(found), len(head(found))
    width = 1 + n * len(names)
    out = [r"\begin{table*}", r"\centering", f"\\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule"]
    out.append("".join(f" & \\multicolumn{{{n}}}{{c}}{{{c.translate(LATEX)}}}" for c in names) + r" \\")
    out.append(" ".join(f"\\cmidrule(lr){{{2 + n * i}-{1 + n * (i + 1)}}}" for i in range(len(names))))
    out.append(form(["Method", *head(found) * len(names)]))
    for group, lines in groups(found).items():
        out += [r"\midrule", *([wide(f"\\textbf{{{group.translate(LATEX)}}}")] if group else []), *map(form, lines)]
    notes = [
        r"\begin{flushleft}\small",
        *(f"{note.translate(LATEX)}\\par" for note in footnotes(found)),
        r"\end{flushleft}",
    ]
    caption = f"\\caption{{{found.title.translate(LATEX)}}}"
    return "\n".join([*out, r"\bottomrule", r"\end{tabular}", *notes, caption, r"\end{table*}"]) + "\n"


def html(found: PaperTable) -> str:
    """The page over the pages of the blocks."""
    body = fill(
        "paper_table.html",
        found=found,
        headings=headings(found),
        head=head(found),
        groups=groups(found),
        footnotes=footnotes(found),
    )
    return page(found.title, [body], width=66)


FORMS: dict[str, Callable[[PaperTable], str]] = {"table.md": markdown, "table.tex": latex, "report.html": html}
