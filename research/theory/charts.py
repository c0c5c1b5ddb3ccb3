"""The pictures of this folder, drawn from digits.json and cifar10.json.

python -m research.theory.charts            # draw
python -m research.theory.charts --smoke    # build the charts, and nothing is written
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import altair as alt

SIZE = {"width": 330, "height": 220}
SPAN = alt.Scale(type="log", domain=[0.002, 20], clamp=True)
FAINT = alt.Axis(gridOpacity=0.4, tickCount=4)
LABELS = {
    "SAM": "SAM, 20 % wrong labels",
    "SAM clean": "SAM, clean labels",
    "AUSAM-0.5": "AUSAM-0.5, 20 % wrong labels",
}
POLICIES = ["TopLoss", "AUSampling", "Random", "unbiased"]
METHODS = ["SGD", "SAM", "AUSAM-0.5", "SAM+Random"]


def kind(run: str) -> str:
    """The name of a run without its seed."""
    return run.rsplit(" ", 1)[0]


def lines(
    rows: list[dict], x: str, y: str, title: str, *, log: str = "", order: list[str] | None = None, span: tuple = ()
) -> alt.Chart:
    """Means over the seeds, with their range as a band."""
    names = order or sorted({row["colour"] for row in rows})
    few = len({row["x"] for row in rows}) <= 12

    def axis(title: str, letter: str) -> dict:
        domain = list(span) if span and letter == "y" else alt.Undefined
        kind = "log" if letter in log else "linear"
        scale = alt.Scale(type=kind, zero=False, nice=letter == "y" and not span, domain=domain)
        return {"title": title, "scale": scale, "axis": alt.Axis(gridOpacity=0.4, tickCount=6)}

    legend = alt.Legend(
        orient="bottom", columns=2, symbolOpacity=1, symbolType="stroke", symbolStrokeWidth=3, labelLimit=400
    )
    base = alt.Chart(alt.Data(values=rows), **SIZE).encode(
        x=alt.X("x:Q", **axis(x, "x")), color=alt.Color("colour:N", title=None, sort=names, legend=legend)
    )
    band = base.mark_area(opacity=0.15).encode(y=alt.Y("min(y):Q", **axis(y, "y")), y2=alt.Y2("max(y):Q"))
    mean = base.mark_line(point=alt.OverlayMarkDef(size=18) if few else False).encode(
        y=alt.Y("mean(y):Q", **axis(y, "y")), strokeDash=alt.StrokeDash("colour:N", legend=None, sort=names)
    )
    return (band + mean).properties(title=title)


def lemma1(results: dict) -> alt.Chart:
    panels = []
    for run in ("SAM", "SAM clean"):
        rows = [
            {"x": r["epoch"], "y": r[what]["spearman"], "colour": name}
            for r in results["lemma1"]["over_training"]
            if kind(r["run"]) == run
            for what, name in (("norm", "DLP and gradient norm (the lemma)"), ("projection", "DLP and projection"))
        ]
        panels.append(lines(rows, "epoch", "Spearman correlation", LABELS[run], span=(0, 1)))
    points = alt.Data(values=results["lemma1"]["points"])
    for what, name in (("norm", "gradient norm"), ("projection", "projection on the batch gradient")):
        scatter = (
            alt.Chart(points, **SIZE)
            .mark_circle(size=12, opacity=0.5)
            .encode(
                x=alt.X(f"{what}:Q", title=name, scale=SPAN, axis=FAINT),
                y=alt.Y("dlp:Q", title="DLP / rho", scale=SPAN, axis=FAINT),
            )
        )
        diagonal = alt.Chart(alt.Data(values=[{"a": v} for v in (0.002, 20)])).mark_line(color="black", strokeWidth=1)
        panels.append((scatter + diagonal.encode(x="a:Q", y="a:Q")).properties(title=f"After 8 epochs, {name}"))
    return alt.vconcat(alt.hconcat(*panels[:2]), alt.hconcat(*panels[2:]))


def averages(results: dict) -> alt.Chart:
    names = {"last": "latest visit", "mean": "mean of all visits (the paper)", "ema": "moving average (ema=0.7)"}
    panels = []
    for run in ("SAM", "AUSAM-0.5", "SAM clean"):
        rows = [
            {"x": r["epoch"], "y": r[what]["spearman"], "colour": name}
            for r in results["lemma1"]["averages"]
            if kind(r["run"]) == run
            for what, name in names.items()
        ]
        panels.append(lines(rows, "epoch", "Spearman with the present norm", LABELS[run], order=list(names.values())))
    return alt.hconcat(*panels)


def theorem1(results: dict) -> alt.Chart:
    panels = []
    for run in ("SAM", "AUSAM-0.5", "SAM clean"):
        rows = [
            {"x": r["epoch"], "y": 100 * r["paper_fails"], "colour": r["policy"]}
            for r in results["theorem1"]["over_training"]
            if kind(r["run"]) == run
        ]
        chart = lines(
            rows, "epoch", "% of mini-batches in which the bound fails", LABELS[run], order=POLICIES[:3], span=(0, 100)
        )
        panels.append(chart)
    return alt.hconcat(*panels)


def theorem2(results: dict) -> alt.Chart:
    panels = []
    for schedule in ("1/t^2", "cosine"):
        rows = []
        for r in results["theorem2"]["runs"]:
            if r["schedule"] == schedule:
                named = {
                    "largest deviation of a sample": r["largest"],
                    "mean deviation": r["mean"],
                    "bound for any schedule": r["schedule_bound"],
                    "bound from the path travelled": r["path_bound"],
                }
                if r["applies"]:
                    named["the theorem's bound"] = [r["paper"]] * len(r["epochs"])
                rows += [
                    {"x": t, "y": v, "colour": name}
                    for name, values in named.items()
                    for t, v in zip(r["epochs"], values, strict=True)
                ]
        panels.append(
            lines(rows, "epoch T", "gradient norm (log)", f"Learning rate: {schedule}", log="y", span=(0.1, 1e6))
        )
    return alt.hconcat(*panels)


def theorem3(results: dict) -> alt.Chart:
    names = {"left": "measured", "paper": "the theorem's bound", "corrected": "corrected bound"}
    rows = [
        {"x": r["eta"], "y": r["left"] if what == "left" else r["bounds"][what], "colour": name}
        for r in results["theorem3"]["counterexample"]
        for what, name in names.items()
    ]
    panels = [lines(rows, "learning rate", "mean squared gradient", "Two samples, rho = 1/4", log="xy")]
    for problem in ("quadratic", "logistic"):
        rows = [
            {"x": r["alpha"], "y": r["left"] if what == "left" else r["bounds"][what], "colour": name}
            for r in results["theorem3"]["problems"]
            if r["problem"] == problem and r["step"] == 0.5 and r["selection"] == "random"
            for what, name in names.items()
        ]
        panels.append(
            lines(
                rows,
                "alpha",
                "mean squared gradient",
                f"{problem.capitalize()}, eta = 1/(2 tau), random selection",
                log="y",
            )
        )
    return alt.hconcat(*panels)


def theorem4(results: dict) -> alt.Chart:
    panels = []
    for run in ("SAM", "AUSAM-0.5", "SAM clean"):
        rows = [
            {"x": r["epoch"], "y": 100 * r["relative"], "colour": r["policy"]}
            for r in results["theorem4"]["over_training"]
            if kind(r["run"]) == run
        ]
        chart = lines(rows, "epoch", "bias, % of the gradient's length", LABELS[run], order=POLICIES, span=(0, 250))
        panels.append(chart)
    return alt.hconcat(*panels)


def flatness(results: dict) -> alt.Chart:
    curves = [
        {"x": rho, "y": value, "colour": kind(r["run"])}
        for r in results["flatness"]["runs"]
        for rho, value in zip(r["sharpness"]["rho"], r["sharpness"]["worst"], strict=True)
    ]
    slices = [
        {"x": t, "y": value, "colour": kind(r["run"])}
        for r in results["flatness"]["lines"]
        for t, value in zip(r["position"], r["loss"], strict=True)
    ]
    between = results["flatness"]["between"]
    way = [{"x": t, "y": v, "colour": "seed 0"} for t, v in zip(between["position"], between["loss"], strict=True)]
    return alt.hconcat(
        lines(curves, "rho", "rise in loss", "Worst point within rho", log="xy", order=METHODS),
        lines(slices, "distance, in norms of the filters", "loss", "A random direction", order=METHODS),
        lines(way, "0: SGD, 1: SAM", "loss", "From SGD's minimum to SAM's"),
    )


# -- CIFAR-10: one seed, so there are no bands -------------------------------------------------------------------------


def cifar10_lemma1(results: dict) -> alt.Chart:
    names = {"norm": "DLP and gradient norm (the lemma)", "projection": "DLP and projection"}
    panels = []
    for run in ("SAM", "SAM clean"):
        rows = [
            {"x": r["epoch"], "y": r[what]["spearman"], "colour": name}
            for r in results["runs"][run]["lemma1"]
            for what, name in names.items()
        ]
        panels.append(lines(rows, "epoch", "Spearman correlation", LABELS[run], span=(0, 1)))
    rows = []
    for r in results["runs"]["AUSAM-0.5"]["lemma1"]:
        values = {"one measurement": r["norm"], "the run's own scores (mean of all visits)": r["table"]}
        if r["average"]:
            values["moving average (ema=0.7)"] = r["average"]["ema"]
        rows += [{"x": r["epoch"], "y": v["spearman"], "colour": name} for name, v in values.items() if v]
    panels.append(lines(rows, "epoch", "Spearman with the current norm", LABELS["AUSAM-0.5"], span=(0, 1)))
    return alt.hconcat(*panels)


def cifar10_policies(results: dict, part: str, y: str, value, order: list[str], span: tuple = ()) -> alt.Chart:
    """A panel per run, a line per policy."""
    panels = []
    for run in ("SAM", "AUSAM-0.5", "SAM clean"):
        rows = [
            {"x": r["epoch"], "y": value(p), "colour": p["policy"]}
            for r in results["runs"][run][part]
            for p in r["policies"]
        ]
        panels.append(lines(rows, "epoch", y, LABELS[run], order=order, span=span))
    return alt.hconcat(*panels)


def cifar10_theorem1(results: dict) -> alt.Chart:
    return cifar10_policies(results, "theorem1", "|PTF - PTS|", lambda p: p["summary"]["difference"], POLICIES[:3])


def cifar10_theorem4(results: dict) -> alt.Chart:
    y = "bias, % of the gradient's length"
    return cifar10_policies(results, "theorem4", y, lambda p: 100 * p["relative"], POLICIES, (0, 250))


def cifar10_flatness(results: dict) -> alt.Chart:
    runs, between = results["flatness"]["runs"], results["flatness"]["between"]
    curves = [
        {"x": rho, "y": value, "colour": r["label"]}
        for r in runs
        for rho, value in zip(r["whole"]["rho"], r["whole"]["worst"], strict=True)
    ]
    slices = [
        {"x": t, "y": value, "colour": r["label"]}
        for r in runs
        for t, value in zip(r["line"]["position"], r["line"]["loss"], strict=True)
    ]
    ways = [
        {"x": t, "y": value, "colour": f"to {b['second']}"}
        for b in between
        for t, value in zip(b["slice"]["position"], b["slice"]["loss"], strict=True)
    ]
    return alt.hconcat(
        lines(curves, "rho", "rise in loss", "Worst point within rho", log="xy", order=METHODS),
        lines(slices, "distance, in norms of the filters", "loss (log)", "A random direction", log="y", order=METHODS),
        lines(ways, "0: SGD, 1: the other", "loss", "From SGD's minimum", order=[f"to {m}" for m in METHODS[1:]]),
    )


FOLDER = Path(__file__).parent
CHARTS = {  # picture: the results it is drawn from, and how
    "lemma1": ("digits", lemma1),
    "averages": ("digits", averages),
    "theorem1": ("digits", theorem1),
    "theorem2": ("digits", theorem2),
    "theorem3": ("digits", theorem3),
    "theorem4": ("digits", theorem4),
    "flatness": ("digits", flatness),
    "cifar10-lemma1": ("cifar10", cifar10_lemma1),
    "cifar10-theorem1": ("cifar10", cifar10_theorem1),
    "cifar10-theorem4": ("cifar10", cifar10_theorem4),
    "cifar10-flatness": ("cifar10", cifar10_flatness),
}


def main() -> None:
    smoke = "--smoke" in sys.argv
    for name, (source, draw) in CHARTS.items():
        chart = draw(json.loads((FOLDER / f"{source}.json").read_text()))
        chart = chart.configure_view(stroke=None).resolve_scale(color="independent", strokeDash="independent")
        chart.to_dict()
        if not smoke:
            chart.save(str(FOLDER / f"{name}.png"), scale_factor=1.5)


if __name__ == "__main__":
    main()
