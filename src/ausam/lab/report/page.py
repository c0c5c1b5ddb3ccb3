"""The report of a comparison: a self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ausam.lab.config import PAIR_SETTINGS
from ausam.lab.records import files
from ausam.lab.records.results import Comparison, Group, NamedRun, Row, Selection
from ausam.lab.records.score import VALIDATION, measured_on
from ausam.lab.report import charts, skipped
from ausam.lab.report.charts import Field, PlainRow, Spec
from ausam.lab.report.shell import figure, fill, page
from ausam.lab.report.summary import (
    JUDGED,
    RULE,
    best,
    heading,
    headline,
    judged_rule,
    judged_texts,
    lower_is_better,
    metric,
    ours,
    parts,
    row_texts,
)
from ausam.lab.report.text import NONE, capital, clean, show

METHOD = Field("method", "method")
KINDS = ("correctly labelled", "mislabelled")
TIMES = "times chosen (mean)"
# what the parts of a score mean, by its name
PARTS = {
    "accuracy": "Balanced accuracy is the mean over the classes. Head, middle and tail are the mean over the first, "
    "middle and last third of the classes: later classes have fewer training samples.",
    "PCKh@0.5": "Score of each group of joints.",
    "MSE": "MAE: the mean absolute error.",
}
ANSWERS = {"accuracy": "classes", "PCKh@0.5": "joints", "MSE": "steps ahead"}  # what the network predicts, by its score


@dataclass(frozen=True)
class Picture:
    """A chart of the page with its heading and text."""

    name: str  # of its PNG file
    spec: Spec
    title: str = ""
    note: str = ""


def _labels(rows: Sequence[Row]) -> dict[str, str]:
    """The name of each row in the charts: its label, with the pair's name where two labels are equal."""
    found = [clean(r.label) for r in rows]
    return {r.name: f"{t} ({clean(r.name)})" if found.count(t) > 1 else t for r, t in zip(rows, found, strict=True)}


def _marked(found: Comparison) -> Iterator[tuple[str, dict[str, Any]]]:
    """For each row, the fields shared by its chart points: its name and whether it is highlighted."""
    mine, labels = ours(found.rows), _labels(found.rows)
    for row in found.rows:
        yield row.name, {"method": labels[row.name]} | ({"strong": True} if row in mine else {})


def _score(found: Comparison) -> str:
    """The name of the score, without what it was measured on."""
    return metric(found)[0].removeprefix(VALIDATION)


def _axis(found: Comparison) -> str:
    """The title of the score axis."""
    name, unit = metric(found)
    return f"{measured_on(name)}{f' ({unit})' if unit else ''}"


def _time(found: Comparison) -> Picture:
    score, unit = metric(found)
    rows: list[PlainRow] = []
    runs: list[PlainRow] = []
    for r, (_, mark) in zip(found.rows, _marked(found), strict=True):
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
        rows,
        Field("x", "training time (s)"),
        Field("y", _axis(found)),
        METHOD,
        [*hover, Field("runs", "runs")],
        runs=runs,
        hover_runs=[*hover, Field("seed", "seed")],
        lower=lower_is_better(found),
    )
    up = "Down" if lower_is_better(found) else "Up"
    note = f"{up} and left is better. Small marks: the runs. Bars: one standard deviation over seeds. "
    note += "Dashed: the best up to each time."
    return Picture("time", spec, f"{capital(score)} against training time", note=note)


def _curves(found: Comparison) -> Picture | None:
    lower, form = lower_is_better(found), f".{found.rows[0].decimals}f"
    rows, early = [], []
    for name, mark in _marked(found):
        seen: dict[int, list[float]] = {}
        for point in (p for r in found.runs if r.name == name for p in r.curve):
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
    hover = [Field("x", "epoch", "d"), Field("y", f"{_axis(found)}, mean", form), Field("low", "least", form)]
    spec = charts.lines(
        rows,
        Field("x", "epoch", "d"),
        Field("y", _axis(found)),
        METHOD,
        [*hover, Field("high", "greatest", form), Field("runs", "runs")],
        y_from=None if lower else min(early),
        y_to=max(early) if lower else None,
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


def answer(found: Comparison) -> str:
    """One sentence, from the figures, on whether mislabelled samples are chosen more often."""
    chosen = mislabelled(found.runs)
    labels, mine = {r.name: r.label for r in found.rows}, [r.name for r in ours(found.rows)]
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


def _bins(selections: Sequence[Selection]) -> list[tuple[float, ...]]:
    """Bins averaged over runs: (percent of samples below its middle, score, times chosen, fraction mislabelled)."""
    out: dict[int, list[tuple[float, ...]]] = {}
    for part in selections:
        total, before = sum(b.n for b in part.bins) or 1, 0.0
        for i, b in enumerate(part.bins):
            middle, before = 100 * (before + b.n / 2) / total, before + b.n
            if b.score is not None and math.isfinite(b.score):
                out.setdefault(i, []).append((middle, b.score, b.chosen, math.nan if b.wrong is None else b.wrong))
    return [tuple(map(fmean, zip(*found, strict=True))) for _, found in sorted(out.items())]


def _chosen(found: Comparison) -> Picture | None:
    rows, ranges = [], []
    for name, mark in _marked(found):
        parts = [r.run.selection for r in found.runs if r.name == name and r.run.selection is not None]
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
    )
    more = "; and more" if len(ranges) > 4 else ""
    note = f"Mean score of the lowest and highest group. {'; '.join(ranges[:4])}{more}."
    return Picture("chosen", spec, "How often samples were chosen, by their score", note=note)


