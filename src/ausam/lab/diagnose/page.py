"""The pages: findings, charts and the conditions of the measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ausam.lab.diagnose import charts
from ausam.lab.diagnose.charts import Picture, picture
from ausam.lab.diagnose.findings import named, number, percent
from ausam.lab.diagnose.records import Conditions, Diagnosis, Finding, FlatComparison
from ausam.lab.report.html import fill, page

TITLES = {
    "lemma1": "Lemma 1: is DLP the gradient norm?",
    "theorem1": "Theorem 1: does part of a batch preserve its sharpness?",
    "theorem2": "Theorem 2: does the average approximate the current norm?",
    "theorem3": "Theorem 3: convergence",
    "theorem4": "Theorem 4: does the bias of the selection vanish?",
    "hessian": "Curvature at the last weights",
    "sharpness": "Sharpness at the last weights",
    "landscape": "The loss around the last weights",
    "geometry": "The geometry of a step",
    "selection": "Which samples were selected",
}
CLAIMS = {
    "lemma1": "The paper's claim: a sample's loss change under SAM's perturbation (DLP), divided by rho, approximates "
    "its gradient norm.",
    "theorem1": "The paper's claim: the sharpness of the batch (PTF) and of the kept samples (PTS) differ by at most "
    "rho times the mean gradient norm of the samples left out, so leave out small gradients.",
    "theorem2": "The paper's claim: with learning rates 1/t², the mean gradient norm of past epochs stays close to the "
    "current one.",
    "theorem3": "The paper's claim: SAM on part of each batch converges, at a stated rate.",
    "theorem4": "The paper's claim: the bias of the selection goes to zero during training (asymptotically unbiased).",
}
ALONG = "0 is the last weights. At 1 and -1, every filter has moved by its own norm."
PLANE = "The last weights are in the middle. Dark is low."


@dataclass(frozen=True)
class Table:
    """A table of figures with an explanatory note."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    note: str


@dataclass(frozen=True)
class Section:
    """A section of the page: the claim, the findings and the charts."""

    key: str
    title: str
    findings: tuple[Finding, ...]
    pictures: tuple[Picture, ...]
    claim: str = ""
    table: Table | None = None


def of_run(found: Diagnosis) -> str:
    """The page of one run."""
    config = found.conditions.config
    sections = [
        Section(
            part,
            title,
            tuple(f for f in found.findings if f.part == part),
            tuple(DRAWN[part](getattr(found, part))),
            CLAIMS.get(part, ""),
        )
        for part, title in TITLES.items()
        if getattr(found, part) is not None
    ]
    subtitle = f"{found.conditions.pair}, {config.model}, {found.conditions.trained} epochs"
    return _page(f"Diagnosis of a run on {config.data}", subtitle, sections, found)


def of_comparison(found: FlatComparison) -> str:
    """The page of a comparison."""
    config, samples = found.conditions.config, found.conditions.samples
    section = Section("findings", "Findings", tuple(found.findings), tuple(_flat(found)), table=_table(found))
    subtitle = f"{len(found.runs)} runs, {config.model}, the same {samples} training samples"
    return _page(f"{found.title}: how flat are the minima?", subtitle, [section], found, width=62)  # a wide table


def _page(
    title: str, subtitle: str, sections: Sequence[Section], found: Diagnosis | FlatComparison, width: int = 54
) -> str:
    judged = [f for f in found.findings if f.holds is not None]
    values = {
        "held": sum(1 for f in judged if f.holds),
        "judged": len(judged),
        "left": found.left,
        "facts": _facts(found.conditions, found.created),
        "command": found.command,
    }
    body = fill("diagnosis.html", title=title, subtitle=subtitle, sections=sections, **values)
    return page(title, [body], width=width)


def _facts(c: Conditions, created: str) -> dict[str, object]:
    """The conditions as a table of facts."""
    return {
        "Weights after epochs": ", ".join(map(str, c.epochs[:30])) + (" ..." if len(c.epochs) > 30 else ""),
        "Samples": f"{c.samples} training samples, drawn at random, not augmented",
        "Batch size": c.batch_size,
        "rho": f"{c.rho:g} ({c.rho_from})",
        "Parameters": f"{c.parameters:,}",
        "Seed": c.config.seed,
        "Wrong labels": f"{100 * c.config.label_noise:g} %",
        "Processor": c.environment.hardware.cpu,
        "torch": c.environment.versions.get("torch", ""),
        "Source": c.environment.commit or "an installed package",
        "Measured": created,
    }


# -- the charts of a run -----------------------------------------------------------------------------------------------


