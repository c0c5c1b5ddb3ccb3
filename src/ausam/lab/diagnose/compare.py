"""Compare the flatness of the minima that the runs of a comparison found."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ausam.diagnostics import Slice, loss_between
from ausam.lab.diagnose import page
from ausam.lab.diagnose.findings import number, percent
from ausam.lab.diagnose.parts import fit, pieces
from ausam.lab.diagnose.records import NAMES, VERSION, Between, Finding, FlatComparison, FlatRun, Left
from ausam.lab.diagnose.run import Tell, checked, conditions
from ausam.lab.diagnose.store import Store
from ausam.lab.diagnose.subject import Subject, open_run
from ausam.lab.experiments.layout import pair_of
from ausam.lab.records import files, versioned
from ausam.lab.records import results as records
from ausam.lab.records.results import Comparison, Run
from ausam.lab.registry.pairs import PAIRS, label

MEASURES: dict[str, Callable[[FlatRun], float]] = {
    "largest eigenvalue": lambda r: r.eigenvalues.values[0],
    "trace": lambda r: r.trace.value,
    "worst rise within rho": lambda r: r.whole.worst[len(r.whole.rho) // 2],
    "worst rise in groups": lambda r: r.groups.worst[len(r.groups.rho) // 2],
    "worst rise in the adaptive ball": lambda r: r.adaptive.worst[len(r.adaptive.rho) // 2],
}


def diagnose_comparison(folder: Path, samples: int, command: str, tell: Tell, **here: Any) -> FlatComparison:
    """Measure the flatness of every run of ``ausam compare`` in a folder, and write flatness.json and flatness.html.

    All runs are measured on the same samples with the same radius. The pieces are saved in the folders of the runs,
    where ``ausam diagnose RUN`` finds them too.
    """
    places = _places(folder)
    if not places:
        raise ValueError(f"{folder} holds no comparison. Pass the folder (--out) of ausam compare.")
    found: list[FlatRun] = []
    left: list[Left] = []
    between: list[Between] = []
    first: Subject | None = None
    ends: dict[int, tuple[str, Subject]] = {}  # the first run of each seed
    total = len(places) * 5
    for name, seed, place in places:
        try:
            subject = open_run(place, checked(samples), None if first is None else first.rho, **here)
        except ValueError as error:
            if first is None and len(places) == 1:
                raise
            left.append(Left(f"{name} seed {seed}", str(error)))
            continue
        first = first or subject
        title = label(name, subject.config.base)
        begun = ends.setdefault(seed, (title, subject))
        flat = [*pieces("hessian", subject), *pieces("sharpness", subject), pieces("landscape", subject)[0]]
        work = [fit(subject), *flat]
        try:
            results = []
            for piece in work:
                tell(f"{name} seed {seed}: {piece.name}", total)
                results.append(piece.done(subject, Store(place / "diagnosis")))
            tell(f"{name} seed {seed}: between", total)
            if begun[1] is not subject and seed == places[0][1]:
                between.append(Between(begun[0], title, seed, _between(folder, begun[1], subject)))
        except ValueError as error:
            left.append(Left(f"{name} seed {seed}", str(error)))
            continue
        fitted, curved, sharp, line = results
        found.append(
            FlatRun(
                name,
                title,
                seed,
                subject.last,
                None if (ended := records.read(place / "result.json", Run)) is None else ended.test.value,
                fitted,
                curved.eigenvalues,
                curved.trace,
                sharp.whole,
                sharp.groups,
                sharp.adaptive,
                line,
            )
        )
    if first is None or not found:
        raise ValueError(f"Nothing could be measured in {folder}. {' '.join(x.why for x in left)}")
    whole = FlatComparison(
        command=command,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        title=first.config.data,
        conditions=conditions(first),
        findings=tuple(sentences(found)),
        left=tuple(left),
        runs=tuple(found),
        between=tuple(between),
    )
    versioned.write(folder / "flatness.json", NAMES[FlatComparison], VERSION, whole)
    files.write(folder / "flatness.html", page.of_comparison(whole))
    return whole


def sentences(runs: list[FlatRun]) -> Iterator[Finding]:
    """Whether each pair's minimum is flatter than SGD's, and than SAM's."""
    names = list(dict.fromkeys(r.name for r in runs))
    for base in ("sgd", "sam"):
        for name in names:
            if base in names and name != base and (base, name) != ("sam", "sgd"):
                yield from _flatter(runs, name, base)
    by_loss = sorted(names, key=lambda n: statistics.fmean(r.whole.loss for r in runs if r.name == n))
    text = ", ".join(
        f"{_label(runs, n)} {number(statistics.fmean(r.whole.loss for r in runs if r.name == n))}" for n in by_loss
    )
    yield Finding(
        "flatness",
        f"Training loss on these samples, lowest first: {text}. "
        "A network that has learnt less may be flatter for that reason alone.",
    )
    fitted = [(_label(runs, n), [r.fit for r in runs if r.name == n]) for n in names]
    text = ", ".join(f"{name} {percent(statistics.fmean(f.accuracy for f in of))}" for name, of in fitted)
    memorised = ", ".join(
        f"{name} {percent(statistics.fmean(known))}"
        for name, of in fitted
        if (known := [f.memorised for f in of if f.memorised is not None])
    )
    wrong = f" Of those with a wrong label: {memorised}." if memorised else ""
    yield Finding("flatness", f"Samples that are given their training label: {text}.{wrong}")


