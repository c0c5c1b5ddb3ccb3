"""The page of a comparison: report.html.

A chart is a function that makes a Picture, or None without figures, and an entry of ``CHARTS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ausam_lab.config import PAIR_SETTINGS, Config
from ausam_lab.records.comparison import Comparison
from ausam_lab.records.run import measured_on
from ausam_lab.report import charts, html
from ausam_lab.report.charts import Picture
from ausam_lab.report.pages import data
from ausam_lab.report.summary import (
    PROBABILITIES,
    RULE,
    best_text,
    by_score,
    cost_text,
    featured_rows,
    further_table,
    headline,
    lower_is_better,
    metric,
    probability_head,
    score_table,
    skipped_notes,
    underfitting,
    verdict_notes,
    verdict_table,
)
from ausam_lab.report.table import to_html
from ausam_lab.report.text import NONE, show
from ausam_lab.report.vega import Field, PlainRow

if TYPE_CHECKING:
    from markupsafe import Markup

METHOD = Field("method", "method")
KINDS = ("correctly labelled", "mislabelled")
TIMES = "times chosen (mean)"
# what the further scores mean, by the name of the score
FURTHER_SCORES = {
    "accuracy": "Balanced accuracy is the mean over the classes. Head, middle and tail are the first, middle and last "
    "third of the classes, of which later ones have fewer training samples.",
    "PCKh@0.5": "Score of each group of joints.",
}


def _labels(comparison: Comparison) -> dict[str, str]:
    """The label of each row in the charts, with the pair's name where two labels are equal."""
    labels = [row.label for row in comparison.rows]
    return {
        row.name: f"{row.label} ({row.name})" if labels.count(row.label) > 1 else row.label for row in comparison.rows
    }