def _lemma1(found: Any) -> Iterator[Picture]:
    error, rank = "relative error", "Spearman correlation with the norm"
    rows = []
    for row in found.rows:
        rows.append({"epoch": row.epoch, error: row.norm.relative_error, "of": "against the norm"})
        rows.append({"epoch": row.epoch, error: row.projection.relative_error, "of": "against the projection"})
    if len(found.rows) > 1:
        yield picture("Error of DLP / rho over training", charts.lines(rows, "epoch", error, "of", zero=True))
        ranks = [{"epoch": r.epoch, rank: r.norm.spearman, "of": "one measurement"} for r in found.rows]
        for row in found.rows:
            if row.average is not None:
                ranks.append({"epoch": row.epoch, rank: row.average.mean.spearman, "of": "mean of earlier epochs"})
                ranks.append(
                    {"epoch": row.epoch, rank: row.average.ema.spearman, "of": "moving average of earlier epochs"}
                )
            if row.table is not None:
                ranks.append({"epoch": row.epoch, rank: row.table.spearman, "of": "the run's own scores"})
        ranks = [r for r in ranks if r[rank] == r[rank]]
        yield picture("How well DLP ranks the samples", charts.lines(ranks, "epoch", rank, "of"))
    dots = [{"gradient norm": p.norm, "DLP / rho": p.dlp, "of": "a sample"} for p in found.points]
    note = f"{len(dots)} samples after epoch {found.rows[-1].epoch}. The lemma is exact on the dashed line."
    yield picture("DLP against the norm", charts.scatter(dots, "gradient norm", "DLP / rho", "of"), note)


def _theorem1(found: Any) -> Iterator[Picture]:
    part, size = "fraction of the mini-batches", "|PTF - PTS|"
    of = [(row.epoch, p.policy, p.summary) for row in found.rows for p in row.policies]
    if len(found.rows) > 1 and any(s.paper_fails_first_order for _, _, s in of):
        rows = [{"epoch": e, part: s.paper_fails_first_order, "policy": p} for e, p, s in of]
        yield picture("Where the paper's bound fails", charts.lines(rows, "epoch", part, "policy", part=True))
    rows = [{"epoch": e, size: s.difference, "policy": p} for e, p, s in of]
    yield picture(
        "How far the sharpness of the kept samples is off", charts.lines(rows, "epoch", size, "policy", zero=True)
    )


def _theorem2(found: Any) -> Iterator[Picture]:
    f, value = found.found, "deviation from the current norm"
    columns = {"mean deviation": f.mean, "worst deviation": f.largest, "bound from distances": f.path_bound}
    epochs = found.epochs[1:]
    rows = [{"epoch": e, value: v, "of": k} for k, of in columns.items() for e, v in zip(epochs, of, strict=True)]
    yield picture("Deviation of past averages from the current norm", charts.lines(rows, "epoch", value, "of", log="y"))


def _theorem3(found: Any) -> Iterator[Picture]:
    value = "stated bound / measured"
    rows = [
        {"alpha": f.alpha, value: f.bounds.paper / f.left, "of": f"{f.selection}, eta {f.eta:.2g}"} for f in found.found
    ]
    note = "Below 1 the bound fails. The proof assumes random draws."
    yield picture("How loose the bound is", charts.lines(rows, "alpha", value, "of", log="xy"), note)


def _theorem4(found: Any) -> Iterator[Picture]:
    value = "bias relative to the gradient"
    rows = [
        {"epoch": row.epoch, value: p.relative, "policy": named(p.policy)} for row in found.rows for p in row.policies
    ]
    if len(found.rows) > 1:
        yield picture("Bias over training", charts.lines(rows, "epoch", value, "policy", zero=True))


def _hessian(found: Any) -> Iterator[Picture]:
    rows = [{"number": str(i + 1), "eigenvalue": v} for i, v in enumerate(found.eigenvalues.values)]
    yield picture("Largest eigenvalues", charts.bars(rows, "number", "eigenvalue", rule=False))


def _sharpness(found: Any) -> Iterator[Picture]:
    value = "rise in loss"
    columns = {
        "worst, all samples": (found.whole.rho, found.whole.worst),
        f"worst, groups of {found.groups.m}": (found.groups.rho, found.groups.worst),
        "random direction": (found.whole.rho, found.whole.average),
        "worst, adaptive ball": (found.adaptive.rho, found.adaptive.worst),
    }
    rows = [{"radius": r, value: v, "of": k} for k, (rs, vs) in columns.items() for r, v in zip(rs, vs, strict=True)]
    yield picture("Rise in loss within a radius", charts.lines(rows, "radius", value, "of", log="xy"))


