"""A table of the paper beside ours: as text, Markdown, LaTeX and a page, all from results.json alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ausam.lab.report.chart_text import esc
from ausam.lab.report.shell import page
from ausam.lab.report.summary import NONE, capital, show

Summary = dict[str, Any]
Line = list[str]

MISSING = "missing"
HEAD = ("Paper", "SAM%", "Ours (runs)", "SAM%")
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
LATEX = str.maketrans(
    {c: f"\\{c}" for c in "%&#_${}"}
    | {"±": "$\\pm$", "–": "--", "α": "$\\alpha$", "†": "\\textsuperscript{\\dag}", "\\": "\\textbackslash{}"}
    | {"~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    | {chr(to): f"\\textsuperscript{{{chr(c)}}}" for c, to in SUPERSCRIPT.items()}
)


def columns(summary: Summary) -> list[str]:
    """The headings over the figures, in the paper's order."""
    return list(dict.fromkeys(b["column"] for b in summary["blocks"]))


def parts(summary: Summary) -> list[str]:
    """What a figure is the mean of, where the paper tells it: the groups of joints."""
    return list(dict.fromkeys(k for b in summary["blocks"] for r in b["rows"] for k in r["paper"].get("parts", {})))


def head(summary: Summary) -> tuple[str, ...]:
    """The headings of the figures of a column."""
    named = parts(summary)
    return ("Whose (runs)", *(part[:3].capitalize() for part in named), "Mean", "SAM%") if named else HEAD


def groups(summary: Summary) -> dict[str, list[Line]]:
    """The lines of each part of the table: a label, then the figures of each column.

    The paper's and ours stand beside each other; where a figure has parts, ours in a line of their own.
    """
    found = {}
    for group in dict.fromkeys(b["group"] for b in summary["blocks"]):
        blocks = {b["column"]: b for b in summary["blocks"] if b["group"] == group}
        rows = {(r["name"], r["note"]): r for b in blocks.values() for r in b["rows"]}
        lines = []
        for key, row in sorted(rows.items(), key=lambda item: not item[1]["in_paper"]):
            mark = row["note"].translate(SUPERSCRIPT) if row["in_paper"] else "†"
            own = {c: r for c, b in blocks.items() for r in b["rows"] if (r["name"], r["note"]) == key}
            forms = [partial(f, parts(summary)) for f in (_paper, _ours)] if parts(summary) else [_both]
            for form in forms[0 if row["in_paper"] else -1 :]:
                line = [row["label"] + mark]
                for column in columns(summary):
                    line += form(own[column]) if column in own else [""] * len(head(summary))
                lines.append(line)
        found[group] = lines
    return found


def _both(row: dict[str, Any]) -> Line:
    paper, ours = row["paper"], row["ours"]
    figures = [show(paper["accuracy"], 2, paper["std"]), show(paper["speed"], 0)]
    if ours is None:
        return [*figures, MISSING, NONE]
    accuracy = show(ours["accuracy_mean"], 2, ours["accuracy_std"])
    return [*figures, f"{accuracy} ({ours['n']})", show(ours["speed_of_sam"], 0)]


def _paper(parts: list[str], row: dict[str, Any]) -> Line:
    paper = row["paper"]
    figures = [show(paper["parts"].get(part), 1) for part in parts]
    return ["paper", *figures, show(paper["accuracy"], 1, paper["std"]), show(paper["speed"], 0)]


def _ours(parts: list[str], row: dict[str, Any]) -> Line:
    if (ours := row["ours"]) is None:
        return ["ours", *[MISSING] * (len(parts) + 1), NONE]
    figures = [show(ours["parts"].get(part), 1) for part in parts]
    mean = show(ours["accuracy_mean"], 1, ours["accuracy_std"])
    return [f"ours ({ours['n']})", *figures, mean, show(ours["speed_of_sam"], 0)]


def footnotes(summary: Summary) -> list[str]:
    """What the marks and the columns mean, and what must not be read into them."""
    notes = [f"{k.translate(SUPERSCRIPT)} In the paper {v}." for k, v in summary["notes"].items()]
    if any(not r["in_paper"] for b in summary["blocks"] for r in b["rows"]):
        notes.append("† Not in the paper's table: what else the same cost buys.")
    notes.append(
        f"{capital(summary.get('metric', 'accuracy'))} in percent, mean ± standard deviation over seeds. "
        "SAM%: speed of training, SAM = 100, against runs on the same machine."
    )
    if summary["scale"] == "small":
        notes.append(
            "Small scale: compare our rows with each other, not with the paper's figures, which are of its networks."
        )
        notes += [f"{b['title']} is here {b['about']}." for b in summary["blocks"]]
    if summary["missing"]:
        notes.append(f"{summary['missing']} of {summary['runs']} runs are missing.")
    return notes