def _by_class(found: Comparison) -> Picture | None:
    rows = []
    for name, mark in _marked(found):
        classes = _classes(found, name)
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
    )
    sizes = {row["x"]: row["n"] for row in rows}
    first, last = min(sizes), max(sizes)
    note = f"Mean over the samples of a class. Class {first} has {sizes[first]} training samples, class {last} has "
    return Picture("classes", spec, "How often samples were chosen, by class", note=f"{note}{sizes[last]}.")


def _classes(found: Comparison, name: str) -> dict[int, list[Group]]:
    """How often the runs of a row chose each class of long-tailed data."""
    out: dict[int, list[Group]] = {}
    for r in found.runs:
        if r.name == name and r.run.selection is not None:
            for c, group in r.run.selection.classes.items():
                out.setdefault(int(c), []).append(group)
    return out


def rare(found: Comparison) -> str:
    """One sentence, from the figures, on whether rare classes are chosen more often; empty without figures."""
    told, mine = [], ours(found.rows)
    for row in sorted(found.rows, key=lambda r: r not in mine):
        classes = _classes(found, row.name)
        if third := len(classes) // 3:
            head, tail = (
                sum(g.n * g.chosen for g in part) / sum(g.n for g in part)
                for part in (
                    [g for c in some for g in classes[c]]
                    for some in (sorted(classes)[:third], sorted(classes)[-third:])
                )
            )
            ratio = f" ({tail / head:.2f} times as often)" if head else ""
            told.append(f"{row.label}: {tail:.1f} times on average against {head:.1f}{ratio}")
    asked = "Are samples of the rarest third of the classes chosen more often than those of the most frequent third?"
    return f"{asked} {'; '.join(told[:3])}." if told else ""


def _mislabelled(found: Comparison) -> Picture | None:
    labels = _labels(found.rows)
    rows = [
        {"method": labels[name], "kind": kind, "x": fmean(each[i] for each in both)}
        for name, both in mislabelled(found.runs).items()
        for i, kind in enumerate(KINDS)
    ]
    if not rows:
        return None
    return Picture("mislabelled", charts.pairs(rows, Field("x", TIMES, ".1f"), METHOD, Field("kind", "labels"), KINDS))


def pictures(found: Comparison) -> list[Picture]:
    """The charts of a comparison in page order; those without figures are left out."""
    if not found.rows:
        return []
    every = _time(found), _curves(found), _chosen(found), _mislabelled(found), _by_class(found)
    return [p for p in every if p is not None]


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return NONE if value is None or value == "" else str(value)


def _conditions(found: Comparison) -> dict[str, dict[str, str]]:
    """Groups of facts; the first has no title."""
    groups: dict[str, Mapping[str, object]] = {
        "": {"created": found.created, "commit": found.environment.commit, "seeds": found.seeds},
        "Data": {k: getattr(found.config, k) for k in ("data", "label_noise", "imbalance", "validation")}
        | ({} if found.data is None else asdict(found.data)),
        "Hardware": asdict(found.environment.hardware),
        "Versions": found.environment.versions,
        "Config": {k: v for k, v in asdict(found.config).items() if k not in PAIR_SETTINGS},
    }
    return {title: {k: _text(v) for k, v in facts.items()} for title, facts in groups.items()}


def _about(found: Comparison) -> str:
    about = []
    if found.data is not None:
        judges = measured_on(metric(found)[0]).partition(" ")[0]
        about = [f"{found.data.train} training samples", f"{found.data.test} {judges} samples"]
        about.append(f"{found.data.classes} {ANSWERS.get(_score(found), 'classes')}")
    if found.config.imbalance not in (0, 1):
        about.append(f"long tail: the last class keeps {100 * found.config.imbalance:g} %")
    about += [f"{100 * found.config.label_noise:.0f} % wrong labels"] if found.config.label_noise else []
    return ", ".join(about)


def render(found: Comparison) -> str:
    """The whole page; it fetches nothing."""
    drawn = pictures(found)
    body = fill(
        "comparison.html",
        found=found,
        about=_about(found),
        headline=headline(found),
        judged=judged_texts(found),
        judged_head=JUDGED,
        judged_rule=judged_rule(found),
        score=heading(*metric(found), lower_is_better(found), comma=","),
        rows=[(row, *texts) for row, texts in zip(found.rows, row_texts(found.rows), strict=True)],
        best=best(found.rows).mean if found.rows else None,
        parts=[capital(name) for name in parts(found.rows)],
        in_parts=[
            (row, row.label, [show(row.parts[name], row.decimals) for name in parts(found.rows)]) for row in found.rows
        ],
        about_parts=PARTS.get(_score(found), ""),
        ours=ours(found.rows),
        rule=RULE,
        skipped=skipped.notes(found.rows),
        pictures=[(picture, figure(picture.spec)) for picture in drawn],
        answers={"chosen": answer(found) if found.config.label_noise else "", "classes": rare(found)},
        conditions=_conditions(found),
        command=found.command or NONE,
    )
    return page(found.title, [body], width=62)


def write_report(found: Comparison, path: Path) -> None:
    """Write the page."""
    files.write(path, render(found))
