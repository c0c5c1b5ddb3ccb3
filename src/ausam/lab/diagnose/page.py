"""The pages: a sentence for each finding, the pictures, and on what all this was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ausam.lab.diagnose import charts
from ausam.lab.diagnose.charts import figure
from ausam.lab.diagnose.findings import number
from ausam.lab.diagnose.records import Conditions, Diagnosis, Finding, FlatComparison, Left
from ausam.lab.report.chart_text import esc
from ausam.lab.report.shell import document

TITLES = {
    "lemma1": "Lemma 1: is DLP the gradient norm?",
    "theorem1": "Theorem 1: does a part of the batch keep its sharpness?",
    "theorem2": "Theorem 2: may the average stand in for the present?",
    "theorem3": "Theorem 3: convergence",
    "theorem4": "Theorem 4: does the bias of the choice vanish?",
    "hessian": "Curvature at the last weights",
    "sharpness": "Sharpness at the last weights",
    "landscape": "The loss around the last weights",
    "geometry": "The geometry of a step",
    "selection": "Who was chosen",
}
CLAIMS = {
    "lemma1": "The paper: the loss change of a sample under SAM's perturbation, divided by rho, is about its gradient "
    "norm.",
    "theorem1": "The paper: |PTF - PTS| is at most rho times the mean gradient norm of the samples left out, so leave "
    "out small gradients.",
    "theorem2": "The paper: with learning rates 1/t² the mean gradient norm of past epochs stays near the present one.",
    "theorem3": "The paper: SAM on a part of each batch converges, with a stated bound.",
    "theorem4": "The paper: the bias of the choice goes to zero during training (asymptotically unbiased).",
}
VERDICTS = {True: ("holds here", "--c2"), False: ("does not hold here", "--c1"), None: ("", "--soft")}


def of_run(found: Diagnosis) -> str:
    """The page of one run."""
    config = found.conditions.config
    body = [
        f"<h1>{esc(config.data)}: a run, measured</h1>",
        f'<p class="soft">{esc(found.conditions.pair)}, {esc(config.model)}, {found.conditions.trained} epochs</p>',
        _lead(found.findings),
    ]
    for part, title in TITLES.items():
        record = getattr(found, part)
        if record is None:
            continue
        body.append(f'<h2 id="{part}">{esc(title)}</h2>')
        body.append(f'<p class="soft">{esc(CLAIMS[part])}</p>' if part in CLAIMS else "")
        body += [_sentence(f) for f in found.findings if f.part == part]
        body += DRAWN[part](record)
    body += [_left(found.left), _conditions(found.conditions, found.command, found.created)]
    return document(f"{config.data}: a run, measured", body)


def of_comparison(found: FlatComparison) -> str:
    """The page of a comparison."""
    body = [
        f"<h1>{esc(found.title)}: how flat are the minima?</h1>",
        f'<p class="soft">{len(found.runs)} runs, {esc(found.conditions.config.model)}, the same '
        f"{found.conditions.samples} training samples</p>",
        _lead(found.findings),
        "<h2>Findings</h2>",
        *(_sentence(f) for f in found.findings),
        _table(found),
        *_flat(found),
        _left(found.left),
        _conditions(found.conditions, found.command, found.created),
    ]
    return document(f"{found.title}: how flat are the minima?", body)


def _lead(findings: Iterable[Finding]) -> str:
    judged = [f for f in findings if f.holds is not None]
    held = sum(1 for f in judged if f.holds)
    if not judged:
        return ""
    return f'<p class="lead">{held} of {len(judged)} claims that can be judged hold here.</p>'


def _sentence(finding: Finding) -> str:
    verdict, colour = VERDICTS[finding.holds]
    mark = f'<b style="color:var({colour})">{verdict}</b> · ' if verdict else ""
    return f"<p>{mark}{esc(finding.text)}</p>"


def _left(left: Iterable[Left]) -> str:
    rows = "".join(f"<li><b>{esc(x.part)}</b>: {esc(x.why)}</li>" for x in left)
    return f'<h2>Not measured</h2><ul class="open" style="padding-left:2rem">{rows}</ul>' if rows else ""


def _conditions(c: Conditions, command: str, created: str) -> str:
    epochs = ", ".join(map(str, c.epochs[:30])) + (" ..." if len(c.epochs) > 30 else "")
    facts = {
        "Weights after epochs": epochs,
        "Samples": f"{c.samples} of the training set, drawn at random, not augmented",
        "Mini-batch": c.batch_size,
        "rho": f"{c.rho:g} ({c.rho_from})",
        "Weights": f"{c.parameters:,}",
        "Seed": c.config.seed,
        "Wrong labels": f"{100 * c.config.label_noise:g} %",
        "Processor": c.environment.hardware.cpu,
        "torch": c.environment.versions.get("torch", ""),
        "Source": c.environment.commit or "an installed package",
        "Measured": created,
    }
    rows = "".join(f"<div><dt>{esc(k)}</dt><dd>{esc(v)}</dd></div>" for k, v in facts.items())
    return (
        f"<h2>Conditions</h2><dl>{rows}</dl><p class='note'>All is measured in eval mode: BatchNorm with its running "
        f"statistics, no dropout. Training sees another function where a network has them.</p>"
        f"<code>{esc(command)}</code>"
    )


# -- the pictures of a run ---------------------------------------------------------------------------------------------


def _lemma1(found: Any) -> Iterator[str]:
    error, rank = "relative error", "Spearman correlation with the norm"
    rows = []
    for row in found.rows:
        rows.append({"epoch": row.epoch, error: row.norm.relative_error, "of": "against the norm"})
        rows.append({"epoch": row.epoch, error: row.projection.relative_error, "of": "against the projection"})
    if len(found.rows) > 1:
        yield figure("The error of DLP / rho over training", charts.lines(rows, "epoch", error, "of", zero=True))
        ranks = [{"epoch": r.epoch, rank: r.norm.spearman, "of": "one measurement"} for r in found.rows]
        for row in found.rows:
            if row.average is not None:
                ranks.append({"epoch": row.epoch, rank: row.average.mean.spearman, "of": "mean of the epochs before"})
                ranks.append({"epoch": row.epoch, rank: row.average.ema.spearman, "of": "moving average of them"})
            if row.table is not None:
                ranks.append({"epoch": row.epoch, rank: row.table.spearman, "of": "the run's own scores"})
        ranks = [r for r in ranks if r[rank] == r[rank]]
        yield figure("How well the samples are ranked", charts.lines(ranks, "epoch", rank, "of"))
    dots = [{"gradient norm": p.norm, "DLP / rho": p.dlp, "of": "a sample"} for p in found.points]
    note = f"{len(dots)} samples after epoch {found.rows[-1].epoch}. On the dashed line the lemma would be exact."
    yield figure("DLP against the norm", charts.scatter(dots, "gradient norm", "DLP / rho", "of"), note)


def _theorem1(found: Any) -> Iterator[str]:
    part, size = "part of the mini-batches", "|PTF - PTS|"
    of = [(row.epoch, p.policy, p.summary) for row in found.rows for p in row.policies]
    if len(found.rows) > 1:
        rows = [{"epoch": e, part: s.paper_fails_first_order, "policy": p} for e, p, s in of]
        yield figure("Where the paper's bound fails", charts.lines(rows, "epoch", part, "policy", part=True))
    rows = [{"epoch": e, size: s.difference, "policy": p} for e, p, s in of]
    yield figure(
        "How far the sharpness of the kept part is off", charts.lines(rows, "epoch", size, "policy", zero=True)
    )


def _theorem2(found: Any) -> Iterator[str]:
    f, value = found.found, "norm"
    columns = {"mean deviation": f.mean, "worst deviation": f.largest, "bound from the distances": f.path_bound}
    epochs = found.epochs[1:]
    rows = [{"epoch": e, value: v, "of": k} for k, of in columns.items() for e, v in zip(epochs, of, strict=True)]
    yield figure("Average of the past against the present", charts.lines(rows, "epoch", value, "of", log=True))


def _theorem3(found: Any) -> Iterator[str]:
    value = "bound as stated / measured"
    rows = [
        {"alpha": f.alpha, value: f.bounds.paper / f.left, "of": f"{f.selection}, eta {f.eta:.2g}"} for f in found.found
    ]
    note = "Below 1 the bound would fail. random: the draws that the proof supposes."
    yield figure("How loose the bound is", charts.lines(rows, "alpha", value, "of", log=True), note)


def _theorem4(found: Any) -> Iterator[str]:
    value = "bias, part of the gradient"
    rows = [{"epoch": row.epoch, value: p.relative, "policy": p.policy} for row in found.rows for p in row.policies]
    if len(found.rows) > 1:
        yield figure("The bias over training", charts.lines(rows, "epoch", value, "policy", zero=True))


def _hessian(found: Any) -> Iterator[str]:
    rows = [{"number": str(i + 1), "eigenvalue": v} for i, v in enumerate(found.eigenvalues.values)]
    yield figure("The largest eigenvalues", charts.bars(rows, "number", "eigenvalue", rule=False))


def _sharpness(found: Any) -> Iterator[str]:
    value = "rise of the loss"
    columns = {
        "worst, all samples": (found.whole.rho, found.whole.worst),
        f"worst, groups of {found.groups.m}": (found.groups.rho, found.groups.worst),
        "random direction": (found.whole.rho, found.whole.average),
        "worst, adaptive ball": (found.adaptive.rho, found.adaptive.worst),
    }
    rows = [{"radius": r, value: v, "of": k} for k, (rs, vs) in columns.items() for r, v in zip(rs, vs, strict=True)]
    yield figure("How far the loss rises within a radius", charts.lines(rows, "radius", value, "of", log=True))


def _landscape(found: Any) -> Iterator[str]:
    rows = [{"t": t, "loss": v, "of": "w + t d"} for t, v in zip(found.line.position, found.line.loss, strict=True)]
    yield figure("Along a random direction", charts.lines(rows, "t", "loss", "of", dots=False))
    where = found.surface.position
    squares = [
        {"s": round(s, 6), "t": round(t, 6), "loss": found.surface.loss[i][j]}
        for i, s in enumerate(where)
        for j, t in enumerate(where)
    ]
    yield figure("On a plane of two random directions", charts.heat(squares, "s", "t", "loss"))
    if found.between is not None:
        pairs = zip(found.between.position, found.between.loss, strict=True)
        rows = [{"t": t, "loss": v, "of": "(1 - t) then + t now"} for t, v in pairs]
        start = f"epoch {found.since}" if found.since else "the initial weights"
        yield figure(f"From {start} (0) to the last weights (1)", charts.lines(rows, "t", "loss", "of", dots=False))


def _geometry(found: Any) -> Iterator[str]:
    rows = [
        {"epoch": r.epoch, "ratio": v, "of": k}
        for r in found.rows
        for k, v in (("cos(g, g_SAM)", r.step.cosine), ("share of the plain descent", r.step.descent))
    ]
    yield figure("SAM's gradient beside the plain one", charts.lines(rows, "epoch", "ratio", "of", zero=True))


def _selection(found: Any) -> Iterator[str]:
    names = {"class": "by class", "label": "by label", "score": "by score, from the lowest fifth to the highest"}
    for key, groups in found.groups.items():
        if 1 < len(groups) <= 20:
            rows = [{key: g.name, "visits, 1 = average": g.share} for g in groups]
            yield figure(f"Visits {names[key]}", charts.bars(rows, key, "visits, 1 = average"))


DRAWN: dict[str, Callable[[Any], Iterator[str]]] = {
    "lemma1": _lemma1,
    "theorem1": _theorem1,
    "theorem2": _theorem2,
    "theorem3": _theorem3,
    "theorem4": _theorem4,
    "hessian": _hessian,
    "sharpness": _sharpness,
    "landscape": _landscape,
    "geometry": _geometry,
    "selection": _selection,
}


# -- a comparison ------------------------------------------------------------------------------------------------------


def _table(found: FlatComparison) -> str:
    head = ("Run", "Seed", "Test", "Training loss", "Largest eigenvalue", "Trace", "Worst rise", "in groups")
    rows = []
    for r in found.runs:
        middle = len(r.whole.rho) // 2
        cells = (
            r.seed,
            "running" if r.test is None else f"{r.test:.2f} %",
            f"{r.whole.loss:.3f}",
            number(r.eigenvalues.values[0]),
            f"{number(r.trace.value)} ± {r.trace.error:.2g}",
            number(r.whole.worst[middle]),
            number(r.groups.worst[middle]),
        )
        rows.append(f"<tr><th>{esc(r.label)}</th>{''.join(f'<td>{esc(c)}</td>' for c in cells)}</tr>")
    heads = "".join(f"<th>{esc(h)}</th>" for h in head)
    return (
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
        f'<p class="note">Worst rise of the loss within rho = {found.conditions.rho:g}; in groups of '
        f"{found.runs[0].groups.m}, each with a worst point of its own. ± is the error of estimation of one run.</p>"
    )


def _flat(found: FlatComparison) -> Iterator[str]:
    rows = [{"largest eigenvalue": r.eigenvalues.values[0], "run": r.label} for r in found.runs]
    yield figure("The largest eigenvalue, a dot per seed", charts.ticks(rows, "largest eigenvalue", "run"))
    first = min(r.seed for r in found.runs)
    shown = [r for r in found.runs if r.seed == first]
    rise = "worst rise of the loss"
    rows = [
        {"radius": x, rise: y, "run": r.label} for r in shown for x, y in zip(r.whole.rho, r.whole.worst, strict=True)
    ]
    yield figure(f"The worst rise within a radius, seed {first}", charts.lines(rows, "radius", rise, "run", log=True))
    rows = [
        {"t": t, "loss": v, "run": r.label} for r in shown for t, v in zip(r.line.position, r.line.loss, strict=True)
    ]
    yield figure(f"Along a random direction, seed {first}", charts.lines(rows, "t", "loss", "run", dots=False))
    rows = [
        {"t": t, "loss": v, "run": f"{b.first} (0) to {b.second} (1)"}
        for b in found.between
        for t, v in zip(b.slice.position, b.slice.loss, strict=True)
    ]
    if rows:
        yield figure("From one minimum to another", charts.lines(rows, "t", "loss", "run", dots=False))
