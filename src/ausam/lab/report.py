"""The report of a comparison: a self-contained HTML page from results.json alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ausam.lab import files
from ausam.lab.headline import NONE, Results, Row, capital, cells, headline, metric, number, ours, show, table_rows
from ausam.lab.lettering import clean, esc
from ausam.lab.plots import Line, Point, lines, pairs, scatter

Looks = Mapping[str, tuple[str, int, bool]]  # of each name: its label, its colour slot, whether it stands out

CSS = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#59626d;--rule:#d5dae0;--wash:#f3f6f9;
--c0:#0072b2;--c1:#d55e00;--c2:#00805d;--c3:#b8538f;--c4:#8a6d00;--c5:#6a4fc0;--c6:#2b98d4;--c7:#5a6068}
@media(prefers-color-scheme:dark){:root{--paper:#14181d;--ink:#e8ecf1;--soft:#a3adb8;--rule:#38414b;--wash:#1d232a;
--c0:#4db2f0;--c1:#ff8b4a;--c2:#3fd0a2;--c3:#f29ccc;--c4:#e8c547;--c5:#b3a1ff;--c6:#9fdcff;--c7:#b4bcc6}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:var(--page);padding:1.5rem 1rem 4rem;background:var(--paper);color:var(--ink);
font:1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .25rem}h2{font-size:1.2rem;margin:2.5rem 0 .5rem}
p{margin:.5rem 0}.soft,.note{color:var(--soft)}.note{font-size:.875rem}
.lead{font-size:1.1rem;border-left:4px solid var(--c0);padding:.25rem 0 .25rem 1rem;margin:1.25rem 0}
.open{border:1px solid var(--c1);border-radius:6px;padding:.5rem .75rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;overflow-wrap:normal}
th,td{padding:.45rem .7rem;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap;vertical-align:top}
thead th{color:var(--soft);font-size:.85rem;font-weight:600;vertical-align:bottom;white-space:normal}
th:first-child{text-align:left;position:sticky;left:0;background:var(--paper)}
th:first-child{padding-left:.5rem}tr.ours>*,tr.ours>th:first-child{background:var(--wash)}
th small{display:block;color:var(--soft);font-weight:400;white-space:normal;max-width:15rem;line-height:1.3}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:0 1.5rem;margin:.3rem 0;font-size:.9rem}
dl div{display:flex;justify-content:space-between;gap:1rem;border-bottom:1px solid var(--rule);padding:.2rem 0}
dt{color:var(--soft);white-space:nowrap}dd{margin:0;text-align:right}h3{font-size:1rem;margin:1rem 0 0}
code{display:block;background:var(--wash);padding:.6rem .75rem;border-radius:6px;font-size:.9rem}
svg text{fill:var(--ink)}svg .t{fill:var(--soft)}svg text.strong{font-weight:700}
.halo{paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}
.frame{fill:none;stroke:var(--rule)}.grid{stroke:var(--rule);stroke-width:.6}
.front{fill:none;stroke:var(--soft);stroke-dasharray:4 4}
.bar{fill:none;stroke-width:1.4;opacity:.65}.leader{fill:none;stroke:var(--soft);stroke-width:.9}.band{opacity:.14}
.line{fill:none;stroke-width:1.8}.line.strong{stroke-width:3}.rest{stroke-dasharray:1 4;opacity:.8}
.pair{stroke:var(--soft);stroke-width:2}
.narrow{display:none}@media(max-width:40rem){.wide{display:none}.narrow{display:block;max-width:29rem}
body{padding-top:1rem}h1{font-size:1.4rem}.lead{font-size:1rem}th,td{padding:.4rem .5rem}th small{display:none}}
"""


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


def page(title: str, body: Sequence[str], width: int = 54) -> str:
    """A page that stands alone, at most ``width`` rem wide."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{esc(title)}</title><style>{CSS}:root{{--page:{width}rem}}</style></head>"
        f"<body>\n{chr(10).join(filter(None, body))}\n</body></html>\n"
    )


def write_report(results: Results, path: Path) -> None:
    """Write the page."""
    files.write(path, render(results))
