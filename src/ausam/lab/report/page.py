"""The report of a comparison: a self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ausam.lab.config import OF_ONE_PAIR
from ausam.lab.io import files
from ausam.lab.report import charts, skipped
from ausam.lab.report.charts import Field, PlainRow, Spec
from ausam.lab.report.records import Comparison, NamedRun, Row, Selection
from ausam.lab.report.shell import figure, fill, page
from ausam.lab.report.summary import RULE, headline, metric, ours, row_texts
from ausam.lab.report.text import NONE, capital, clean, show

METHOD = Field("method", "method")
KINDS = ("correctly labelled", "mislabelled")
TIMES = "times chosen (mean)"


@dataclass(frozen=True)
class Picture:
    """A chart of the page with what stands around it."""

    name: str  # of its file, where it is written as one
    spec: Spec
    title: str = ""
    note: str = ""


def _labels(rows: Sequence[Row]) -> dict[str, str]:
    """What each row is called in the charts: its label, with its name where two have the same."""
    found = [clean(r.label) for r in rows]
    return {r.name: f"{t} ({clean(r.name)})" if found.count(t) > 1 else t for r, t in zip(rows, found, strict=True)}


def _marked(found: Comparison) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each row, and what all of its points in a chart hold: whose they are, and if that stands out."""
    mine, labels = ours(found.rows), _labels(found.rows)
    for row in found.rows:
        yield row.name, {"method": labels[row.name]} | ({"strong": True} if row in mine else {})


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
        texts = {"score": f"{show(r.mean, 2, r.std)} {unit}", "time": f"{show(r.mean_seconds, 2, r.std_seconds)} s"}
        rows.append({**mark, **at, **ends, **texts, "runs": r.n})
        each = zip(r.seeds, r.scores, r.seconds, strict=True)
        runs += [
            {**mark, "x": s, "y": v, "seed": seed, "score": f"{v:.2f} {unit}", "time": f"{s:.2f} s"}
            for seed, v, s in each
            if r.n > 1
        ]
    hover = [Field("score", score), Field("time", "training time")]
    spec = charts.scatter(
        rows,
        Field("x", "training time (s)"),
        Field("y", f"test {score} ({unit})"),
        METHOD,
        [*hover, Field("runs", "runs")],
        runs=runs,
        hover_runs=[*hover, Field("seed", "seed")],
    )
    note = "Up and left is better. Small marks: the runs. Bars: one standard deviation over seeds. "
    note += "Dashed: the best up to each time."
    return Picture("time", spec, f"{capital(score)} against training time", note=note)


