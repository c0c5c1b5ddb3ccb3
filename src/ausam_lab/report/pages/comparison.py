"""The page of a comparison: report.html."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from statistics import fmean

from markupsafe import Markup

from ausam_lab.config import PAIR_SETTINGS, Config
from ausam_lab.records.comparison import Comparison
from ausam_lab.records.run import measured_on
from ausam_lab.report import charts, html, summary
from ausam_lab.report.charts import Field, PlainRow
from ausam_lab.report.summary import by_score, cost_text, metric
from ausam_lab.report.table import Table, to_html
from ausam_lab.report.text import NONE, capital, show

Links = Mapping[tuple[str, int], str]  # from a page to its runs, by name and seed: the audit page, or the folder
METHOD = Field("method", "method")
SEE_ALL = (
    "A seed leads to the run's audit page, a ranked list to review, or to its folder if it has none yet: ausam audit "
    "FOLDER makes it. Each seed may have other wrong labels."
)


def _labels(comparison: Comparison) -> dict[str, str]:
    """The label of each row in the charts, with the pair's name where two labels are equal."""
    labels = [row.label for row in comparison.rows]
    return {
        row.name: f"{row.label} ({row.name})" if labels.count(row.label) > 1 else row.label for row in comparison.rows
    }


def _axis(comparison: Comparison) -> str:
    """The title of the score axis."""
    return f"{measured_on(metric(comparison))} (%)"


def _scores(comparison: Comparison) -> Markup:
    """A dot for each row, with its runs behind it."""
    labels = _labels(comparison)
    rows: list[PlainRow] = []
    runs: list[PlainRow] = []
    for row in by_score(comparison):
        cost = cost_text(comparison, row)
        shared = {"method": f"{labels[row.name]} · {cost}", "cost": cost}
        ends = {} if row.std is None else {"low": row.mean - row.std, "high": row.mean + row.std}
        score = f"{show(row.mean, 2, row.std)} %"
        rows.append({**shared, **ends, "x": row.mean, "score": score, "seed": f"mean of {row.n}"})
        runs += [
            {**shared, "x": value, "score": f"{value:.2f} %", "seed": seed}
            for seed, value in zip(row.seeds, row.scores, strict=True)
            if row.n > 1
        ]
    spec = charts.dots(
        rows,
        Field("x", _axis(comparison)),
        METHOD,
        [Field("score", metric(comparison)), Field("cost", "cost (SGD = 1x)"), Field("seed", "seed")],
        small=runs,
        rules=[(row.mean, row.label) for row in comparison.rows if row.name in ("sgd", "sam")],
    )
    bars = " Bars: one standard deviation over seeds." if runs else ""
    return html.chart(spec, "Scores and cost", f"Further right is better. Beside each name: its cost, SGD = 1x.{bars}")


def _curves(comparison: Comparison) -> Markup | str:
    """The learning curve of each row: the mean over its seeds, and their range."""
    form, labels = ".2f", _labels(comparison)
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
        early.append(min(end["low"] for end in later))
        rows += [{"method": labels[row.name], **end} for end in ends]
    if not rows:
        return ""
    epoch, score = Field("x", "epoch", "d"), Field("y", _axis(comparison), form)
    hover = [epoch, score, Field("low", "least", form), Field("high", "greatest", form), Field("runs", "runs")]
    spec = charts.lines(rows, epoch, score, METHOD, hover, low=min(early))
    band = "Mean over seeds. The band runs from the smallest to the largest." if len(comparison.seeds) > 1 else ""
    return html.chart(spec, "Learning curves", f"{band} {html.CLICK if len(labels) > 1 else ''}".strip())


def _data(comparison: Comparison, links: Links) -> Iterator[Markup]:
    """What the training says about the data: the verdict, and what each row says."""
    lines = []
    for row in by_score(comparison):
        audits = {r.run.seed: r.run.audit for r in comparison.runs if r.name == row.name and r.run.audit is not None}
        if audits:
            kinds = ", ".join(dict.fromkeys(capital(a.kind) for a in audits.values()))
            fitted = [a.flagged for a in audits.values() if not a.unfitted]  # the others flag no label
            runs = html.links({str(seed): links.get((row.name, seed), "") for seed in audits})
            lines.append([row.label, kinds, f"{fmean(fitted):,.0f}" if fitted else NONE, runs])
    if lines:
        yield html.heading("What the training says about the data")
        yield html.paragraph(summary.about_data(comparison))
        yield to_html(Table.of(["Method", "Verdict", "Flagged labels", "Seeds"], lines, left=(0, 1)))
        yield html.paragraph(SEE_ALL if links else "", "note")


def _about(comparison: Comparison) -> str:
    seeds, held = len(comparison.seeds), "validation" if comparison.config.validation else "test"
    data = [named.run.data for named in comparison.runs[:1]]
    samples = [f"{of.train:,} training samples, {of.test:,} {held} samples" for of in data]
    length = f"{comparison.config.epochs} epochs", f"{seeds} seed{'s' * (seeds > 1)}"
    return ", ".join([comparison.config.model, *samples, *length])


def _conditions(comparison: Comparison) -> Iterator[Markup]:
    """The command, the settings and the machine, folded."""
    config, usual = asdict(comparison.config), asdict(Config())
    changed = {k: v for k, v in config.items() if k not in PAIR_SETTINGS and v != usual[k]}
    machine = {}
    for first in comparison.runs[:1]:
        used = first.run.environment
        made = {"created": comparison.created, "commit": used.commit}
        machine = made | asdict(used.hardware) | used.versions
    if comparison.command:
        yield html.code(comparison.command)
    for title, facts in (("Settings that differ from the defaults", changed), ("Machine of the first run", machine)):
        if facts:
            yield html.paragraph(title, "soft")
            yield html.facts(facts)


def _fragments(comparison: Comparison, links: Links) -> Iterator[Markup | str]:
    yield html.heading(comparison.title, 1)
    yield html.paragraph(_about(comparison), "soft")
    yield html.paragraph(summary.underfitting(comparison.rows), "open")
    yield html.paragraph(summary.headline(comparison), "lead")
    if not comparison.complete:
        yield html.paragraph(f"This comparison is not complete: {len(comparison.runs)} runs so far.", "open")
    if comparison.rows:
        yield to_html(summary.score_table(comparison))
        for note in (summary.notes(comparison), *summary.skipped_notes(comparison.rows)):
            yield html.paragraph(note, "note")
        if len(comparison.rows) > 1:
            yield _scores(comparison)
        verdicts, meaning = summary.verdict_table(comparison)
        if verdicts.lines:
            folded = [to_html(verdicts), html.paragraph(meaning, "note")]
            yield html.details("Differences with intervals and p values", folded)
        further, meaning = summary.further_table(comparison)
        yield html.details(
            "Settings, wall time and further scores", [to_html(further), html.paragraph(meaning, "note")]
        )
        yield _curves(comparison)
    yield from _data(comparison, links)
    yield html.details("How it was made: command, settings, machine", _conditions(comparison))


def render(comparison: Comparison, links: Links | None = None) -> str:
    """The whole page. It fetches nothing. ``links`` lead from it to its runs."""
    return html.page(comparison.title, _fragments(comparison, links or {}), width=60)
