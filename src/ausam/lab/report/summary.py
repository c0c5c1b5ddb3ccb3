"""What a comparison says: its rows, its table as plain text, and a headline that claims no more than the figures do."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ausam.lab.report.chart_text import clean

Results = Mapping[str, Any]
NONE = "–"
SAME_COST = 0.2  # a baseline is "of about the same cost" when its samples differ by at most this part


@dataclass(frozen=True)
class Row:
    """One row of the table, with None for every figure that is missing or not finite."""

    name: str
    label: str
    how: str
    epochs: float | None
    n: int
    accuracy: float | None
    std: float | None
    seconds: float | None
    seconds_std: float | None
    speed: float | None
    samples: float | None

    @property
    def part(self) -> float | None:
        """Percent of SAM's training time."""
        return 1e4 / self.speed if self.speed else None


def number(value: object) -> float | None:
    """Read a finite number; anything else is None."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def show(value: float | None, digits: int, std: float | None = None) -> str:
    """Write a figure with its spread; a dash where it is missing."""
    return NONE if value is None else f"{value:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")


def table_rows(results: Results) -> list[Row]:
    """Read the rows of the comparison, in the order asked for."""
    spread = [f"{what}_{figure}" for what in ("accuracy", "train_seconds") for figure in ("mean", "std")]
    keys = (*spread, "speed_of_sam", "samples_of_sam")
    out = []
    for r in results.get("rows") or []:
        name = clean(r.get("name", "?"))
        how = clean(r.get("pair") or " × ".join(str(r[k]) for k in ("method", "policy") if r.get(k)))
        counts = (number(r.get("epochs")), int(number(r.get("n")) or 0))
        out.append(Row(name, clean(r.get("label") or name), how, *counts, *(number(r.get(k)) for k in keys)))
    return out


def metric(results: Results) -> str:
    """What its runs are judged by, in percent: "accuracy" of classes, "PCKh@0.5" of poses."""
    runs = results.get("runs") or [{}]
    return clean(runs[0].get("metric") or "accuracy")


def capital(text: str) -> str:
    """With a large first letter."""
    return text[:1].upper() + text[1:]


def _seconds_digits(rows: Sequence[Row]) -> int:
    least = min((r.seconds for r in rows if r.seconds is not None), default=1.0)
    return 2 if least < 1 else 1 if least < 100 else 0


def ours(rows: Sequence[Row]) -> list[Row]:
    """AUSAM itself where it ran, else other methods on AUSAM's choice of samples (`gsam-0.5`)."""
    return [r for r in rows if r.name.startswith("ausam")] or [r for r in rows if "AUSampling" in r.how]


def _same_cost(a: Row, b: Row) -> bool:
    both = ((x, y) for x, y in ((a.samples, b.samples), (a.seconds, b.seconds)) if x and y)
    return any(abs(x - y) <= SAME_COST * x for x, y in itertools.islice(both, 1))


