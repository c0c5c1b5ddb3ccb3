"""What a comparison says: its table as text, and a headline that claims no more than the figures do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ausam.lab.report.records import Comparison, Difference, Row
from ausam.lab.report.skipped import notes
from ausam.lab.report.statistics import holm, paired
from ausam.lab.report.text import capital, join, show, text_table

SAME_COST = 0.2  # a baseline is "of about the same cost" when its samples differ by at most this part


def metric(found: Comparison) -> tuple[str, str]:
    """What its runs are judged by, and in which unit: ("accuracy", "%"), ("PCKh@0.5", "%")."""
    return (found.rows[0].metric, found.rows[0].unit) if found.rows else ("accuracy", "%")


def ours(rows: Sequence[Row]) -> list[Row]:
    """AUSAM itself where it ran, else other methods on AUSAM's choice of samples (`gsam-0.5`)."""
    return [r for r in rows if r.name.startswith("ausam")] or [r for r in rows if "AUSampling" in r.pair]


def interval(difference: Difference | None) -> str:
    """A difference with its 95 % interval: ``+0.31 [-0.20, +0.82]``; a star where it is beyond chance."""
    if difference is None:
        return show(None, 2)
    text = f"{difference.mean:+.2f}"
    if difference.low is not None and difference.high is not None:
        text += f" [{difference.low:+.2f}, {difference.high:+.2f}]"
    return (text + ("*" if difference.clear else "")).replace("-", "−")


def headline(found: Comparison) -> str:
    """Say in a few plain sentences what AUSAM reached at what cost, beside SAM, SGD and the baselines of that cost."""
    rows = found.rows
    if not rows:
        return "No run has finished yet, so there is nothing to compare."
    tail = "" if found.complete else f" (Unfinished: {len(found.runs)} runs so far.)"
    by_name = {r.name: r for r in rows}
    sam, sgd, mine = by_name.get("sam"), by_name.get("sgd"), ours(rows)
    name, unit = metric(found)

    def result(r: Row, what: str = "", of: str = "") -> str:
        cost = f"{show(r.mean_seconds, seconds_digits(rows))} s{of and ' of training'}"
        cost = cost if r.part_of_sam is None else f"{r.part_of_sam:.0f} %{of}"
        where = "" if r is sam else f" in {cost}"
        return f"{r.label}{' reaches' if what else ''} {show(r.mean, 2, r.std)} {unit}{what}{where}"

    full = (f" test {name}", " of SAM's training time")
    if not mine:
        best = max(rows, key=lambda r: r.mean)
        rest = [result(r) for r in (sam, sgd) if r is not None and r is not best]
        beside = f" For comparison: {join(rest)}." if rest else ""
        return f"No AUSAM row has finished; the most accurate, {result(best, *full)}.{beside}{tail}"
    rivals = {row.name: [r for r in (sgd, *_same_cost(row, rows)) if r is not None] for row in mine[:2]}
    # one family: the sentence is read as a whole
    asked = [(row, r) for row in mine[:2] for r in (*rivals[row.name], sam) if r is not None]
    told = dict(zip(((a.name, b.name) for a, b in asked), holm([paired(a, b) for a, b in asked]), strict=True))
    text = "".join(_verdict(row, rivals[row.name], sam, told) for row in mine[:2])
    controls = list({r.name: r for row in mine[:2] for r in rivals[row.name] if r is not sgd}.values())
    beside = join([result(r) for r in [*filter(None, (sam, sgd)), *controls]])
    text = f"{join([result(r, *full) for r in mine[:2]])}.{f' For comparison: {beside}.' if beside else ''}{text}"
    known = sum(d is not None and d.p is not None for d in told.values())
    text += f" Each p is corrected for the {known} comparisons made here." if known > 1 else ""
    if not controls:
        text += " No baseline of about that cost (sam@0.5, sam+random) ran, so what the choice itself gains is open."
    return text + (f" More AUSAM rows in the table: {len(mine) - 2}." if len(mine) > 2 else "") + tail


def _same_cost(row: Row, rows: Sequence[Row]) -> list[Row]:
    """What else the same cost buys: the honest question. Fewer epochs, or samples chosen blindly."""
    base = "sam" if row.name.startswith("ausam") else row.name.rsplit("-", 1)[0]
    control = re.compile(rf"({re.escape(base)}|sgd)(@|\+random).*")

    def cost(r: Row) -> tuple[float, float]:
        known = row.samples_of_sam is not None and r.samples_of_sam is not None
        return (row.samples_of_sam or 0.0, r.samples_of_sam or 0.0) if known else (row.mean_seconds, r.mean_seconds)

    return [r for r in rows if control.fullmatch(r.name) and abs(cost(r)[0] - cost(r)[1]) <= SAME_COST * cost(r)[0]]


def _verdict(row: Row, rivals: Sequence[Row], sam: Row | None, told: dict[tuple[str, str], Difference | None]) -> str:
    found: dict[str, list[str]] = {}
    for rival in rivals:
        difference = told[row.name, rival.name]
        kind = _kind(difference)
        found.setdefault(kind, []).append(f"{rival.label} ({_points(difference)})")
    says = {"beats": "beats", "level": "is not shown to beat", "below": "falls behind"}
    parts = [f"{verb} {join(found[kind])}" for kind, verb in says.items() if kind in found]
    text = f" {row.label} {'; it '.join(parts)}." if parts else ""
    if "unknown" in found:
        text += f" A single common seed has no spread, so {row.label} against {join(found['unknown'])} decides nothing."
    if sam:
        difference = told[row.name, sam.name]
        beyond = {"level": ", within chance", "unknown": ""}.get(_kind(difference), ", beyond chance")
        text += f" Against SAM: {_points(difference)}{beyond}."
    return text


def _kind(difference: Difference | None) -> str:
    if difference is None or difference.clear is None:
        return "unknown"
    return "level" if not difference.clear else "beats" if difference.mean > 0 else "below"


def _points(difference: Difference | None) -> str:
    if difference is None:
        return "no common seed"
    text = f"{difference.mean:+.2f} points"
    if difference.low is not None and difference.high is not None:
        text += f", 95 % interval {difference.low:+.2f} to {difference.high:+.2f}"
    if difference.p is not None:
        text += f", p {max(difference.p, 0.001):.3f}"
    return text.replace("-", "−")


def seconds_digits(rows: Sequence[Row]) -> int:
    """Decimals with which the training times of a table tell their rows apart."""
    least = min((r.mean_seconds for r in rows), default=1.0)
    return 2 if least < 1 else 1 if least < 100 else 0


RULE = (
    "± is the standard deviation over seeds. The difference from SAM is the mean over the seeds that both have, with "
    "its 95 % interval; a star: beyond chance at 5 %, after Holm's correction over the rows."
)


def row_texts(rows: Sequence[Row]) -> list[list[str]]:
    """The table as text: label, score, difference from SAM, speed, samples, seconds."""
    d = seconds_digits(rows)
    return [
        [
            r.label,
            show(r.mean, 2, r.std),
            interval(r.against_sam),
            show(r.speed_of_sam, 0),
            show(r.samples_of_sam, 1),
            show(r.mean_seconds, d, r.std_seconds),
        ]
        for r in rows
    ]


def comparison_text(found: Comparison) -> str:
    """The paper's kind of table for a terminal; SAM% is speed and Samples% is work, with SAM = 100."""
    name, unit = metric(found)
    heading = ["Method", f"{capital(name)} {unit}", "from SAM [95 %]", "SAM%", "Samples%", "Train s"]
    return "\n".join([text_table(heading, row_texts(found.rows)), "", RULE, *notes(found.rows)])
