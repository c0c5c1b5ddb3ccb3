"""The report of a comparison: a self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from ausam.lab.config import OF_ONE_PAIR
from ausam.lab.io import files
from ausam.lab.report.chart_text import esc
from ausam.lab.report.charts import Line, Point, lines, pairs, scatter
from ausam.lab.report.records import Comparison, NamedRun, Row, Selection
from ausam.lab.report.shell import document
from ausam.lab.report.summary import RULE, headline, metric, ours, row_texts
from ausam.lab.report.text import NONE, capital, clean, show

Looks = Mapping[str, tuple[str, int, bool]]  # of each name: its label, its colour slot, whether it stands out


def _table(rows: Sequence[Row], score: str, unit: str) -> str:
    head = (
        "Method",
        f"{esc(capital(score))}, {esc(unit)}",
        "Difference from SAM, 95 % interval",
        "Speed, SAM = 100",
        "Samples, SAM = 100",
        "Training, s",
        "Epochs",
        "Runs",
    )
    best, mine = max(r.mean for r in rows), ours(rows)
    out = ["<tr>" + "".join(f'<th scope="col">{h}</th>' for h in head) + "</tr></thead><tbody>"]
    for r, (label, score_text, *rest) in zip(rows, row_texts(rows), strict=True):
        first = f"<b>{score_text}</b>" if r.mean == best else score_text
        data = "".join(f"<td>{c}</td>" for c in (first, *rest, r.epochs, r.n))
        name = f'<th scope="row">{esc(label)}<small>{esc(r.pair)}</small></th>'
        out.append(f"<tr{' class=ours' if r in mine else ''}>{name}{data}</tr>")
    return f'<div class="scroll"><table><thead>{"".join(out)}</tbody></table></div>'


def _prose(text: str) -> str:
    """Escape, and keep a figure on one line with its spread and its unit."""
    return esc(text).replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")


def _both(chart: Callable[[float], str]) -> str:
    """A chart for wide and one for narrow screens: scaling would make its text illegible on a phone."""
    return f'<div class="wide">{chart(680)}</div><div class="narrow">{chart(360)}</div>'


def _time_chart(rows: Sequence[Row], looks: Looks, score: str, unit: str) -> str:
    points = []
    for r in rows:
        note = f"{r.label}: {show(r.mean, 2, r.std)} {unit}, {show(r.mean_seconds, 2, r.std_seconds)} s, {r.n} runs"
        at = (r.mean_seconds, r.mean, clean(r.label), r.std_seconds, r.std)
        points.append(Point(*at, *looks[r.name][1:], note))
    chart = _both(lambda w: scatter(points, "training time (s)", f"test {score} ({unit})", w))
    note = "Up and left is better. Bars: one standard deviation over seeds. Dashed: the best up to each time."
    return f'<h2>{esc(capital(score))} against training time</h2>{chart}<p class="note">{note}</p>'


def _curves(runs: Sequence[NamedRun], looks: Looks, score: str, unit: str) -> str:
    series, early = [], []
    for name, (label, slot, strong) in looks.items():
        seen: dict[float, list[float]] = {}
        for point in (p for r in runs if r.name == name for p in r.curve):
            seen.setdefault(point.epoch, []).append(point.score)
        if xs := sorted(seen):
            low, high, mean = ([float(f(seen[x])) for x in xs] for f in (min, max, fmean))
            early.append(low[len(low) // 5])  # the first epochs are far below the rest and would flatten what matters
            series.append(Line(xs, mean, label, low, high, slot, strong))
    if not series:
        return ""
    cut = " The axis leaves out the first epochs." if min(early) > min(min(s.low) for s in series) else ""
    chart = _both(lambda w: lines(series, "epoch", f"test {score} ({unit})", w, None, min(early)))
    note = f"Mean over seeds; the band is the least and the greatest. Dotted: where a shorter run ended.{cut}"
    return f'<h2>Learning curves</h2>{chart}<p class="note">{note}</p>'


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


def _selection(found: Comparison, looks: Looks) -> str:
    series, ranges = [], []
    for name, (label, slot, strong) in looks.items():
        parts = [r.run.selection for r in found.runs if r.name == name and r.run.selection is not None]
        if bins := _bins(parts):
            xs, scores, ys, wrong = zip(*bins, strict=True)
            share = ["" if math.isnan(w) else f", {100 * w:.0f} % mislabelled" for w in wrong]
            notes = [f"{label}: score {b[1]:.3g}, chosen {b[2]:.1f} times{w}" for b, w in zip(bins, share, strict=True)]
            series.append(Line(xs, ys, label, (), (), slot, strong, notes))
            ranges.append(f"{label}: {parts[0].signal} {scores[0]:.3g} to {scores[-1]:.3g}")
    if not series:
        return ""
    x_label, y_label = "samples, lowest to highest score (%)", "times chosen (mean)"
    kinds = ("correctly labelled", "mislabelled")
    more = "; and more" if len(ranges) > 4 else ""
    chosen = mislabelled(found.runs)
    both = [(looks[k][0], fmean(a for a, _ in v), fmean(b for _, b in v)) for k, v in chosen.items()]
    return (
        "<h2>How often samples were chosen, by their score</h2>"
        + _both(lambda w: lines(series, x_label, y_label, w, (0, 100), 0.0))
        + f'<p class="note">Mean score of the lowest and highest group. {esc("; ".join(ranges[:4]))}{more}.</p>'
        + f"<p>{_prose(answer(found))}</p>"
        + (_both(lambda w: pairs(both, y_label, kinds, w)) if both else "")
    )


def _facts(values: Mapping[str, Any]) -> str:
    def text(v: object) -> str:
        return NONE if v is None or v == "" else ", ".join(map(str, v)) if isinstance(v, list | tuple) else str(v)

    return "<dl>" + "".join(f"<div><dt>{esc(k)}</dt><dd>{esc(text(v))}</dd></div>" for k, v in values.items()) + "</dl>"


def _conditions(found: Comparison) -> str:
    about = {"created": found.created, "commit": found.environment.commit, "seeds": found.seeds}
    parts = [f"<h2>Conditions</h2><code>{esc(found.command or NONE)}</code>{_facts(about)}"]
    groups = {
        "Data": {"name": found.config.data, "label_noise": found.config.label_noise}
        | ({} if found.data is None else asdict(found.data)),
        "Hardware": asdict(found.environment.hardware),
        "Versions": found.environment.versions,
        "Config": {k: v for k, v in asdict(found.config).items() if k not in OF_ONE_PAIR},
    }
    return "".join([*parts, *(f"<h3>{name}</h3>{_facts(values)}" for name, values in groups.items())])


def render(found: Comparison) -> str:
    """Write the whole page: no script, and nothing is fetched from anywhere."""
    rows, mine = found.rows, {r.name for r in ours(found.rows)}
    looks = {r.name: (clean(r.label), i, r.name in mine) for i, r in enumerate(rows)}
    score, unit = metric(found)
    about = []
    if found.data is not None:
        kinds = "classes" if score == "accuracy" else "joints"
        about = [f"{found.data.train} training samples", f"{found.data.test} test samples"]
        about.append(f"{found.data.classes} {kinds}")
    about += [f"{100 * found.config.label_noise:.0f} % wrong labels"] if found.config.label_noise else []
    body = [
        f'<h1>{esc(found.title)}</h1><p class="soft">{esc(", ".join(about))}</p>',
        f'<p class="lead">{_prose(headline(found))}</p>',
        "" if found.complete else '<p class="open">This comparison is not complete.</p>',
    ]
    if rows:
        body += [f'{_table(rows, score, unit)}<p class="note">{RULE}</p>', _time_chart(rows, looks, score, unit)]
        body += [_curves(found.runs, looks, score, unit), _selection(found, looks)]
    return document(found.title, [*body, _conditions(found)])


def write_report(found: Comparison, path: Path) -> None:
    """Write the page."""
    files.write(path, render(found))