def _points(comparison: Comparison) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each row, the fields that its chart points share: its label, and whether it is highlighted."""
    mine = featured_rows(comparison.rows)
    for row, label in zip(comparison.rows, _labels(comparison).values(), strict=True):
        yield row.name, {"method": label} | ({"strong": True} if row in mine else {})


def _axis(comparison: Comparison) -> str:
    """The title of the score axis."""
    name, unit = metric(comparison)
    return f"{measured_on(name)}{f' ({unit})' if unit else ''}"


def _scores(comparison: Comparison) -> Picture:
    unit = metric(comparison)[1]
    names = {row.name: f"{_labels(comparison)[row.name]} · {cost_text(comparison, row)}" for row in comparison.rows}
    rows: list[PlainRow] = []
    runs: list[PlainRow] = []
    for row in by_score(comparison):
        shared = {"method": names[row.name], "cost": cost_text(comparison, row)}
        ends = {} if row.std is None else {"low": row.mean - row.std, "high": row.mean + row.std}
        score = f"{show(row.mean, row.decimals, row.std)} {unit}"
        rows.append({**shared, **ends, "x": row.mean, "score": score, "seed": f"mean of {row.n}"})
        runs += [
            {**shared, "x": value, "score": f"{value:.{row.decimals}f} {unit}", "seed": seed}
            for seed, value in zip(row.seeds, row.scores, strict=True)
            if row.n > 1
        ]
    spec = charts.dots(
        rows,
        Field("x", _axis(comparison)),
        METHOD,
        [Field("score", metric(comparison)[0]), Field("cost", "cost (SGD = 1x)"), Field("seed", "seed")],
        small=runs,
        rules=[(row.mean, row.label) for row in comparison.rows if row.name in ("sgd", "sam")],
        order=list(names.values()),
        title=f"{comparison.title}: {measured_on(metric(comparison)[0])} and cost",
        subtitle=best_text(comparison) if len(comparison.rows) > 1 else "",
    )
    side = "left" if lower_is_better(comparison) else "right"
    note = f"Further {side} is better. Beside each name: its cost, SGD = 1x. Bars: one standard deviation over seeds."
    return Picture("scores", spec, "", note)


def _curves(comparison: Comparison) -> Picture | None:
    lower, form = lower_is_better(comparison), f".{comparison.rows[0].decimals}f"
    rows, early = [], []
    for name, shared in _points(comparison):
        seen: dict[int, list[float]] = {}
        for point in (p for r in comparison.runs if r.name == name for p in r.curve):
            seen.setdefault(point.epoch, []).append(point.score)
        if not seen:
            continue
        ends = [{"x": x, "y": fmean(v), "low": min(v), "high": max(v), "runs": len(v)} for x, v in sorted(seen.items())]
        later = ends[len(ends) // 5 :]  # the first epochs are far worse and would flatten the rest
        early.append(max(end["high"] for end in later) if lower else min(end["low"] for end in later))
        rows += [{**shared, **end} for end in ends]
    if not rows:
        return None
    hover = [Field("x", "epoch", "d"), Field("y", f"{_axis(comparison)}, mean", form), Field("low", "least", form)]
    spec = charts.lines(
        rows,
        Field("x", "epoch", "d"),
        Field("y", _axis(comparison)),
        METHOD,
        [*hover, Field("high", "greatest", form), Field("runs", "runs")],
        y_from=None if lower else min(early),
        y_to=max(early) if lower else None,
        order=list(_labels(comparison).values()),
    )
    note = "Mean over seeds. The band runs from the smallest to the largest. The axis leaves out the first epochs."
    return Picture("curves", spec, "Learning curves", note)


def _mislabelled(comparison: Comparison) -> Picture | None:
    rows: list[PlainRow] = []
    for name, shared in _points(comparison):
        known = [r.run.selection for r in comparison.runs if r.name == name and r.run.selection is not None]
        both = [(s.right.chosen, s.wrong.chosen) for s in known if s.right is not None and s.wrong is not None]
        if both:
            rows += [{**shared, "kind": kind, "x": fmean(b[i] for b in both)} for i, kind in enumerate(KINDS)]
    if not rows:
        return None
    times, kind = Field("x", TIMES, ".1f"), Field("kind", "labels")
    spec = charts.dots(rows, times, METHOD, [kind, times], kind=kind, zero=True, order=KINDS)
    return Picture("mislabelled", spec, "How often mislabelled samples were chosen", "Mean over samples and seeds.")


def _by_class(comparison: Comparison) -> Picture | None:
    rows = []
    for name, shared in _points(comparison):
        chosen: dict[int, list[float]] = {}
        sizes: dict[int, int] = {}
        for r in comparison.runs:
            if r.name == name and r.run.selection is not None:
                for c, group in r.run.selection.classes.items():
                    chosen.setdefault(int(c), []).append(group.chosen)
                    sizes[int(c)] = group.n
        rows += [{**shared, "x": c, "y": fmean(of), "n": sizes[c]} for c, of in sorted(chosen.items())]
    if not rows:
        return None
    spec = charts.lines(
        rows,
        Field("x", "class", "d"),
        Field("y", TIMES),
        METHOD,
        [Field("x", "class", "d"), Field("n", "training samples", "d"), Field("y", "times chosen", ".1f")],
        y_from=0.0,
        order=list(_labels(comparison).values()),
    )
    first, last = min(rows, key=lambda row: row["x"]), max(rows, key=lambda row: row["x"])
    note = "Mean over the samples of a class and over seeds. "
    note += f"Class {first['x']} has {first['n']} training samples, class {last['x']} has {last['n']}."
    return Picture("classes", spec, "How often samples were chosen, by class", note)


CHARTS: tuple[Callable[[Comparison], Picture | None], ...] = (_scores, _curves, _mislabelled, _by_class)


def pictures(comparison: Comparison) -> list[Picture]:
    """The charts of a comparison in page order; those without figures are left out."""
    drawn = (chart(comparison) for chart in CHARTS) if comparison.rows else ()
    return [picture for picture in drawn if picture is not None]


def _about(comparison: Comparison) -> str:
    known = comparison.data
    held = "validation" if comparison.config.validation else "test"
    samples = [] if known is None else [f"{known.train:,} training samples", f"{known.test:,} {held} samples"]
    length = f"{comparison.config.epochs} epochs", f"{len(comparison.seeds)} seeds"
    return ", ".join([comparison.config.model, *samples, *length])


def _conditions(comparison: Comparison) -> Iterator[Markup]:
    yield html.heading("How it was made")
    yield html.code(comparison.command or NONE)
    config, usual = asdict(comparison.config), asdict(Config())
    changed = {k: v for k, v in config.items() if k not in PAIR_SETTINGS and v != usual[k]}
    made = {"created": comparison.created, "commit": comparison.environment.commit}
    machine = made | asdict(comparison.environment.hardware) | comparison.environment.versions
    samples = {} if comparison.data is None else asdict(comparison.data)
    for title, facts in (("Settings that differ from the defaults", changed), ("Data", samples), ("Machine", machine)):
        if facts:
            yield html.details(title, [html.facts(facts)])


def _fragments(comparison: Comparison) -> Iterator[Markup]:
    yield html.heading(comparison.title, 1)
    yield html.paragraph(_about(comparison), "soft")
    if warning := underfitting(comparison.rows):
        yield html.paragraph(warning, "open")
    yield html.paragraph(headline(comparison), "lead")
    if not comparison.complete:
        yield html.paragraph(f"This comparison is not complete: {len(comparison.runs)} runs so far.", "open")
    if comparison.rows:
        yield to_html(score_table(comparison))
        for note in (RULE, *skipped_notes(comparison.rows)):
            yield html.paragraph(note, "note")
    drawn = pictures(comparison)
    yield from html.pictures(drawn[:1], hint=False)
    if (verdicts := verdict_table(comparison)).lines:
        notes = html.paragraph(" ".join(verdict_notes(comparison)), "note")
        yield html.details("Differences with intervals and p values", [to_html(verdicts), notes])
    if (further := further_table(comparison)) is not None:
        probable = PROBABILITIES if probability_head(comparison.rows) else ""
        parts = FURTHER_SCORES.get(metric(comparison)[0], "") if comparison.rows[0].parts else ""
        notes = html.paragraph(" ".join(filter(None, (probable, parts))), "note")
        yield html.details("Time, likelihood, calibration and further scores", [to_html(further), notes])
    yield from html.pictures(drawn[1:])
    yield from data.fragments(comparison)
    yield from _conditions(comparison)


def render(comparison: Comparison) -> str:
    """The whole page; it fetches nothing."""
    return html.page(comparison.title, _fragments(comparison), width=60)