def join(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def compare(a: Row, b: Row) -> tuple[str, float, float | None]:
    """Judge `a` against `b` by accuracy: ("beats" | "level" | "below" | "unknown", difference, spread).

    The spread is sqrt(s_a^2 + s_b^2) of the standard deviations over seeds, which is the deviation of the difference of
    two single runs. A difference that is not larger counts for nothing; without a spread (one run) nothing is claimed.
    """
    gap = (a.accuracy or 0.0) - (b.accuracy or 0.0)
    if a.accuracy is None or b.accuracy is None or a.std is None or b.std is None:
        return "unknown", gap, None
    width = math.hypot(a.std, b.std)
    return ("level" if abs(gap) <= width + 1e-9 else "beats" if gap > 0 else "below"), gap, width


def _verdict(row: Row, rivals: Sequence[Row], sam: Row | None) -> str:
    found: dict[str, list[str]] = {}
    for rival in rivals:
        kind, gap, width = compare(row, rival)
        more = f", within the spread of {width:.2f}" if kind == "level" else ""
        found.setdefault(kind, []).append(f"{rival.label} ({gap:+.2f} points{more})")
    says = {"beats": "beats", "level": "does not beat", "below": "falls behind"}
    parts = [f"{verb} {join(found[kind])}" for kind, verb in says.items() if kind in found]
    text = f" {row.label} {'; it '.join(parts)}." if parts else ""
    if "unknown" in found:
        text += f" A single run has no spread, so {row.label} against {join(found['unknown'])} decides nothing."
    if sam:
        kind, gap, width = compare(row, sam)
        known = "" if width is None else f", {'within' if kind == 'level' else 'beyond'} the spread of {width:.2f}"
        text += f" Against SAM: {gap:+.2f} points{known}."
    return text.replace("(-", "(−").replace(": -", ": −")


def headline(results: Results) -> str:
    """Say in a few plain sentences what AUSAM reached at what cost, beside SAM, SGD and the baselines of that cost."""
    rows = [r for r in table_rows(results) if r.accuracy is not None and r.n > 0]
    if not rows:
        return "No run has finished yet, so there is nothing to compare."
    tail = f" (Unfinished: {len(results.get('runs') or [])} runs so far.)" if results.get("complete") is False else ""
    by_name = {r.name: r for r in rows}
    sam, sgd, mine = by_name.get("sam"), by_name.get("sgd"), ours(rows)

    def result(r: Row, what: str = "", of: str = "") -> str:
        cost = (
            f"{show(r.seconds, _seconds_digits(rows))} s{of and ' of training'}"
            if r.part is None
            else f"{r.part:.0f} %{of}"
        )
        where = "" if r is sam or (r.part is None and r.seconds is None) else f" in {cost}"
        return f"{r.label}{' reaches' if what else ''} {show(r.accuracy, 2, r.std)} %{what}{where}"

    full = (f" test {metric(results)}", " of SAM's training time")
    if not mine:
        best = max(rows, key=lambda r: r.accuracy or 0.0)
        rest = [result(r) for r in (sam, sgd) if r is not None and r is not best]
        beside = f" For comparison: {join(rest)}." if rest else ""
        return f"No AUSAM row has finished; the most accurate, {result(best, *full)}.{beside}{tail}"
    text, controls = "", []
    for row in mine[:2]:
        # the honest question is what else the same cost buys: fewer epochs, or samples chosen blindly
        base = "sam" if row.name.startswith("ausam") else row.name.rsplit("-", 1)[0]
        control = re.compile(rf"({re.escape(base)}|sgd)(@|\+random).*")
        found = [r for r in rows if control.fullmatch(r.name) and _same_cost(row, r)]
        controls += [r for r in found if r not in controls]
        text += _verdict(row, ([sgd] if sgd else []) + found, sam)
    beside = join([result(r) for r in [*filter(None, (sam, sgd)), *controls]])
    text = f"{join([result(r, *full) for r in mine[:2]])}.{f' For comparison: {beside}.' if beside else ''}{text}"
    if not controls:
        text += " No baseline of about that cost (sam@0.5, sam+random) ran, so what the choice itself gains is open."
    return text + (f" More AUSAM rows in the table: {len(mine) - 2}." if len(mine) > 2 else "") + tail


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """The table as text: label, accuracy, speed, samples, seconds."""
    d = _seconds_digits(rows)
    figures = ((show(r.speed, 0), show(r.samples, 1), show(r.seconds, d, r.seconds_std)) for r in rows)
    return [[r.label, show(r.accuracy, 2, r.std), *more] for r, more in zip(rows, figures, strict=True)]


def text_table(results: Results) -> str:
    """Write the paper's kind of table as plain text; SAM% is speed and Samples% is work, with SAM = 100."""
    body = [["Method", capital(metric(results)), "SAM%", "Samples%", "Train s"], *cells(table_rows(results))]
    widths = [max(len(line[i]) for line in body) for i in range(5)]
    body.insert(1, ["-" * w for w in widths])
    form = f"{{:<{widths[0]}}}" + "".join(f"  {{:>{w}}}" for w in widths[1:])
    return "\n".join(form.format(*line) for line in body)
