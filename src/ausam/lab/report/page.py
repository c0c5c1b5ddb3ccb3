"""The report of a comparison: a self-contained HTML page from results.json alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ausam.lab.io import files
from ausam.lab.report.chart_text import clean, esc
from ausam.lab.report.charts import Line, Point, lines, pairs, scatter
from ausam.lab.report.shell import page
from ausam.lab.report.summary import (
    NONE,
    Results,
    Row,
    capital,
    cells,
    headline,
    metric,
    number,
    ours,
    show,
    table_rows,
)

Looks = Mapping[str, tuple[str, int, bool]]  # of each name: its label, its colour slot, whether it stands out


def _table(rows: Sequence[Row], score: str) -> str:
    head = (
        "Method",
        f"{esc(capital(score))}, %",
        "Speed, SAM = 100",
        "Samples, SAM = 100",
        "Training, s",
        "Epochs",
        "Runs",
    )
    best, mine = max((r.accuracy for r in rows if r.accuracy is not None), default=None), ours(rows)
    out = ["<tr>" + "".join(f'<th scope="col">{h}</th>' for h in head) + "</tr></thead><tbody>"]
    for r, (label, accuracy, *rest) in zip(rows, cells(rows), strict=True):
        first = f"<b>{accuracy}</b>" if r.accuracy is not None and r.accuracy == best else accuracy
        data = "".join(f"<td>{c}</td>" for c in (first, *rest, show(r.epochs, 0), r.n))
        name = f'<th scope="row">{esc(label)}<small>{esc(r.how)}</small></th>'
        out.append(f"<tr{' class=ours' if r in mine else ''}>{name}{data}</tr>")
    return f'<div class="scroll"><table><thead>{"".join(out)}</tbody></table></div>'


def _prose(text: str) -> str:
    """Escape, and keep a figure on one line with its spread and its unit."""
    return esc(text).replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")


def _both(draw: Callable[[float], str]) -> str:
    """Draw for wide and for narrow screens: scaling one drawing would make its text illegible on a phone."""
    return f'<div class="wide">{draw(680)}</div><div class="narrow">{draw(360)}</div>'


def _time_chart(rows: Sequence[Row], looks: Looks, score: str) -> str:
    points = []
    for r in rows:
        if r.accuracy is not None and r.seconds is not None:
            note = f"{r.label}: {show(r.accuracy, 2, r.std)} %, {show(r.seconds, 2, r.seconds_std)} s, {r.n} runs"
            at = (r.seconds, r.accuracy, r.label, r.seconds_std, r.std)
            points.append(Point(*at, *looks[r.name][1:], note))
    if not points:
        return ""
    chart = _both(lambda w: scatter(points, "training time (s)", f"test {score} (%)", w))
    note = "Up and left is better. Bars: one standard deviation over seeds. Dashed: the best up to each time."
    return f'<h2>{esc(capital(score))} against training time</h2>{chart}<p class="note">{note}</p>'


def _curves(runs: Sequence[Results], looks: Looks, score: str) -> str:
    series, early = [], []
    for name, (label, slot, strong) in looks.items():
        seen: dict[float, list[float]] = {}
        for point in (p for r in runs if clean(r.get("name")) == name for p in r.get("curve") or []):
            epoch, value = number(point.get("epoch")), number(point.get("test_accuracy"))
            if epoch is not None and value is not None:
                seen.setdefault(epoch, []).append(value)
        if xs := sorted(seen):
            low, high, mean = ([float(f(seen[x])) for x in xs] for f in (min, max, fmean))
            early.append(low[len(low) // 5])  # the first epochs are far below the rest and would flatten what matters
            series.append(Line(xs, mean, label, low, high, slot, strong))
    if not series:
        return ""
    cut = " The axis leaves out the first epochs." if min(early) > min(min(s.low) for s in series) else ""
    chart = _both(lambda w: lines(series, "epoch", f"test {score} (%)", w, None, min(early)))
    note = f"Mean over seeds; the band is the least and the greatest. Dotted: where a shorter run ended.{cut}"
    return f'<h2>Learning curves</h2>{chart}<p class="note">{note}</p>'


def mislabelled(results: Results) -> dict[str, list[tuple[float, float]]]:
    """Mean times chosen, (correctly labelled, mislabelled), one pair a run, by name."""
    out: dict[str, list[tuple[float, float]]] = {}
    for run in results.get("runs") or []:
        part = run.get("selection") or {}
        right, wrong = (number((part.get(k) or {}).get("chosen")) for k in ("right", "wrong"))
        if right is not None and wrong is not None:
            out.setdefault(clean(run.get("name")), []).append((right, wrong))
    return out


def answer(results: Results) -> str:
    """Answer from the figures, in one sentence, whether the mislabelled samples get chosen more."""
    rows = table_rows(results)
    found, labels, mine = mislabelled(results), {r.name: r.label for r in rows}, [r.name for r in ours(rows)]
    if not found:
        return "Whether mislabelled samples are chosen more is unknown: no finished run chose among known wrong labels."
    parts = []
    for name in sorted(found, key=lambda n: n not in mine)[:3]:
        right, wrong = (fmean(p[i] for p in found[name]) for i in (0, 1))
        more, less = (sum(s * (w - r) > 0 for r, w in found[name]) for s in (1, -1))
        n = len(found[name])
        clear = abs(wrong - right) > 0.05 * right  # closer than this no reader should make anything of it
        word = "yes" if clear and more == n else "no, less often" if clear and less == n else "no clear difference"
        ratio = f" ({wrong / right:.2f} times as often; more in {more} of {n} runs)" if right else ""
        parts.append(f"{labels.get(name, name)}: {word}, {wrong:.1f} times on average against {right:.1f}{ratio}")
    return f"Are mislabelled samples chosen more often than correctly labelled ones? {'; '.join(parts)}."


def _bins(selections: Sequence[Results]) -> list[tuple[float, ...]]:
    """Average the bins over runs: (percent of samples below its middle, score, times chosen, part mislabelled)."""
    out: dict[int, list[tuple[float, ...]]] = {}
    for part in selections:
        figures = [[number(b.get(k)) for k in ("n", "score", "chosen", "wrong")] for b in part.get("bins") or []]
        total, before = sum(f[0] or 0 for f in figures) or 1, 0.0
        for i, (n, score, chosen, wrong) in enumerate(figures):
            middle, before = 100 * (before + (n or 0) / 2) / total, before + (n or 0)
            if score is not None and chosen is not None:
                out.setdefault(i, []).append((middle, score, chosen, math.nan if wrong is None else wrong))
    return [tuple(map(fmean, zip(*found, strict=True))) for _, found in sorted(out.items())]


def _selection(results: Results, runs: Sequence[Results], looks: Looks) -> str:
    series, ranges = [], []
    for name, (label, slot, strong) in looks.items():
        parts = [r["selection"] for r in runs if clean(r.get("name")) == name and r.get("selection")]
        if bins := _bins(parts):
            xs, scores, ys, wrong = zip(*bins, strict=True)
            share = ["" if math.isnan(w) else f", {100 * w:.0f} % mislabelled" for w in wrong]
            notes = [f"{label}: score {b[1]:.3g}, chosen {b[2]:.1f} times{w}" for b, w in zip(bins, share, strict=True)]
            series.append(Line(xs, ys, label, (), (), slot, strong, notes))
            ranges.append(f"{label}: {parts[0].get('signal') or 'score'} {scores[0]:.3g} to {scores[-1]:.3g}")
    if not series:
        return ""
    x_label, y_label = "samples, lowest to highest score (%)", "times chosen (mean)"
    kinds = ("correctly labelled", "mislabelled")
    more = "; and more" if len(ranges) > 4 else ""
    found = mislabelled(results)
    both = [(looks[k][0], fmean(a for a, _ in v), fmean(b for _, b in v)) for k, v in found.items()]
    return (
        "<h2>How often samples were chosen, by their score</h2>"
        + _both(lambda w: lines(series, x_label, y_label, w, (0, 100), 0.0))
        + f'<p class="note">Mean score of the lowest and highest group. {esc("; ".join(ranges[:4]))}{more}.</p>'
        + f"<p>{_prose(answer(results))}</p>"
        + (_both(lambda w: pairs(both, y_label, kinds, w)) if both else "")
    )


def _facts(values: Mapping[str, Any]) -> str:
    def text(v: object) -> str:
        return NONE if v is None or v == "" else ", ".join(map(str, v)) if isinstance(v, list | tuple) else str(v)

    return "<dl>" + "".join(f"<div><dt>{esc(k)}</dt><dd>{esc(text(v))}</dd></div>" for k, v in values.items()) + "</dl>"


def _conditions(results: Results) -> str:
    found = results.get("conditions") or {}
    about = {"created": results.get("created"), "commit": found.get("commit"), "seeds": found.get("seeds")}
    parts = [f"<h2>Conditions</h2><code>{esc(results.get('command') or NONE)}</code>{_facts(about)}"]
    groups = {"Data": results, "Hardware": found, "Versions": found, "Config": found}
    parts += [f"<h3>{k}</h3>{_facts(g[k.lower()])}" for k, g in groups.items() if g.get(k.lower())]
    return "".join(parts)


def render(results: Results) -> str:
    """Write the whole page: no script, and nothing is fetched from anywhere."""
    rows, runs = table_rows(results), results.get("runs") or []
    labels = {clean(r.get("name")): clean(r.get("name")) for r in runs} | {r.name: r.label for r in rows}
    order, mine = dict.fromkeys([*(r.name for r in rows), *labels]), {r.name for r in ours(rows)}
    looks = {name: (labels[name], i, name in mine) for i, name in enumerate(order)}
    score = metric(results)
    title, data = esc(results.get("title") or "Comparison"), results.get("data") or {}
    noise = number(data.get("label_noise"))
    words = {
        "train": "training samples",
        "test": "test samples",
        "classes": "classes" if score == "accuracy" else "joints",
    }
    about = [f"{data[k]} {word}" for k, word in words.items() if data.get(k) is not None]
    about += [f"{100 * noise:.0f} % wrong labels"] if noise else []
    rule = "± is the standard deviation s over seeds. A beats B when their means differ by more than √(s²(A) + s²(B))."
    body = [
        f'<h1>{title}</h1><p class="soft">{esc(", ".join(about))}</p><p class="lead">{_prose(headline(results))}</p>',
        '<p class="open">This comparison is not complete.</p>' if results.get("complete") is False else "",
        f'{_table(rows, score)}<p class="note">{rule}</p>' if rows else "",
        _time_chart(rows, looks, score),
        _curves(runs, looks, score),
        _selection(results, runs, looks),
        _conditions(results),
    ]
    return page(str(results.get("title") or "Comparison"), body)


def write_report(results: Results, path: Path) -> None:
    """Write the page."""
    files.write(path, render(results))
