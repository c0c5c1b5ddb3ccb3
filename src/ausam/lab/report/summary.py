"""The summary of a comparison: its table as text, and a headline that claims no more than the figures show."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ausam.lab.records.results import Comparison, Difference, Row
from ausam.lab.records.score import measured_on
from ausam.lab.report.skipped import notes
from ausam.lab.report.statistics import holm, paired
from ausam.lab.report.text import capital, join, show, text_table

FEW_PARTS = 4  # additional figures of a score that fit in a table
SAME_COST = 0.2  # a baseline has "about the same cost" if its samples differ by at most this fraction


def metric(found: Comparison) -> tuple[str, str]:
    """The score of its runs, and its unit: ("accuracy", "%"), ("PCKh@0.5", "%"), ("MSE", "")."""
    return (found.rows[0].metric, found.rows[0].unit) if found.rows else ("accuracy", "%")


def ours(rows: Sequence[Row]) -> list[Row]:
    """The AUSAM rows, or else other methods with AUSAM's choice of samples (`gsam-0.5`)."""
    return [r for r in rows if r.name.startswith("ausam")] or [r for r in rows if "AUSampling" in r.pair]


def heading(name: str, unit: str, lower: bool, comma: str = "") -> str:
    """The score as a column heading: ``Accuracy %``, ``MSE (lower is better)``."""
    return " ".join(filter(None, (capital(name) + (comma if unit else ""), unit, "(lower is better)" if lower else "")))


def lower_is_better(found: Comparison) -> bool:
    """Whether a lower score is better, e.g. for an error."""
    return any(row.lower_is_better for row in found.rows)


def best(rows: Sequence[Row]) -> Row:
    """The row with the best mean score."""
    return max(rows, key=lambda r: r.merit)


def parts(rows: Sequence[Row]) -> list[str]:
    """The additional figures that all rows have: balanced accuracy, MAE, groups of joints."""
    return [name for name in rows[0].parts if all(name in r.parts for r in rows)] if rows else []


def interval(difference: Difference | None, digits: int = 2) -> str:
    """A difference with its 95 % interval: ``+0.31 [-0.20, +0.82]``; a star if it is significant."""
    if difference is None:
        return show(None, digits)
    text = f"{difference.mean:+.{digits}f}"
    if difference.low is not None and difference.high is not None:
        text += f" [{difference.low:+.{digits}f}, {difference.high:+.{digits}f}]"
    return (text + ("*" if difference.clear else "")).replace("-", "−")


def headline(found: Comparison) -> str:
    """Say in a few plain sentences what AUSAM reached at what cost; the figures behind it are :func:`judged`."""
    rows = found.rows
    if not rows:
        return "No run has finished yet, so there is nothing to compare."
    tail = "" if found.complete else f" (Unfinished: {len(found.runs)} runs so far.)"
    by_name = {r.name: r for r in rows}
    sam, sgd, mine = by_name.get("sam"), by_name.get("sgd"), ours(rows)
    name, _ = metric(found)
    tail = (f" Lower {name} is better." if lower_is_better(found) else "") + tail
    row = mine[0] if mine else best(rows)
    cost = f"{show(row.mean_seconds, seconds_digits(rows))} s of training"
    cost = cost if row.part_of_sam is None else f"{row.part_of_sam:.0f} % of SAM's training time"
    where = "" if row is sam else f" in {cost}"
    beside = ", ".join(f"{r.label}: {_score(r)}" for r in (sam, sgd) if r is not None and r is not row)
    text = f"{row.label} reaches {_score(row)} {measured_on(name)}{where}{f' ({beside})' if beside else ''}."
    if not mine:
        return f"{text} No AUSAM row has finished.{tail}"
    told = {rival.label: _kind(difference, one) for one, rival, difference in judged(found) if one is row}
    names = {kind: [rival for rival, is_so in told.items() if is_so == kind] for kind in ("beats", "below", "level")}
    says = {"beats": "beats {}", "below": "falls behind {}", "level": "is not shown to differ from {}"}
    parts = [says[kind].format(join(rivals)) for kind, rivals in names.items() if rivals]
    text += f" It {join(parts)}." if parts else ""
    if "unknown" in told.values():
        text += " With one common seed there is no spread, so some comparisons cannot be decided."
    if not _same_cost(row, rows):
        text += (
            " No baseline of the same cost was run (sam@0.5x0.5, sam+random), so it is not known what selection gains."
        )
    return text + tail


