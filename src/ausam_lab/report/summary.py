"""The summary of a comparison: its table as text, and a headline that claims no more than the figures show."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence

from ausam_lab.records.comparison import Comparison, Difference, Row
from ausam_lab.records.run import Run
from ausam_lab.records.score import measured_on
from ausam_lab.report.statistics import holm, paired
from ausam_lab.report.table import TEXT_MARKS, Line, Section, Table, marked, to_text
from ausam_lab.report.text import capital, join, show
from ausam_lab.report.verdict import Verdict, interval, p_text, verdict

SKIPPED_BECAUSE = "because the loss or the gradient was not finite"
FEW_SCORES = 4  # additional figures of a score that fit in a table
SPEED = " Before that, a difference may only be one of speed."
SAME_COST = 0.2  # a baseline has "about the same cost" if its samples differ by at most this fraction


def metric(comparison: Comparison) -> tuple[str, str]:
    """The score of its runs, and its unit: ("accuracy", "%"), ("PCKh@0.5", "%"), ("MSE", "")."""
    return (comparison.rows[0].metric, comparison.rows[0].unit) if comparison.rows else ("accuracy", "%")


def featured_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows that a comparison is about: the user's own methods and policies, then those that choose by scores."""
    own = [r for r in rows if _is_own(r)]
    return [*own, *(r for r in scored_rows(rows) if r not in own)]


def _is_own(row: Row) -> bool:
    """Whether the user has written its method or policy: ``mine:MySAM``, ``sam+mine.py:MyPolicy``."""
    return ":" in row.name


def scored_rows(rows: Sequence[Row]) -> list[Row]:
    """The library's rows that choose by scores: Trusted, then AUSAM, or else AUSAM's choice under another method."""
    trusted = [r for r in rows if "Trusted" in r.pair]
    ausam = [r for r in rows if r.name.startswith("ausam")] or [r for r in rows if "AUSampling" in r.pair]
    return [*trusted, *ausam]


def heading(name: str, unit: str, lower: bool, comma: str = "") -> str:
    """The score as a column heading: ``Accuracy %``, ``MSE (lower is better)``."""
    return " ".join(filter(None, (capital(name) + (comma if unit else ""), unit, "(lower is better)" if lower else "")))


def lower_is_better(comparison: Comparison) -> bool:
    """Whether a lower score is better, e.g. for an error."""
    return any(row.lower_is_better for row in comparison.rows)


def best(rows: Sequence[Row]) -> Row:
    """The row with the best mean score."""
    return max(rows, key=lambda r: r.merit)


def further_scores(rows: Sequence[Row]) -> list[str]:
    """The additional figures that all rows have: balanced accuracy, MAE, groups of joints."""
    return [name for name in rows[0].parts if all(name in r.parts for r in rows)] if rows else []


def headline(comparison: Comparison) -> str:
    """Say in a few plain sentences what a choice of samples reached; :func:`verdict_table` has the figures."""
    rows = comparison.rows
    if not rows:
        return "No run has finished yet, so there is nothing to compare."
    tail = "" if comparison.complete else f" (Unfinished: {len(comparison.runs)} runs so far.)"
    by_name = {r.name: r for r in rows}
    sam, sgd, mine = by_name.get("sam"), by_name.get("sgd"), featured_rows(rows)
    name, _ = metric(comparison)
    tail = (f" Lower {name} is better." if lower_is_better(comparison) else "") + tail
    row = mine[0] if mine else best(rows)
    cost = f"{show(row.mean_seconds, seconds_digits(rows))} s of training"
    cost = cost if row.part_of_sam is None else f"{row.part_of_sam:.0f} % of SAM's training time"
    where = "" if row is sam else f" in {cost}"
    beside = ", ".join(f"{r.label}: {_score(r)}" for r in (sam, sgd) if r is not None and r is not row)
    first = best(rows)
    text = "" if first in (row, sam, sgd) else f"The best row is {first.label} with {_score(first)}. "
    text += f"{row.label} reaches {_score(row)} {measured_on(name)}{where}{f' ({beside})' if beside else ''}."
    if not mine:
        return f"{text} No row that chooses by scores has finished.{tail}"
    verdicts = {
        rival.label: verdict(difference, lower_is_better=row.lower_is_better)
        for one, rival, difference in compare_rows(comparison)
        if one is row
    }
    rivals = {kind: [name for name, is_so in verdicts.items() if is_so is kind] for kind in Verdict}
    says = {
        Verdict.BETTER: "beats {}",
        Verdict.WORSE: "falls behind {}",
        Verdict.UNCLEAR: "is not shown to differ from {}",
    }
    clauses = [says[kind].format(join(rivals[kind])) for kind in says if rivals[kind]]
    text += f" It {join(clauses)}." if clauses else ""
    if rivals[Verdict.ONE_SEED]:
        text += " With one common seed there is no spread, so some comparisons cannot be decided."
    if not _same_cost(row, rows):
        text += (
            " No baseline of the same cost was run (sam@0.5x0.5, sam+random), so it is not known what selection gains."
        )
    return text + tail


