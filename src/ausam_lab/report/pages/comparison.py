"""The page of a comparison: report.html.

A chart is a function that makes a Picture, or None without figures, and an entry of ``CHARTS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ausam_lab.config import PAIR_SETTINGS
from ausam_lab.records.comparison import Comparison, NamedRun, Row
from ausam_lab.records.run import SampleGroup, SelectionSummary
from ausam_lab.records.score import VALIDATION, measured_on
from ausam_lab.report import charts, html
from ausam_lab.report.charts import Picture
from ausam_lab.report.pages import data
from ausam_lab.report.summary import (
    PROBABILITIES,
    RULE,
    featured_rows,
    further_scores,
    heading,
    headline,
    lower_is_better,
    mark_scores,
    metric,
    probability_cells,
    probability_head,
    row_cells,
    score_cells,
    seconds_digits,
    skipped_notes,
    underfitting,
    verdict_rule,
    verdict_table,
)
from ausam_lab.report.table import MARKS, Line, Section, Table, to_html
from ausam_lab.report.text import NONE, capital, show
from ausam_lab.report.vega import Field, PlainRow

if TYPE_CHECKING:
    from markupsafe import Markup

METHOD = Field("method", "method")
KINDS = ("correctly labelled", "mislabelled")
TIMES = "times chosen (mean)"
# what the further scores mean, by the name of the score
FURTHER_SCORES = {
    "accuracy": "Balanced accuracy is the mean over the classes. Head, middle and tail are the mean over the first, "
    "middle and last third of the classes: later classes have fewer training samples.",
    "PCKh@0.5": "Score of each group of joints.",
    "MSE": "MAE: the mean absolute error.",
}
ANSWERS = {"accuracy": "classes", "PCKh@0.5": "joints"}  # what the network predicts, by its score


def _labels(rows: Sequence[Row]) -> dict[str, str]:
    """The name of each row in the charts: its label, with the pair's name where two labels are equal."""
    labels = [row.label for row in rows]
    return {row.name: f"{row.label} ({row.name})" if labels.count(row.label) > 1 else row.label for row in rows}


def _order(comparison: Comparison) -> list[str]:
    """Every name that the charts may show: a method has one colour in all of them."""
    return list(_labels(comparison.rows).values())