def _curves(found: Comparison) -> Picture | None:
    score, unit = metric(found)
    rows, early = [], []
    for name, mark in _marked(found):
        seen: dict[int, list[float]] = {}
        for point in (p for r in found.runs if r.name == name for p in r.curve):
            seen.setdefault(point.epoch, []).append(point.score)
        if not seen:
            continue
        ends = [{"x": x, "y": fmean(v), "low": min(v), "high": max(v), "runs": len(v)} for x, v in sorted(seen.items())]
        early.append(ends[len(ends) // 5]["low"])  # the first epochs are far below the rest and would flatten them
        rows += [{**mark, **end} for end in ends]
    if not rows:
        return None
    cut = " The axis leaves out the first epochs." if min(early) > min(r["low"] for r in rows) else ""
    hover = [Field("x", "epoch", "d"), Field("y", f"{score} ({unit}), mean", ".2f"), Field("low", "least", ".2f")]
    spec = charts.lines(
        rows,
        Field("x", "epoch", "d"),
        Field("y", f"test {score} ({unit})"),
        METHOD,
        [*hover, Field("high", "greatest", ".2f"), Field("runs", "runs")],
        y_from=min(early),
    )
    note = f"Mean over seeds; the band is the least and the greatest.{cut}"
    return Picture("curves", spec, "Learning curves", note=note)


def mislabelled(runs: Sequence[NamedRun]) -> dict[str, list[tuple[float, float]]]:
    """Mean times chosen, (correctly labelled, mislabelled), one pair a run, by name."""
    out: dict[str, list[tuple[float, float]]] = {}
    for r in runs:
        part = r.run.selection
        if part is not None and part.right is not None and part.wrong is not None:
            out.setdefault(r.name, []).append((part.right.chosen, part.wrong.chosen))
    return out


def answer(found: Comparison) -> str:
    """Answer from the figures, in one sentence, whether the mislabelled samples get chosen more."""
    chosen = mislabelled(found.runs)
    labels, mine = {r.name: r.label for r in found.rows}, [r.name for r in ours(found.rows)]
    if not chosen:
        return "Whether mislabelled samples are chosen more is unknown: no finished run chose among known wrong labels."
    parts = []
    for name in sorted(chosen, key=lambda n: n not in mine)[:3]:
        right, wrong = (fmean(p[i] for p in chosen[name]) for i in (0, 1))
        more, less = (sum(s * (w - r) > 0 for r, w in chosen[name]) for s in (1, -1))
        n = len(chosen[name])
        clear = abs(wrong - right) > 0.05 * right  # closer than this no reader should make anything of it
        word = "yes" if clear and more == n else "no, less often" if clear and less == n else "no clear difference"
        ratio = f" ({wrong / right:.2f} times as often; more in {more} of {n} runs)" if right else ""
        parts.append(f"{labels.get(name, name)}: {word}, {wrong:.1f} times on average against {right:.1f}{ratio}")
    return f"Are mislabelled samples chosen more often than correctly labelled ones? {'; '.join(parts)}."


def _bins(selections: Sequence[Selection]) -> list[tuple[float, ...]]:
    """Average the bins over runs: (percent of samples below its middle, score, times chosen, part mislabelled)."""
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
    """The charts of a comparison, in the order of the page; those it has no figures for are left out."""
    if not found.rows:
        return []
    return [p for p in (_time(found), _curves(found), _chosen(found), _mislabelled(found)) if p is not None]


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return NONE if value is None or value == "" else str(value)


def _conditions(found: Comparison) -> dict[str, dict[str, str]]:
    """Groups of facts; the first has no title."""
    groups: dict[str, Mapping[str, object]] = {
        "": {"created": found.created, "commit": found.environment.commit, "seeds": found.seeds},
        "Data": {"name": found.config.data, "label_noise": found.config.label_noise}
        | ({} if found.data is None else asdict(found.data)),
        "Hardware": asdict(found.environment.hardware),
        "Versions": found.environment.versions,
        "Config": {k: v for k, v in asdict(found.config).items() if k not in OF_ONE_PAIR},
    }
    return {title: {k: _text(v) for k, v in facts.items()} for title, facts in groups.items()}


def _about(found: Comparison) -> str:
    about = []
    if found.data is not None:
        kinds = "classes" if metric(found)[0] == "accuracy" else "joints"
        about = [f"{found.data.train} training samples", f"{found.data.test} test samples"]
        about.append(f"{found.data.classes} {kinds}")
    about += [f"{100 * found.config.label_noise:.0f} % wrong labels"] if found.config.label_noise else []
    return ", ".join(about)


def render(found: Comparison) -> str:
    """Write the whole page; nothing is fetched from anywhere."""
    score, unit = metric(found)
    drawn = pictures(found)
    body = fill(
        "comparison.html",
        found=found,
        about=_about(found),
        headline=headline(found),
        score=f"{capital(score)}, {unit}",
        rows=[(row, *texts) for row, texts in zip(found.rows, row_texts(found.rows), strict=True)],
        best=max((row.mean for row in found.rows), default=None),
        ours=ours(found.rows),
        rule=RULE,
        skipped=skipped.notes(found.rows),
        pictures=[(picture, figure(picture.spec)) for picture in drawn],
        answer=answer(found) if any(picture.name == "chosen" for picture in drawn) else "",
        conditions=_conditions(found),
        command=found.command or NONE,
    )
    return page(found.title, [body], width=62)


def write_report(found: Comparison, path: Path) -> None:
    """Write the page."""
    files.write(path, render(found))