def compare_rows(comparison: Comparison) -> list[tuple[Row, Row, Difference | None]]:
    """The first two featured rows, each against SAM, SGD and the baselines of its cost.

    The user's own are also compared with Trusted and AUSAM. Holm's correction covers all of these differences,
    because they are read together.
    """
    rows, by_name = comparison.rows, {r.name: r for r in comparison.rows}
    first = [r for r in (by_name.get("sam"), by_name.get("sgd")) if r is not None]
    asked = [
        (row, rival)
        for row in featured_rows(rows)[:2]
        for rival in (*first, *_same_cost(row, rows), *(scored_rows(rows) if _is_own(row) else ()))
        if rival is not row
    ]
    return [(*pair, d) for pair, d in zip(asked, holm([paired(*pair) for pair in asked]), strict=True)]


def comparison_lines(comparison: Comparison) -> list[list[str]]:
    """The lines of the table under the headline: row, rival, difference with its interval, p, verdict."""
    return [
        [
            row.label,
            rival.label,
            interval(difference, row.decimals),
            p_text(difference),
            _verdict_text(row, difference),
        ]
        for row, rival, difference in compare_rows(comparison)
    ]


def _verdict_text(row: Row, difference: Difference | None) -> str:
    """The verdict; where an interval leaves out 0 but the corrected p is large, what makes it so."""
    found = verdict(difference, lower_is_better=row.lower_is_better)
    apart = difference is not None and (difference.low or 0.0) * (difference.high or 0.0) > 0
    return f"{found.value} after correction" if found is Verdict.UNCLEAR and apart else found.value


def verdict_table(comparison: Comparison) -> Table:
    """The figures behind the headline."""
    head = ("Method", "against", "Difference [95 %]", "p", "Verdict")
    return Table.of(head, comparison_lines(comparison), left=(0, 1, 4))


def verdict_rule(comparison: Comparison) -> str:
    """How to read that table."""
    known = sum(d is not None and d.p is not None for _, _, d in compare_rows(comparison))
    more = len(featured_rows(comparison.rows)) - 2
    text = f"p and verdict are corrected for the {known} comparisons of this table (Holm), the intervals are not."
    text = text if known > 1 else ""
    rows = "One more row that chooses by scores is" if more == 1 else f"{more} more rows that choose by scores are"
    return f"{text} {rows} in the table above.".strip() if more > 0 else text


def conclusion(comparison: Comparison) -> str:
    """The headline for a terminal, with the figures behind it."""
    table = verdict_table(comparison)
    parts = [to_text(table), verdict_rule(comparison)] if table.lines else []
    return "\n\n".join(filter(None, [underfitting(comparison.rows), headline(comparison), *parts]))


def underfitting(rows: Sequence[Row]) -> str:
    """What to do first about rows that have not fitted their data; empty if all have."""
    labels = [row.label for row in rows if row.underfits]
    if not labels:
        return ""
    which = "" if len(labels) == len(rows) else f"{join(labels)}: "
    text = f"{which}your model has not fitted the data: train longer, or use SGD with smaller batches."
    return capital(f"{text}{SPEED}")


def _score(row: Row) -> str:
    """The mean only, because the table has the spread; one decimal is enough for a percentage."""
    digits = 1 if row.unit == "%" else row.decimals
    return f"{show(row.mean, digits)} {row.unit}".rstrip()