def _landscape(found: Any) -> Iterator[Picture]:
    rows = [{"t": t, "loss": v, "of": "w + t d"} for t, v in zip(found.line.position, found.line.loss, strict=True)]
    yield picture("Along a random direction", charts.lines(rows, "t", "loss", "of", dots=False), ALONG)
    where = found.surface.position
    squares = [
        {"s": round(s, 6), "t": round(t, 6), "loss": found.surface.loss[i][j]}
        for i, s in enumerate(where)
        for j, t in enumerate(where)
    ]
    yield picture("On a plane of two random directions", charts.heat(squares, "s", "t", "loss"), PLANE)
    if found.between is not None:
        pairs = zip(found.between.position, found.between.loss, strict=True)
        rows = [{"t": t, "loss": v, "of": "(1 - t) first + t last"} for t, v in pairs]
        start = f"epoch {found.since}" if found.since else "the initial weights"
        yield picture(f"From {start} (0) to the last weights (1)", charts.lines(rows, "t", "loss", "of", dots=False))


def _geometry(found: Any) -> Iterator[Picture]:
    rows = [
        {"epoch": r.epoch, "ratio": v, "of": k}
        for r in found.rows
        for k, v in (("cos(g, g_SAM)", r.step.cosine), ("descent relative to a plain step", r.step.descent))
    ]
    yield picture("SAM's gradient compared with the plain one", charts.lines(rows, "epoch", "ratio", "of", zero=True))


def _selection(found: Any) -> Iterator[Picture]:
    names = {"class": "by class", "label": "by label", "score": "by score, in fifths from lowest to highest"}
    for key, groups in found.groups.items():
        if 1 < len(groups) <= 20:
            rows = [{key: g.name, "visits, 1 = average": g.share} for g in groups]
            yield picture(f"Visits {names[key]}", charts.bars(rows, key, "visits, 1 = average"))


DRAWN: dict[str, Callable[[Any], Iterator[Picture]]] = {
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


def _table(found: FlatComparison) -> Table:
    rows = []
    for r in found.runs:
        middle = len(r.whole.rho) // 2
        cells = (
            str(r.seed),
            "running" if r.test is None else f"{r.test:.2f} %",
            f"{r.whole.loss:.3f}",
            percent(r.fit.accuracy),
            number(r.eigenvalues.values[0]),
            f"{number(r.trace.value)} ± {r.trace.error:.2g}",
            number(r.whole.worst[middle]),
            number(r.groups.worst[middle]),
            number(r.adaptive.worst[middle]),
        )
        rows.append((r.label, cells))
    head = (
        "Run",
        "Seed",
        "Test",
        "Training loss",
        "Training accuracy",
        "Largest eigenvalue",
        "Trace",
        "Worst rise",
        "In groups",
        "Adaptive",
    )
    note = (
        f"Worst rise: the largest rise in loss within rho = {found.conditions.rho:g}. In groups: each group of "
        f"{found.runs[0].groups.m} samples has its own worst point. Adaptive: the ball is scaled by the weights, so "
        "that their scale does not matter. ± is the standard error of the estimate for one run."
    )
    return Table(head, tuple(rows), note)


def _flat(found: FlatComparison) -> Iterator[Picture]:
    rows = [{"largest eigenvalue": r.eigenvalues.values[0], "run": r.label} for r in found.runs]
    yield picture("Largest eigenvalue, one dot per seed", charts.ticks(rows, "largest eigenvalue", "run"))
    first = min(r.seed for r in found.runs)
    shown = [r for r in found.runs if r.seed == first]
    rise = "worst rise in loss"
    rows = [
        {"radius": x, rise: y, "run": r.label} for r in shown for x, y in zip(r.whole.rho, r.whole.worst, strict=True)
    ]
    yield picture(f"Worst rise within a radius, seed {first}", charts.lines(rows, "radius", rise, "run", log="xy"))
    rows = [
        {"t": t, "loss": v, "run": r.label} for r in shown for t, v in zip(r.line.position, r.line.loss, strict=True)
    ]
    yield picture(f"Along a random direction, seed {first}", charts.lines(rows, "t", "loss", "run", dots=False), ALONG)
    rows = [
        {"t": t, "loss": v, "run": f"{b.first} (0) to {b.second} (1)"}
        for b in found.between
        for t, v in zip(b.slice.position, b.slice.loss, strict=True)
    ]
    if rows:
        yield picture("From one minimum to another", charts.lines(rows, "t", "loss", "run", dots=False))
