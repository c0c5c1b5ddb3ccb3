"""The benchmark at equal cost as text, Markdown, LaTeX, CSV and a page, all from one record."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ausam_lab.paper.budgets import (
    VERDICTS,
    budgets,
    difference,
    headroom,
    nll_difference,
    primary_entries,
    primary_verdict,
)
from ausam_lab.paper.records.equal_cost import BudgetEntry, BudgetProblem, EqualCost
from ausam_lab.paper.tables import MISSING
from ausam_lab.report import charts, html
from ausam_lab.report.charts import Picture
from ausam_lab.report.summary import heading, probability_cells, probability_head, skipped_notes
from ausam_lab.report.table import (
    LATEX,
    Line,
    Section,
    Table,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
    to_text,
)
from ausam_lab.report.text import NONE, join, show
from ausam_lab.report.vega import Field, Spec
from ausam_lab.report.verdict import Verdict, interval

if TYPE_CHECKING:
    from markupsafe import Markup

RULES = (
    "Cost is the number of samples through forward and backward passes, SAM = 100 %: SAM passes every sample twice per "
    "epoch, SGD once. Every row costs about its budget, a control perhaps less; the column Samples% has the figure.",
    "Every contender has a random twin: the same method on as many samples, drawn at random. The twin, the SGD that a "
    "contender is compared with, and the primary contrast of each problem were fixed before its runs. Rows marked "
    "(c) are controls: their choice of samples uses no score.",
    "± is the standard deviation over seeds, which draw everything: weights, order, wrong labels, tails and splits. A "
    "difference is the mean over the common seeds, with its 95 % t interval. A star means significant at 5 %: alone "
    "for the primary contrast, after Holm's correction within a budget for all others, which are exploration.",
    "Headroom is SAM at its full cost less the random twin: where it is near 0, no choice of samples can gain much.",
    "NLL is the mean negative log-likelihood of the right class (lower is better), ECE the expected calibration error.",
)
KINDS = ("contender", "control")
TOLERANCE = 0.1  # a row that misses its budget by more is listed
FIRST = "The primary contrasts"
GAINS = ("over its random twin", "over SGD")
GAINS_NOTE = (
    "The primary contender of each problem, with 95 % intervals: to the right of 0 it is better at the same cost."
)
FRONTIER_NOTE = (
    "Named: the primary contender, SAM, and the SGD of each budget. Dashed: the best control up to each cost."
)
STYLES = {Verdict.BETTER: "good", Verdict.WORSE: "bad"}  # of the verdict on the page


def tables(benchmark: EqualCost) -> list[Table]:
    """The primary contrasts, followed by everything that ran on each problem."""
    first = primary_table(benchmark)
    return [*([first] if first.lines else []), *map(problem_table, _begun(benchmark))]


def _begun(benchmark: EqualCost) -> list[BudgetProblem]:
    """The problems of which anything has run."""
    return [problem for problem in benchmark.problems if _begun_budgets(problem)]


def _begun_budgets(problem: BudgetProblem) -> list[float]:
    """The budgets of a problem under which anything has run."""
    return budgets(entry for entry in problem.entries if entry.row is not None)


def primary_table(benchmark: EqualCost) -> Table:
    """One line per problem of which anything has run."""
    lines = []
    for problem in _begun(benchmark):
        contender, twin = primary_entries(problem)
        if contender is None:
            continue
        digits = 2 if contender.row is None else contender.row.decimals
        verdict = primary_verdict(problem)
        cells = (
            problem.title,
            contender.label,
            VERDICTS[verdict],
            _percent(contender.budget),
            _score(contender),
            interval(difference(contender, twin), digits),
            interval(nll_difference(contender, twin), 3),
            interval(contender.from_sgd, digits),
            interval(headroom(problem), digits),
        )
        lines.append(Line(cells, style=STYLES.get(verdict, "")))
    head = ("Problem", "Contender", "Against chance", "Cost", "Score")
    differences = ("from its random twin [95 %]", "NLL from its twin [95 %]", "from SGD [95 %]", "Headroom [95 %]")
    return Table((*head, *differences), (Section(tuple(lines)),), FIRST, left=(0, 1, 2))


def shown(problem: BudgetProblem, budget: float | None = None) -> list[BudgetEntry]:
    """What the table of a problem shows, line by line; under one budget, or under all of which anything has run."""
    wanted = _begun_budgets(problem) if budget is None else [budget]
    return [entry for part in wanted for entry in problem.entries if entry.budget == part]


def problem_table(problem: BudgetProblem) -> Table:
    """Everything that ran on a problem, by budget."""
    rows = [e.row for e in problem.entries if e.row is not None]
    probable = probability_head(rows)
    sections = []
    for budget in _begun_budgets(problem):
        lines = []
        for entry in shown(problem, budget):
            row = entry.row
            likely = probability_cells(row) if row is not None and probable else [NONE] * len(probable)
            cost = None if entry.cost is None else 100 * entry.cost
            label = entry.label + (" (c)" if entry.control else "")
            digits = 2 if row is None else row.decimals
            differences = [interval(d, digits) for d in (entry.from_twin, entry.from_sgd)]
            cells = (
                _percent(budget),
                label,
                _score(entry),
                *likely,
                *differences,
                show(cost, 1),
                str(row.n if row else 0),
            )
            lines.append(Line(cells, style="best" if entry.name == problem.primary else ""))
        sections.append(Section(tuple(lines)))
    score = heading(rows[0].metric, rows[0].unit, rows[0].lower_is_better) if rows else "Score"
    head = ("Budget", "Method", score, *probable, "from its random twin [95 %]", "from SGD [95 %]", "Samples%", "Runs")
    return Table(head, tuple(sections), problem.title, left=(0, 1))


def _score(entry: BudgetEntry) -> str:
    return MISSING if entry.row is None else show(entry.row.mean, entry.row.decimals, entry.row.std)


def _percent(part: float) -> str:
    return f"{100 * part:g} %"


def headline(benchmark: EqualCost) -> str:
    """One or two sentences: on which problems the chosen samples were worth more than as many random ones."""
    verdicts = {p.title: primary_verdict(p) for p in benchmark.problems if p.primary}
    decided = {name: v for name, v in verdicts.items() if v not in (Verdict.UNFINISHED, Verdict.ONE_SEED)}
    if not decided:
        return "No conclusion yet: no primary contrast has all of its runs."
    clauses = []
    for kind, says in (
        (Verdict.BETTER, "better on {}"),
        (Verdict.WORSE, "worse on {}"),
        (Verdict.LEVEL, "level on {}"),
        (Verdict.UNCLEAR, "not shown to differ on {}"),
    ):
        if names := [name for name, v in decided.items() if v is kind]:
            clauses.append(says.format(join(names)))
    rest = len(verdicts) - len(decided)
    return f"Compared with as many random samples, the chosen ones were {join(clauses)}." + (
        f" {rest} of {len(verdicts)} problems are unfinished." if rest else ""
    )


def footnotes(benchmark: EqualCost) -> list[str]:
    """How to read the tables, and what was tuned."""
    rows = [e.row for problem in benchmark.problems for e in problem.entries if e.row is not None]
    off = [
        f"{e.label} on {problem.title} ({100 * e.cost:.1f} % of SAM's samples)"
        for problem in benchmark.problems
        for e in problem.entries
        if e.cost is not None and abs(e.cost / e.budget - 1) > TOLERANCE
    ]
    return [
        *RULES,
        *([f"More than {_percent(TOLERANCE)} off their budget: {join(off)}."] if off else []),
        *([f"Tuning: {benchmark.tuning}"] if benchmark.tuning else []),
        *(f"Tuning, {problem.title}: {problem.tuning}" for problem in benchmark.problems if problem.tuning),
        *skipped_notes(rows),
        *_not_run(benchmark),
        *([f"{benchmark.missing} of {benchmark.runs} runs are missing."] if benchmark.missing else []),
    ]


def _not_run(benchmark: EqualCost) -> list[str]:
    """Problems and budgets that are in the recipe but not in the tables."""
    named = []
    for problem in benchmark.problems:
        begun = _begun_budgets(problem)
        left = [_percent(budget) for budget in budgets(problem.entries) if budget not in begun]
        if left:
            named.append(f"{problem.title} at {join(left)}" if begun else problem.title)
    return [f"Not run: {'; '.join(named)}."] if named else []


def text(benchmark: EqualCost) -> str:
    """For a terminal."""
    parts = [benchmark.title, headline(benchmark)]
    for table in tables(benchmark):
        parts += [table.title, to_text(table)]
    return "\n\n".join([*parts, "\n".join(footnotes(benchmark))])


def markdown(benchmark: EqualCost) -> str:
    """For a README."""
    out = [f"## {benchmark.title}", "", headline(benchmark), ""]
    for table in tables(benchmark):
        out += [f"### {table.title}", "", to_markdown(table), ""]
    return "\n".join([*out, *(f"- {note}" for note in footnotes(benchmark))]) + "\n"


def latex(benchmark: EqualCost) -> str:
    """For a paper, the notes as comments; needs the package booktabs."""
    parts = [to_latex(replace(table, title=f"{benchmark.title}: {table.title}")) for table in tables(benchmark)]
    comments = [f"% {note}".translate(LATEX | {ord("%"): "%"}) for note in footnotes(benchmark)]
    return "\n".join([*parts, *comments]) + "\n"


def csv_text(benchmark: EqualCost) -> str:
    """One line per problem, budget and method, as CSV with a heading."""
    columns = ("problem", "budget", "name", "control", "primary", "runs", "metric", "unit", "better", "mean", "std")
    figures = ("nll", "calibration_error", "cost")
    contrasts = ("from_twin", "low", "high", "p_holm", "from_sgd", "sgd_low", "sgd_high", "sgd_p_holm")
    lines = []
    for problem in benchmark.problems:
        for entry in problem.entries:
            values: list[object] = [
                problem.name,
                entry.budget,
                entry.name,
                entry.control,
                entry.name == problem.primary,
            ]
            if (row := entry.row) is not None:
                better = "lower" if row.lower_is_better else "higher"
                likely = [statistics.fmean(v) if v else None for v in (row.nlls, row.calibration_errors)]
                values += [row.n, row.metric, row.unit, better, row.mean, row.std, *likely, entry.cost]
                for d in (entry.from_twin, entry.from_sgd):
                    values += [None] * 4 if d is None else [d.mean, d.low, d.high, d.p]
            lines.append(values)
    return to_csv(Table.of((*columns, *figures, *contrasts), lines))


def gains(benchmark: EqualCost) -> Spec | None:
    """The primary contender of each problem: its gain over its random twin and over SGD, with 95 % intervals."""
    marks = []
    for problem in _begun(benchmark):
        contender, twin = primary_entries(problem)
        if contender is None or contender.row is None or contender.row.unit != "%":
            continue
        by_name = {entry.name: entry for entry in problem.entries}
        for kind, rival in zip(GAINS, (twin, by_name.get(contender.sgd)), strict=True):
            d = difference(contender, rival)
            if d is not None and d.low is not None and d.high is not None:
                mark = {"problem": problem.title, "kind": kind, "gain": d.mean, "low": d.low, "high": d.high}
                marks.append(mark | {"method": contender.label, "says": interval(d)})
    if not marks:
        return None
    return charts.forest(
        marks,
        Field("gain", "gain in accuracy (percentage points)"),
        Field("problem", "problem"),
        Field("kind", "kind"),
        [Field("method", "method"), Field("says", "gain")],
        GAINS,
    )


def frontier(problem: BudgetProblem) -> Spec | None:
    """Score against cost, one mark per entry; dashed: the best control up to each cost."""
    marks = []
    for entry in problem.entries:
        if (row := entry.row) is None or entry.cost is None:
            continue
        texts = {"method": entry.label, "kind": KINDS[entry.control], "score": f"{_score(entry)} {row.unit}"}
        at = {"cost": f"{100 * entry.cost:.1f} %", "x": 100 * entry.cost, "y": row.mean, "runs": row.n}
        named = entry.name in (problem.primary, "sam") or entry.name in {e.sgd for e in problem.entries}
        side = {"strong": True} | ({"before": True} if entry.budget >= 1 else {}) if named else {}
        marks.append({**texts, **at, **side})
    if not marks:
        return None
    marks.sort(key=lambda mark: KINDS.index(str(mark["kind"])), reverse=True)  # the last are drawn on top
    row = next(e.row for e in problem.entries if e.row is not None)
    hover = [Field("method", "method"), Field("score", row.metric), Field("cost", "samples, SAM = 100 %")]
    return charts.scatter(
        marks,
        Field("x", "cost in samples (%, SAM = 100)"),
        Field("y", f"{row.metric}{f' ({row.unit})' if row.unit else ''}"),
        Field("kind", "kind"),
        [*hover, Field("runs", "runs")],
        names=Field("method", "method"),
        pareto=[mark for mark in marks if mark["kind"] == KINDS[1]],
        lower=row.lower_is_better,
        order=KINDS[::-1],
    )


def render(benchmark: EqualCost) -> str:
    """The page over the pages of the problems."""
    return html.page(benchmark.title, _fragments(benchmark), width=72)


def _fragments(benchmark: EqualCost) -> Iterator[Markup]:
    yield html.heading(benchmark.title, 1)
    yield html.paragraph(headline(benchmark), "lead")
    if benchmark.missing:
        missing = f"{benchmark.missing} of {benchmark.runs} runs are missing."
        yield html.paragraph(f"{missing} A verdict needs all runs of a primary contrast.", "open")
    if (spec := gains(benchmark)) is not None:
        yield from html.pictures([Picture("gains", spec, note=GAINS_NOTE)], hint=True)
    if (first := primary_table(benchmark)).lines:
        yield html.heading(FIRST)
        yield to_html(first, stack=True)
    for problem in _begun(benchmark):
        yield html.heading(problem.title, link=f"{problem.name}/report.html")
        yield html.paragraph(problem.about, "soft")
        if (spec := frontier(problem)) is not None:
            yield from html.pictures([Picture(problem.name, spec, note=FRONTIER_NOTE)], hint=False)
        yield to_html(problem_table(problem))
    yield html.heading("How to read this")
    for note in footnotes(benchmark):
        yield html.paragraph(note, "note")
    yield html.heading("Conditions")
    yield html.code(benchmark.command)
    yield html.facts({"created": benchmark.created})


OUTPUT_FILES: dict[str, Callable[[EqualCost], str]] = {
    "table.md": markdown,
    "table.tex": latex,
    "table.csv": csv_text,
    "report.html": render,
}