def _same_cost(row: Row, rows: Sequence[Row]) -> list[Row]:
    """Baselines of the same cost: fewer epochs, smaller batches, or samples chosen without scores."""
    method = "sam" if row.name.startswith("ausam") else row.name.partition("+")[0]
    bases = method, re.split(r"-(?=0?\.)", method)[0], "sgd"  # gsam-0.5 is gsam with a choice
    control = re.compile(rf"({'|'.join(map(re.escape, bases))})(@|\+(random|repeated|balanced)).*")

    def cost(r: Row) -> tuple[float, float]:
        known = row.samples_of_sam is not None and r.samples_of_sam is not None
        return (row.samples_of_sam or 0.0, r.samples_of_sam or 0.0) if known else (row.mean_seconds, r.mean_seconds)

    return [r for r in rows if control.fullmatch(r.name) and abs(cost(r)[0] - cost(r)[1]) <= SAME_COST * cost(r)[0]]


def seconds_digits(rows: Sequence[Row]) -> int:
    """The number of decimals needed to tell the training times in a table apart."""
    least = min((r.mean_seconds for r in rows), default=1.0)
    return 2 if least < 1 else 1 if least < 100 else 0


RULE = (
    "± is the standard deviation over seeds. The difference from SAM is the mean over the common seeds, with its 95 % "
    "interval. A star means significant at 5 %, after Holm's correction over the rows."
)

PROBABILITIES = "NLL is the mean negative log-likelihood of the right class, ECE the expected calibration error."


def probability_head(rows: Sequence[Row]) -> list[str]:
    """The columns that judge a classifier's probabilities; none unless every row has them."""
    return ["NLL", "ECE %"] if rows and all(row.nlls for row in rows) else []


def probability_cells(row: Row) -> list[str]:
    """Mean negative log-likelihood and calibration error."""
    return [show(statistics.fmean(row.nlls), 3), show(statistics.fmean(row.calibration_errors), 1)]


def row_cells(row: Row, seconds_digits: int) -> list[str]:
    """The figures of a row: score, difference from SAM, speed, samples, seconds."""
    return [
        show(row.mean, row.decimals, row.std),
        interval(row.against_sam, row.decimals),
        show(row.speed_of_sam, 0),
        show(row.samples_of_sam, 1),
        show(row.mean_seconds, seconds_digits, row.std_seconds),
    ]


def score_cells(row: Row, names: Sequence[str]) -> list[str]:
    """Further scores of a row."""
    return [show(row.parts[name], row.decimals) for name in names]


def comparison_text(comparison: Comparison) -> str:
    """A table like the paper's for a terminal; SAM% is speed and Samples% is work, with SAM = 100."""
    score, digits = heading(*metric(comparison), lower_is_better(comparison)), seconds_digits(comparison.rows)
    names = further_scores(comparison.rows)
    names = names if len(names) <= FEW_SCORES else []
    probable = probability_head(comparison.rows)
    head = ["Method", score, *probable, *map(capital, names), "from SAM [95 %]", "SAM%", "Samples%", "Train s"]
    rows = []
    for row in comparison.rows:
        mean, *rest = row_cells(row, digits)
        rows.append([row.label, mean, *(probability_cells(row) if probable else []), *score_cells(row, names), *rest])
    table = Table(tuple(head), (Section(tuple(mark_scores(comparison, [Line(tuple(row)) for row in rows]))),))
    marks = [TEXT_MARKS] if any(line.bold for line in table.lines) else []
    notes = [RULE, *marks, *([PROBABILITIES] if probable else []), *skipped_notes(comparison.rows)]
    return "\n".join([to_text(table), "", *notes])


def mark_scores(comparison: Comparison, lines: Sequence[Line]) -> list[Line]:
    """The lines of the rows, in which the first figure is the score: the best and the second best are marked."""
    means = [round(row.mean, row.decimals) for row in comparison.rows]
    return marked(lines, 1, means, lower=lower_is_better(comparison))


def skipped_text(run: Run) -> str:
    """The skipped steps of a run, for its last line; empty if there were none."""
    if not run.skipped_steps:
        return ""
    of = "" if run.steps is None else f" of {run.steps + run.skipped_steps:,}"
    return f"{run.skipped_steps:,}{of} steps skipped, {SKIPPED_BECAUSE}"


def skipped_notes(rows: Iterable[Row]) -> list[str]:
    """A line under a table for each row with skipped steps."""
    return [
        f"{row.label}: {row.skipped:,} steps skipped in {row.n} run{'s' if row.n > 1 else ''}, {SKIPPED_BECAUSE}."
        for row in rows
        if row.skipped
    ]
