"""The benchmark at equal cost as text, Markdown, LaTeX, CSV and a page, all from one record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ausam.lab.records.results import BudgetProblem, Entry, EqualCost, Row
from ausam.lab.report import charts, html
from ausam.lab.report.charts import Picture
from ausam.lab.report.summary import heading, skipped_notes
from ausam.lab.report.table import (
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
from ausam.lab.report.text import NONE, join, show
from ausam.lab.report.vega import Field, Spec
from ausam.lab.report.verdict import Verdict, interval
from ausam.paper.budgets import VERDICTS, best, budgets, entry_verdict, winners
from ausam.paper.tables import MISSING

if TYPE_CHECKING:
    from markupsafe import Markup

RULES = (
    "Cost is the number of samples through forward and backward passes, SAM = 100 %: SAM passes every sample twice per "
    "epoch, SGD once. Every row costs about its budget; the column Samples% has the exact figure.",
    "Controls, marked (c), use no sample scores: a random subset, every sample in turn, shorter training, smaller "
    "batches, plain SGD, or odds by class, which need the labels. Contenders are compared with the control of their "
    "budget that has the best mean score. This choice favours the controls, so the comparison is conservative.",
    "± is the standard deviation over seeds. A difference is the mean over the common seeds, with its 95 % interval. "
    "A star means significant at 5 %, after Holm's correction over all contenders of the problem.",
)
KINDS = ("AUSAM", "other contender", "control")
TOLERANCE = 0.1  # a row that misses its budget by more is listed
FIRST = "Who wins where"
FRONTIER_NOTE = (
    "Named: the best contender and the best control of each budget. Dashed: the best control up to each cost."
)
STYLES = {Verdict.BETTER: "good", Verdict.WORSE: "bad"}  # of the verdict on the page


def tables(benchmark: EqualCost) -> list[Table]:
    """Who wins where, followed by everything that ran on each problem."""
    return [who_wins(benchmark), *map(problem_table, _begun(benchmark))]


def _begun(benchmark: EqualCost) -> list[BudgetProblem]:
    """The problems of which anything has run."""
    return [problem for problem in benchmark.problems if _begun_budgets(problem)]


def _begun_budgets(problem: BudgetProblem) -> list[float]:
    """The budgets of a problem under which anything has run."""
    return budgets(entry for entry in problem.entries if entry.row is not None)


def who_wins(benchmark: EqualCost) -> Table:
    """One line per problem and budget of which anything has run."""
    sections = []
    for problem in _begun(benchmark):
        lines = []
        for winner in winners(problem):
            if winner.budget not in _begun_budgets(problem):
                continue
            contender, control = winner.contender, winner.control
            sides = [NONE if e is None else f"{e.label} {_score(e)}" for e in (contender, control)]
            difference = NONE if contender is None else _against(contender)
            cells = (problem.title, _percent(winner.budget), *sides, difference, VERDICTS[winner.verdict])
            lines.append(Line(cells, style=STYLES.get(winner.verdict, "")))
        sections.append(Section(tuple(lines)))
    head = ("Problem", "Budget", "Best contender", "Best control", "Difference [95 %]", "Verdict")
    return Table(head, tuple(sections), FIRST, left=(0, 1, 2, 3, 5))


def shown(problem: BudgetProblem, budget: float | None = None) -> list[Entry]:
    """What the table of a problem shows, line by line; under one budget, or under all of which anything has run."""
    wanted = _begun_budgets(problem) if budget is None else [budget]
    return [entry for part in wanted for entry in problem.entries if entry.budget == part]


def problem_table(problem: BudgetProblem) -> Table:
    """Everything that ran on a problem, by budget."""
    sections = []
    for budget in _begun_budgets(problem):
        under, lines = shown(problem, budget), []
        firsts = [best(entry for entry in under if entry.control is kind) for kind in (True, False)]
        for entry in under:
            row = entry.row
            figures = [MISSING, *[NONE] * 4] if row is None else [_score(entry), _against(entry), *_costs(entry, row)]
            label = entry.label + (" (c)" if entry.control else "")
            cells = (_percent(budget), label, *figures, str(0 if row is None else row.n))
            lines.append(Line(cells, style="best" if entry in firsts else ""))
        sections.append(Section(tuple(lines)))
    row = next((e.row for e in problem.entries if e.row is not None), None)
    score = "Score" if row is None else heading(row.metric, row.unit, row.lower_is_better)
    head = ("Budget", "Method", score, "from the best control [95 %]", "Samples%", "Train s", "Time%", "Runs")
    return Table(head, tuple(sections), problem.title, left=(0, 1))


def _score(entry: Entry) -> str:
    return MISSING if entry.row is None else show(entry.row.mean, entry.row.decimals, entry.row.std)


def _against(entry: Entry) -> str:
    return NONE if entry.row is None or entry.control else interval(entry.against, entry.row.decimals)


def _costs(entry: Entry, row: Row) -> list[str]:
    cost = None if entry.cost is None else 100 * entry.cost
    return [show(cost, 1), show(row.mean_seconds, 1, row.std_seconds), show(row.part_of_sam, 0)]


def _percent(part: float) -> str:
    return f"{100 * part:g} %"


def headline(benchmark: EqualCost) -> str:
    """One or two sentences: how often a contender beats the best control."""
    every = [(problem, winner) for problem in benchmark.problems for winner in winners(problem)]
    decided = [(p, w) for p, w in every if w.verdict not in (Verdict.UNFINISHED, Verdict.ONE_SEED)]
    if not decided:
        return "No conclusion yet: no budget of any problem has all of its runs."
    won = [(p, w) for p, w in decided if w.verdict is Verdict.BETTER]
    lost = [(p, w) for p, w in decided if w.verdict is Verdict.WORSE]
    text = f"In {len(won)} of {len(decided)} places (a problem under a budget) a contender beats the best control"
    if won:
        names = [f"{w.contender.label} on {p.title} at {_percent(w.budget)}" for p, w in won if w.contender is not None]
        text += f": {join(names)}"
    text += f". In {len(lost)} the best control beats every contender; in the others no difference is shown."
    rest = len(every) - len(decided)
    return text + (f" {rest} of {len(every)} places are unfinished." if rest else "")


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
    columns = ("problem", "budget", "name", "control", "runs", "metric", "unit", "better", "mean", "std", "cost")
    head = (*columns, "seconds", "from_best_control", "low", "high", "p_holm", "verdict")
    rows = []
    for problem in benchmark.problems:
        for entry in problem.entries:
            known: list[object] = [problem.name, entry.budget, entry.name, entry.control]
            if (row := entry.row) is not None:
                better = "lower" if row.lower_is_better else "higher"
                known += [row.n, row.metric, row.unit, better, row.mean, row.std, entry.cost, row.mean_seconds]
            if row is not None and (d := entry.against) is not None:
                known += [d.mean, d.low, d.high, d.p, VERDICTS[entry_verdict(entry)]]
            rows.append(known)
    return to_csv(Table.of(head, rows))


def frontier(problem: BudgetProblem) -> Spec | None:
    """Score against cost, one mark per entry; dashed: the best control up to each cost."""
    firsts = [best(e for e in problem.entries if (e.budget, e.control) == kind) for kind in _kinds(problem.entries)]
    marks = []
    for entry in problem.entries:
        if (row := entry.row) is None or entry.cost is None:
            continue
        kind = KINDS[2] if entry.control else KINDS[0] if entry.is_ausam else KINDS[1]
        texts = {"method": entry.label, "kind": kind, "score": f"{_score(entry)} {row.unit}", "from": _against(entry)}
        spent = {"cost": f"{100 * entry.cost:.1f} %", "time": f"{show(row.mean_seconds, 1, row.std_seconds)} s"}
        at = {"x": 100 * entry.cost, "y": row.mean}
        marks.append({**texts, **spent, **at, "runs": row.n} | (_label(entry, firsts) if entry in firsts else {}))
    if not marks:
        return None
    marks.sort(key=lambda mark: KINDS.index(mark["kind"]), reverse=True)  # the last are drawn on top
    row = next(e.row for e in problem.entries if e.row is not None)
    name = f"{row.metric}{f' ({row.unit})' if row.unit else ''}"
    hover = [Field("method", "method"), Field("score", row.metric), Field("from", "from the best control")]
    hover += [Field("cost", "samples, SAM = 100 %"), Field("time", "training time"), Field("runs", "runs")]
    return charts.scatter(
        marks,
        Field("x", "samples through forward and backward (%, SAM = 100)"),
        Field("y", name),
        Field("kind", "kind"),
        hover,
        names=Field("method", "method"),
        pareto=[mark for mark in marks if mark["kind"] == KINDS[2]],
        lower=row.lower_is_better,
        order=KINDS[::-1],
    )


def _label(entry: Entry, firsts: Sequence[Entry | None]) -> dict[str, bool]:
    """A label that stays clear of the edge, and of the label of the other best entry of the budget."""
    under = [e.row.mean for e in firsts if e is not None and e.row is not None and e.budget == entry.budget]
    lowest = entry.row is not None and entry.row.mean == min(under) < max(under)
    placed = {"strong": True, "below": lowest, "before": entry.budget >= 1}
    return {name: True for name, value in placed.items() if value}


def _kinds(entries: Sequence[Entry]) -> list[tuple[float, bool]]:
    return list(dict.fromkeys((entry.budget, entry.control) for entry in entries))


def render(benchmark: EqualCost) -> str:
    """The page over the pages of the problems."""
    return html.page(benchmark.title, _fragments(benchmark), width=72)


def _fragments(benchmark: EqualCost) -> Iterator[Markup]:
    yield html.heading(benchmark.title, 1)
    yield html.paragraph(headline(benchmark), "lead")
    if benchmark.missing:
        missing = f"{benchmark.missing} of {benchmark.runs} runs are missing."
        yield html.paragraph(f"{missing} A verdict needs all runs of a problem and budget.", "open")
    yield html.heading(FIRST)
    yield to_html(who_wins(benchmark), stack=True)
    for i, problem in enumerate(_begun(benchmark)):
        yield html.heading(problem.title, link=f"{problem.name}/report.html")
        yield html.paragraph(problem.about, "soft")
        if (spec := frontier(problem)) is not None:
            yield from html.pictures([Picture(problem.name, spec, note=FRONTIER_NOTE)], hint=not i)
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
