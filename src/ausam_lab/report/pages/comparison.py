"""The page of a comparison: report.html."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING

from ausam_lab.config import PAIR_SETTINGS, Config
from ausam_lab.records.comparison import Comparison
from ausam_lab.records.run import measured_on
from ausam_lab.report import charts, html
from ausam_lab.report.charts import Picture
from ausam_lab.report.pages import data
from ausam_lab.report.pages.data import Links
from ausam_lab.report.summary import (
    best_text,
    by_score,
    cost_text,
    featured_rows,
    further_table,
    headline,
    lower_is_better,
    metric,
    notes,
    score_table,
    underfitting,
    verdict_notes,
    verdict_table,
)
from ausam_lab.report.table import to_html
from ausam_lab.report.text import show
from ausam_lab.report.vega import Field, PlainRow

if TYPE_CHECKING:
    from markupsafe import Markup

METHOD = Field("method", "method")


def _labels(comparison: Comparison) -> dict[str, str]:
    """The label of each row in the charts, with the pair's name where two labels are equal."""
    labels = [row.label for row in comparison.rows]
    return {
        row.name: f"{row.label} ({row.name})" if labels.count(row.label) > 1 else row.label for row in comparison.rows
    }


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
        title=f"{comparison.title}: {measured_on(metric(comparison)[0])} and cost",
        subtitle=best_text(comparison),
    )
    side = "left" if lower_is_better(comparison) else "right"
    note = f"Further {side} is better. Beside each name: its cost, SGD = 1x. Bars: one standard deviation over seeds."
    return Picture("scores", spec, "", note)


def _curves(comparison: Comparison) -> Picture | None:
    lower, form = lower_is_better(comparison), f".{comparison.rows[0].decimals}f"
    mine, labels = featured_rows(comparison.rows), _labels(comparison)
    rows: list[PlainRow] = []
    early = []
    for row in by_score(comparison):
        seen: dict[int, list[float]] = {}
        for point in (p for r in comparison.runs if r.name == row.name for p in r.curve):
            seen.setdefault(point.epoch, []).append(point.score)
        if not seen:
            continue
        ends = [{"x": x, "y": fmean(v), "low": min(v), "high": max(v), "runs": len(v)} for x, v in sorted(seen.items())]
        later = ends[len(ends) // 5 :]  # the first epochs are far worse and would flatten the rest
        early.append(max(end["high"] for end in later) if lower else min(end["low"] for end in later))
        rows += [{"method": labels[row.name], "strong": row in mine, **end} for end in ends]
    if not rows:
        return None
    hover = [Field("x", "epoch", "d"), Field("y", f"{_axis(comparison)}, mean", form), Field("low", "least", form)]
    spec = charts.lines(
        rows,
        Field("x", "epoch", "d"),
        Field("y", _axis(comparison)),
        METHOD,
        [*hover, Field("high", "greatest", form), Field("runs", "runs")],
        limits={"domainMax": max(early)} if lower else {"domainMin": min(early)},
    )
    note = f"Mean over seeds; the band runs from the smallest to the largest. {html.CLICK}"
    return Picture("curves", spec, "Learning curves", note)


def pictures(comparison: Comparison) -> list[Picture]:
    """The charts of a comparison in page order; those without figures are left out."""
    scores = [_scores(comparison)] if len(comparison.rows) > 1 else []
    curves = [_curves(comparison)] if comparison.rows else []
    return [picture for picture in (*scores, *curves) if picture is not None]


def _about(comparison: Comparison) -> str:
    known, seeds = comparison.data, len(comparison.seeds)
    held = "validation" if comparison.config.validation else "test"
    samples = [] if known is None else [f"{known.train:,} training samples", f"{known.test:,} {held} samples"]
    length = f"{comparison.config.epochs} epochs", f"{seeds} seed{'s' * (seeds > 1)}"
    return ", ".join([comparison.config.model, *samples, *length])


def _conditions(comparison: Comparison) -> Iterator[Markup]:
    """The command, the settings and the machine, folded."""
    config, usual = asdict(comparison.config), asdict(Config())
    changed = {k: v for k, v in config.items() if k not in PAIR_SETTINGS and v != usual[k]}
    made = {"created": comparison.created, "commit": comparison.environment.commit}
    machine = made | asdict(comparison.environment.hardware) | comparison.environment.versions
    if comparison.command:
        yield html.code(comparison.command)
    for title, facts in (("Settings that differ from the defaults", changed), ("Machine of the first run", machine)):
        if facts:
            yield html.paragraph(title, "soft")
            yield html.facts(facts)


def _fragments(comparison: Comparison, links: Links) -> Iterator[Markup]:
    yield html.heading(comparison.title, 1)
    yield html.paragraph(_about(comparison), "soft")
    if warning := underfitting(comparison.rows):
        yield html.paragraph(warning, "open")
    yield html.paragraph(headline(comparison), "lead")
    if not comparison.complete:
        yield html.paragraph(f"This comparison is not complete: {len(comparison.runs)} runs so far.", "open")
    drawn = pictures(comparison)
    if comparison.rows:
        yield to_html(score_table(comparison))
        for note in notes(comparison):
            yield html.paragraph(note, "note")
        yield from html.pictures(picture for picture in drawn if picture.name == "scores")
        if (verdicts := verdict_table(comparison)).lines:
            said = html.paragraph(" ".join(verdict_notes(comparison)), "note")
            yield html.details("Differences with intervals and p values", [to_html(verdicts), said])
        further, meaning = further_table(comparison)
        under = [html.paragraph(meaning, "note")] if meaning else []
        yield html.details(", ".join(further.head[1:]), [to_html(further), *under])
    yield from html.pictures(picture for picture in drawn if picture.name != "scores")
    yield from data.fragments(comparison, links)
    yield html.details("How it was made: command, settings, machine", _conditions(comparison))


def render(comparison: Comparison, links: Links | None = None) -> str:
    """The whole page; it fetches nothing. ``links`` lead from it to its runs."""
    return html.page(comparison.title, _fragments(comparison, links or {}), width=60)