def _marked(comparison: Comparison) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each row, the fields shared by its chart points: its name and whether it is highlighted."""
    mine, labels = featured_rows(comparison.rows), _labels(comparison.rows)
    for row in comparison.rows:
        yield row.name, {"method": labels[row.name]} | ({"strong": True} if row in mine else {})


def _score(comparison: Comparison) -> str:
    """The name of the score, without what it was measured on."""
    return metric(comparison)[0].removeprefix(VALIDATION)


def _axis(comparison: Comparison) -> str:
    """The title of the score axis."""
    name, unit = metric(comparison)
    return f"{measured_on(name)}{f' ({unit})' if unit else ''}"


def _time(comparison: Comparison) -> Picture:
    score, unit = metric(comparison)
    rows: list[PlainRow] = []
    runs: list[PlainRow] = []
    for r, (_, mark) in zip(comparison.rows, _marked(comparison), strict=True):
        at = {"x": r.mean_seconds, "y": r.mean}
        ends = {}
        if r.std is not None and r.std_seconds is not None:
            ends = {"low_x": at["x"] - r.std_seconds, "high_x": at["x"] + r.std_seconds}
            ends |= {"low_y": at["y"] - r.std, "high_y": at["y"] + r.std}
        texts = {
            "score": f"{show(r.mean, r.decimals, r.std)} {unit}",
            "time": f"{show(r.mean_seconds, 2, r.std_seconds)} s",
        }
        rows.append({**mark, **at, **ends, **texts, "runs": r.n})
        each = zip(r.seeds, r.scores, r.seconds, strict=True)
        runs += [
            {**mark, "x": s, "y": v, "seed": seed, "score": f"{v:.{r.decimals}f} {unit}", "time": f"{s:.2f} s"}
            for seed, v, s in each
            if r.n > 1
        ]
    hover = [Field("score", score), Field("time", "training time")]
    spec = charts.scatter(
        labelled_apart(rows),
        Field("x", "training time (s)"),
        Field("y", _axis(comparison)),
        METHOD,
        [*hover, Field("runs", "runs")],
        runs=runs,
        hover_runs=[*hover, Field("seed", "seed")],
        lower=lower_is_better(comparison),
        order=_order(comparison),
    )
    up = "Down" if lower_is_better(comparison) else "Up"
    note = f"{up} and left is better. Small marks: the runs. Bars: one standard deviation over seeds. "
    note += "Dashed: the best up to each time."
    return Picture("time", spec, f"{capital(score)} against training time", note=note)


def labelled_apart(rows: Sequence[PlainRow]) -> list[PlainRow]:
    """The rows, where of two labels that would touch the lower one stands below its mark."""
    wide, high = (max(row[key] for row in rows) - min(row[key] for row in rows) or 1.0 for key in "xy")

    def crowded(row: PlainRow) -> bool:
        above = [other for other in rows if other.get("strong") and other["y"] > row["y"]]
        return any(other["y"] - row["y"] < high / 10 and abs(other["x"] - row["x"]) < wide / 3 for other in above)

    return [{**row, "below": True} if row.get("strong") and crowded(row) else row for row in rows]


def _curves(comparison: Comparison) -> Picture | None:
    lower, form = lower_is_better(comparison), f".{comparison.rows[0].decimals}f"
    rows, early = [], []
    for name, mark in _marked(comparison):
        seen: dict[int, list[float]] = {}
        for point in (p for r in comparison.runs if r.name == name for p in r.curve):
            seen.setdefault(point.epoch, []).append(point.score)
        if not seen:
            continue
        ends = [{"x": x, "y": fmean(v), "low": min(v), "high": max(v), "runs": len(v)} for x, v in sorted(seen.items())]
        later = ends[len(ends) // 5 :]  # the first epochs are far worse and would flatten the rest
        early.append(max(end["high"] for end in later) if lower else min(end["low"] for end in later))
        rows += [{**mark, **end} for end in ends]
    if not rows:
        return None
    worst = max(early) < max(r["high"] for r in rows) if lower else min(early) > min(r["low"] for r in rows)
    cut = " The axis leaves out the first epochs." if worst else ""
    hover = [Field("x", "epoch", "d"), Field("y", f"{_axis(comparison)}, mean", form), Field("low", "least", form)]
    spec = charts.lines(
        rows,
        Field("x", "epoch", "d"),
        Field("y", _axis(comparison)),
        METHOD,
        [*hover, Field("high", "greatest", form), Field("runs", "runs")],
        y_from=None if lower else min(early),
        y_to=max(early) if lower else None,
        order=_order(comparison),
    )
    note = f"Mean over seeds; the band runs from the smallest to the largest.{cut}"
    return Picture("curves", spec, "Learning curves", note=note)


def mislabelled(runs: Sequence[NamedRun]) -> dict[str, list[tuple[float, float]]]:
    """Mean times chosen, (correctly labelled, mislabelled), one pair per run, by name."""
    out: dict[str, list[tuple[float, float]]] = {}
    for r in runs:
        part = r.run.selection
        if part is not None and part.right is not None and part.wrong is not None:
            out.setdefault(r.name, []).append((part.right.chosen, part.wrong.chosen))
    return out


def mislabelled_sentence(comparison: Comparison) -> str:
    """One sentence, from the figures, on whether mislabelled samples are chosen more often."""
    chosen = mislabelled(comparison.runs)
    labels, mine = {r.name: r.label for r in comparison.rows}, [r.name for r in featured_rows(comparison.rows)]
    if not chosen:
        unknown = "It is not known whether mislabelled samples are chosen more often"
        return f"{unknown}: no finished run chose from known wrong labels."
    parts = []
    for name in sorted(chosen, key=lambda n: n not in mine)[:3]:
        right, wrong = (fmean(p[i] for p in chosen[name]) for i in (0, 1))
        more, less = (sum(s * (w - r) > 0 for r, w in chosen[name]) for s in (1, -1))
        n = len(chosen[name])
        clear = abs(wrong - right) > 0.05 * right  # too close to mean anything
        word = "yes" if clear and more == n else "no, less often" if clear and less == n else "no clear difference"
        ratio = f" ({wrong / right:.2f} times as often; more in {more} of {n} runs)" if right else ""
        parts.append(f"{labels.get(name, name)}: {word}, {wrong:.1f} times on average against {right:.1f}{ratio}")
    return f"Are mislabelled samples chosen more often than correctly labelled ones? {'; '.join(parts)}."


def _bins(selections: Sequence[SelectionSummary]) -> list[tuple[float, ...]]:
    """Bins averaged over runs: (percent of samples below its middle, score, times chosen, fraction mislabelled)."""
    out: dict[int, list[tuple[float, ...]]] = {}
    for part in selections:
        total, before = sum(b.n for b in part.bins) or 1, 0.0
        for i, b in enumerate(part.bins):
            middle, before = 100 * (before + b.n / 2) / total, before + b.n
            if b.score is not None and math.isfinite(b.score):
                out.setdefault(i, []).append((middle, b.score, b.chosen, math.nan if b.wrong is None else b.wrong))
    return [tuple(map(fmean, zip(*figures, strict=True))) for _, figures in sorted(out.items())]


def _chosen(comparison: Comparison) -> Picture | None:
    rows, ranges = [], []
    for name, mark in _marked(comparison):
        parts = [r.run.selection for r in comparison.runs if r.name == name and r.run.selection is not None]
        if bins := _bins(parts):
            for middle, score, chosen, wrong in bins:
                share = NONE if math.isnan(wrong) else f"{100 * wrong:.0f} %"
                rows.append({**mark, "x": middle, "y": chosen, "score": score, "wrong": share})
            ranges.append(f"{mark['method']}: {parts[0].signal} {bins[0][1]:.3g} to {bins[-1][1]:.3g}")
    if not rows:
        return None
    spec = charts.lines(
        rows,
        Field("x", "samples, lowest to highest score (%)"),
        Field("y", TIMES),
        METHOD,
        [Field("y", "times chosen", ".1f"), Field("score", "mean score", ".3g"), Field("wrong", "mislabelled")],
        x_range=(0, 100),
        y_from=0.0,
        order=_order(comparison),
    )
    more = "; and more" if len(ranges) > 4 else ""
    note = f"Mean score of the lowest and highest group. {'; '.join(ranges[:4])}{more}."
    text = mislabelled_sentence(comparison) if comparison.config.label_noise else ""
    return Picture("chosen", spec, "How often samples were chosen, by their score", note, text)


def _by_class(comparison: Comparison) -> Picture | None:
    rows = []
    for name, mark in _marked(comparison):
        classes = _classes(comparison, name)
        rows += [{**mark, "x": c, "y": fmean(g.chosen for g in of), "n": of[0].n} for c, of in sorted(classes.items())]
    if not rows:
        return None
    spec = charts.lines(
        rows,
        Field("x", "class", "d"),
        Field("y", TIMES),
        METHOD,
        [Field("x", "class", "d"), Field("n", "training samples", "d"), Field("y", "times chosen", ".1f")],
        y_from=0.0,
        order=_order(comparison),
    )
    sizes = {row["x"]: row["n"] for row in rows}
    first, last = min(sizes), max(sizes)
    note = f"Mean over the samples of a class. Class {first} has {sizes[first]} training samples, class {last} has "
    note = f"{note}{sizes[last]}."
    return Picture("classes", spec, "How often samples were chosen, by class", note, rare_class_sentence(comparison))


def _classes(comparison: Comparison, name: str) -> dict[int, list[SampleGroup]]:
    """How often the runs of a row chose each class of long-tailed data."""
    out: dict[int, list[SampleGroup]] = {}
    for r in comparison.runs:
        if r.name == name and r.run.selection is not None:
            for c, group in r.run.selection.classes.items():
                out.setdefault(int(c), []).append(group)
    return out


def rare_class_sentence(comparison: Comparison) -> str:
    """One sentence, from the figures, on whether rare classes are chosen more often; empty without figures."""
    sentences, mine = [], featured_rows(comparison.rows)
    for row in sorted(comparison.rows, key=lambda r: r not in mine):
        classes = _classes(comparison, row.name)
        if third := len(classes) // 3:
            head, tail = (
                sum(g.n * g.chosen for g in part) / sum(g.n for g in part)
                for part in (
                    [g for c in some for g in classes[c]]
                    for some in (sorted(classes)[:third], sorted(classes)[-third:])
                )
            )
            ratio = f" ({tail / head:.2f} times as often)" if head else ""
            sentences.append(f"{row.label}: {tail:.1f} times on average against {head:.1f}{ratio}")
    asked = "Are samples of the rarest third of the classes chosen more often than those of the most frequent third?"
    return f"{asked} {'; '.join(sentences[:3])}." if sentences else ""


def _mislabelled(comparison: Comparison) -> Picture | None:
    labels = _labels(comparison.rows)
    rows = [
        {"method": labels[name], "kind": kind, "x": fmean(each[i] for each in both)}
        for name, both in mislabelled(comparison.runs).items()
        for i, kind in enumerate(KINDS)
    ]
    if not rows:
        return None
    return Picture("mislabelled", charts.pairs(rows, Field("x", TIMES, ".1f"), METHOD, Field("kind", "labels"), KINDS))


CHARTS: tuple[Callable[[Comparison], Picture | None], ...] = (_time, _curves, _chosen, _mislabelled, _by_class)


def pictures(comparison: Comparison) -> list[Picture]:
    """The charts of a comparison in page order; those without figures are left out."""
    drawn = (chart(comparison) for chart in CHARTS) if comparison.rows else ()
    return [picture for picture in drawn if picture is not None]


def _conditions(comparison: Comparison) -> dict[str, Mapping[str, object]]:
    """Groups of facts; the first has no title."""
    return {
        "": {"created": comparison.created, "commit": comparison.environment.commit, "seeds": comparison.seeds},
        "Data": {k: getattr(comparison.config, k) for k in ("data", "label_noise", "imbalance", "validation")}
        | ({} if comparison.data is None else asdict(comparison.data)),
        "Hardware": asdict(comparison.environment.hardware),
        "Versions": comparison.environment.versions,
        "Config": {k: v for k, v in asdict(comparison.config).items() if k not in PAIR_SETTINGS},
    }


def _about(comparison: Comparison) -> str:
    about = []
    if comparison.data is not None:
        judges = measured_on(metric(comparison)[0]).partition(" ")[0]
        about = [f"{comparison.data.train} training samples", f"{comparison.data.test} {judges} samples"]
        about.append(f"{comparison.data.classes} {ANSWERS.get(_score(comparison), 'classes')}")
    if comparison.config.imbalance not in (0, 1):
        about.append(f"long tail: the last class keeps {100 * comparison.config.imbalance:g} %")
    about += [f"{100 * comparison.config.label_noise:.0f} % wrong labels"] if comparison.config.label_noise else []
    return ", ".join(about)


def _score_table(comparison: Comparison) -> Table:
    """Every row with its figures."""
    score = heading(*metric(comparison), lower_is_better(comparison), comma=",")
    probable = probability_head(comparison.rows)
    head = ("Method", score, *probable, "Difference from SAM, 95 % interval", "Speed, SAM = 100", "Samples, SAM = 100")
    digits, mine = seconds_digits(comparison.rows), featured_rows(comparison.rows)
    lines = [
        Line(
            (row.label, *_figures(row, digits, bool(probable)), row.epochs, row.n),
            style="ours" if row in mine else "",
            detail=row.pair,
        )
        for row in comparison.rows
    ]
    section = Section(tuple(mark_scores(comparison, lines)))
    return Table((*head, "Training, s", "Epochs", "Runs"), (section,))


def _figures(row: Row, digits: int, probable: bool) -> list[str]:
    score, *rest = row_cells(row, digits)
    return [score, *(probability_cells(row) if probable else []), *rest]


def _further_table(comparison: Comparison, names: Sequence[str]) -> Table:
    mine = featured_rows(comparison.rows)
    lines = [
        Line((row.label, *score_cells(row, names)), style="ours" if row in mine else "") for row in comparison.rows
    ]
    return Table(("Method", *map(capital, names)), (Section(tuple(lines)),))


def _fragments(comparison: Comparison) -> Iterator[Markup]:
    yield html.heading(comparison.title, 1)
    yield html.paragraph(_about(comparison), "soft")
    if warning := underfitting(comparison.rows):
        yield html.paragraph(warning, "open")
    yield html.paragraph(headline(comparison), "lead")
    if not comparison.complete:
        yield html.paragraph("This comparison is not complete.", "open")
    if comparison.rows:
        yield to_html(_score_table(comparison))
        probable = [PROBABILITIES] if probability_head(comparison.rows) else []
        for note in (RULE, MARKS, *probable, *skipped_notes(comparison.rows)):
            yield html.paragraph(note, "note")
    if (verdicts := verdict_table(comparison)).lines:
        yield to_html(verdicts, stack=True)
        if rule := verdict_rule(comparison):
            yield html.paragraph(rule, "note")
    if names := further_scores(comparison.rows):
        yield html.heading("Further scores")
        yield to_html(_further_table(comparison, names))
        yield html.paragraph(FURTHER_SCORES.get(_score(comparison), ""), "note")
    yield from html.pictures(pictures(comparison))
    yield from data.fragments(comparison)
    yield html.heading("Conditions")
    yield html.code(comparison.command or NONE)
    for title, facts in _conditions(comparison).items():
        if title:
            yield html.heading(title, 3)
        yield html.facts(facts)


def render(comparison: Comparison) -> str:
    """The whole page; it fetches nothing."""
    return html.page(comparison.title, _fragments(comparison), width=72)