def judged(found: Comparison) -> list[tuple[Row, Row, Difference | None]]:
    """The first two AUSAM rows, each against SAM, SGD and the baselines of its cost.

    Holm's correction covers all of these differences, because they are read together.
    """
    by_name = {r.name: r for r in found.rows}
    first = [r for r in (by_name.get("sam"), by_name.get("sgd")) if r is not None]
    asked = [(row, rival) for row in ours(found.rows)[:2] for rival in (*first, *_same_cost(row, found.rows))]
    return [(*pair, d) for pair, d in zip(asked, holm([paired(*pair) for pair in asked]), strict=True)]


JUDGED = ("", "against", "Difference [95 %]", "p", "")
VERDICTS = {"beats": "better", "below": "worse", "level": "no difference shown", "unknown": "open (one seed)"}


def judged_texts(found: Comparison) -> list[list[str]]:
    """The lines of the table under the headline: row, rival, difference with its interval, p, verdict."""
    return [
        [row.label, rival.label, interval(d, row.decimals), _p(d), VERDICTS[_kind(d, row)]]
        for row, rival, d in judged(found)
    ]


def judged_rule(found: Comparison) -> str:
    """How to read that table."""
    known = sum(d is not None and d.p is not None for _, _, d in judged(found))
    more = len(ours(found.rows)) - 2
    text = f"Each p is corrected for the {known} comparisons of this table (Holm)." if known > 1 else ""
    return f"{text} {more} more AUSAM rows are in the table above.".strip() if more > 0 else text


def conclusion(found: Comparison) -> str:
    """The headline for a terminal, with the figures behind it."""
    lines = judged_texts(found)
    table = [text_table(JUDGED, lines, left=(0, 1, 4)), judged_rule(found)] if lines else []
    return "\n\n".join([headline(found), *filter(None, table)])


def _score(row: Row) -> str:
    """The mean only, because the table has the spread; one decimal is enough for a percentage."""
    digits = 1 if row.unit == "%" else row.decimals
    return f"{show(row.mean, digits)} {row.unit}".rstrip()


def _p(difference: Difference | None) -> str:
    return show(None, 3) if difference is None or difference.p is None else f"{max(difference.p, 0.001):.3f}"


def _same_cost(row: Row, rows: Sequence[Row]) -> list[Row]:
    """Baselines of the same cost: fewer epochs, smaller batches, or samples chosen without scores."""
    base = "sam" if row.name.startswith("ausam") else re.split(r"\+|-(?=0?\.)", row.name)[0]
    control = re.compile(rf"({re.escape(base)}|sgd)(@|\+(random|repeated|balanced)).*")

    def cost(r: Row) -> tuple[float, float]:
        known = row.samples_of_sam is not None and r.samples_of_sam is not None
        return (row.samples_of_sam or 0.0, r.samples_of_sam or 0.0) if known else (row.mean_seconds, r.mean_seconds)

    return [r for r in rows if control.fullmatch(r.name) and abs(cost(r)[0] - cost(r)[1]) <= SAME_COST * cost(r)[0]]


def _kind(difference: Difference | None, row: Row) -> str:
    if difference is None or difference.clear is None:
        return "unknown"
    better = (difference.mean > 0) != row.lower_is_better
    return "level" if not difference.clear else "beats" if better else "below"


def seconds_digits(rows: Sequence[Row]) -> int:
    """The number of decimals needed to tell the training times in a table apart."""
    least = min((r.mean_seconds for r in rows), default=1.0)
    return 2 if least < 1 else 1 if least < 100 else 0


RULE = (
    "± is the standard deviation over seeds. The difference from SAM is the mean over the common seeds, with its 95 % "
    "interval. A star means significant at 5 %, after Holm's correction over the rows."
)


def row_texts(rows: Sequence[Row]) -> list[list[str]]:
    """The table as text: label, score, difference from SAM, speed, samples, seconds."""
    d = seconds_digits(rows)
    return [
        [
            r.label,
            show(r.mean, r.decimals, r.std),
            interval(r.against_sam, r.decimals),
            show(r.speed_of_sam, 0),
            show(r.samples_of_sam, 1),
            show(r.mean_seconds, d, r.std_seconds),
        ]
        for r in rows
    ]


def comparison_text(found: Comparison) -> str:
    """A table like the paper's for a terminal; SAM% is speed and Samples% is work, with SAM = 100."""
    score = heading(*metric(found), lower_is_better(found))
    further = parts(found.rows) if len(parts(found.rows)) <= FEW_PARTS else []
    head = ["Method", score, *map(capital, further), "from SAM [95 %]", "SAM%", "Samples%", "Train s"]
    lines = [
        [label, mean, *(show(row.parts[name], row.decimals) for name in further), *rest]
        for row, (label, mean, *rest) in zip(found.rows, row_texts(found.rows), strict=True)
    ]
    return "\n".join([text_table(head, lines), "", RULE, *notes(found.rows)])