def _flatter(runs: list[FlatRun], name: str, base: str) -> Iterator[Finding]:
    mine = {r.seed: r for r in runs if r.name == name}
    theirs = {r.seed: r for r in runs if r.name == base}
    seeds = sorted(mine.keys() & theirs.keys())
    if not seeds:
        return
    parts, better = [], 0
    for what, of in MEASURES.items():
        a, b = [of(mine[s]) for s in seeds], [of(theirs[s]) for s in seeds]
        lower = sum(x < y for x, y in zip(a, b, strict=True))
        better += lower == len(seeds)
        ratio = statistics.fmean(a) / statistics.fmean(b) if statistics.fmean(b) else float("nan")
        count = f", lower with {lower} of {len(seeds)} seeds" if 0 < lower < len(seeds) else ""
        parts.append(
            f"{what} {number(statistics.fmean(a))} against {number(statistics.fmean(b))} ({percent(ratio)}{count})"
        )
    flatter = better == len(MEASURES)
    how = "flatter than" if better else "not flatter than"
    every = f" with each of {len(seeds)} seeds" if len(seeds) > 1 else ""
    by = "" if not better else " by every measure" if flatter else f" by {better} of {len(MEASURES)} measures"
    one = " One seed cannot separate a difference from chance." if len(seeds) == 1 else ""
    yield Finding(
        "flatness",
        f"{_label(runs, name)}'s minimum is {how} {_label(runs, base)}'s{by}{every if better else ''}: "
        f"{'; '.join(parts)}.{one}",
        flatter,
    )


def _label(runs: list[FlatRun], name: str) -> str:
    return next(r.label for r in runs if r.name == name)


def _between(folder: Path, first: Subject, second: Subject) -> Slice:
    """The loss on the line between the last weights of two runs, saved in the folder of the comparison."""

    def measure() -> Slice:
        ends = (first.state(first.last), second.state(second.last))
        return loss_between(second.model, second.losses, [(second.x, second.y)], *ends, beyond=0)

    ends = {"first": first.digest(first.last), "second": second.digest(second.last)}
    return Store(folder / "diagnosis").piece("between", {"samples": len(second.index), **ends}, Slice, measure)


def _places(folder: Path) -> list[tuple[str, int, Path]]:
    """Name, seed and folder of every run, sorted by seed and then in the order of the results."""
    there = [p for p in folder.glob("runs/*/seed-*") if p.is_dir() and p.name.removeprefix("seed-").isdigit()]
    old = records.read(folder / "results.json", Comparison) if there else None
    order = [row.name for row in old.rows] if old else []
    order += [name for name in PAIRS if name not in order]
    found = [(pair_of(p.parent.name), int(p.name.removeprefix("seed-")), p) for p in there]
    return sorted(found, key=lambda x: (x[1], order.index(x[0]) if x[0] in order else len(order), x[0]))