def text(summary: Summary) -> str:
    """For a terminal."""
    width = len(head(summary))
    first = ["Method", *head(summary) * len(columns(summary))]
    body = groups(summary)
    every = [first, *(line for lines in body.values() for line in lines)]
    widths = [max(len(line[i]) for line in every) for i in range(len(first))]
    spans = [sum(widths[i : i + width]) + 2 * (width - 1) for i in range(1, len(first), width)]
    above = " " * widths[0] + "".join(f"  {c:^{w}}" for c, w in zip(columns(summary), spans, strict=True))

    def form(line: Line) -> str:
        return (
            f"{line[0]:<{widths[0]}}" + "".join(f"  {c:>{w}}" for c, w in zip(line[1:], widths[1:], strict=True))
        ).rstrip()

    rule = "  ".join("-" * w for w in widths)
    out = [summary["title"], "", above.rstrip(), form(first)]
    for group, lines in body.items():
        out += [rule, *([group] if group else []), *map(form, lines)]
    return "\n".join([*out, "", *footnotes(summary)])


def markdown(summary: Summary) -> str:
    """For a README."""

    def form(line: Line) -> str:
        return "| " + " | ".join(cell.replace("*", "\\*").replace("|", "\\|") for cell in line) + " |"

    first = ["Method"]
    for column in columns(summary):
        whose, *rest = (h if "%" in h or parts(summary) else h.lower() for h in head(summary))
        first += [f"{column}: {whose}", *rest]
    out = [f"## {summary['title']}", ""]
    for group, lines in groups(summary).items():
        out += [f"### {group}", ""] if group else []
        out += [form(first), form(["---"] + ["---:"] * (len(first) - 1)), *map(form, lines), ""]
    return "\n".join([*out, *(f"{note}  " for note in footnotes(summary))]) + "\n"


def latex(summary: Summary) -> str:
    """For a paper; needs the package booktabs."""

    def form(line: Sequence[str]) -> str:
        return " & ".join(cell.translate(LATEX) for cell in line) + r" \\"

    def wide(content: str) -> str:
        return f"\\multicolumn{{{width}}}{{l}}{{{content}}} \\\\"

    names, n = columns(summary), len(head(summary))
    width = 1 + n * len(names)
    out = [r"\begin{table*}", r"\centering", f"\\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\toprule"]
    out.append("".join(f" & \\multicolumn{{{n}}}{{c}}{{{c.translate(LATEX)}}}" for c in names) + r" \\")
    out.append(" ".join(f"\\cmidrule(lr){{{2 + n * i}-{1 + n * (i + 1)}}}" for i in range(len(names))))
    out.append(form(["Method", *head(summary) * len(names)]))
    for group, lines in groups(summary).items():
        out += [r"\midrule", *([wide(f"\\textbf{{{group.translate(LATEX)}}}")] if group else []), *map(form, lines)]
    notes = [
        r"\begin{flushleft}\small",
        *(f"{note.translate(LATEX)}\\par" for note in footnotes(summary)),
        r"\end{flushleft}",
    ]
    caption = f"\\caption{{{summary['title'].translate(LATEX)}}}"
    return "\n".join([*out, r"\bottomrule", r"\end{tabular}", *notes, caption, r"\end{table*}"]) + "\n"


def html(summary: Summary) -> str:
    """The page over the pages of the blocks."""

    def body(line: Line) -> str:
        return f'<tr><th scope="row">{esc(line[0])}</th>' + "".join(f"<td>{esc(c)}</td>" for c in line[1:]) + "</tr>"

    names, n = columns(summary), len(head(summary))
    above = "<tr><th></th>" + "".join(f'<th colspan="{n}">{esc(c)}</th>' for c in names) + "</tr>"
    second = "".join(f'<th scope="col">{esc(h)}</th>' for h in ("Method", *head(summary) * len(names)))
    heading = f"<thead>{above}<tr>{second}</tr></thead>"
    parts = [f"<h1>{esc(summary['title'])}</h1>"]
    for group, lines in groups(summary).items():
        parts += [f"<h2>{esc(group)}</h2>"] if group else []
        parts.append(f'<div class="scroll"><table>{heading}<tbody>{"".join(map(body, lines))}</tbody></table></div>')
    parts += [f'<p class="note">{esc(note)}</p>' for note in footnotes(summary)]
    for block in summary["blocks"]:
        link = f'<a href="{esc(block["name"])}/report.html">{esc(block["title"])}</a>'
        parts.append(f'<h2>{link}</h2><p class="soft">{esc(block["about"])}</p><p>{esc(block["headline"])}</p>')
    parts.append(f"<h2>Command</h2><code>{esc(summary['command'])}</code>")
    return page(summary["title"], parts, width=66)


FORMS: dict[str, Callable[[Summary], str]] = {"table.md": markdown, "table.tex": latex, "report.html": html}
