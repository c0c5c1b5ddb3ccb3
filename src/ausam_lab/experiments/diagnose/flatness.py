"""Compare the flatness of the minima that the runs of a comparison found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ausam.diagnostics import Slice, loss_between
from ausam_lab.data.catalogue import changes
from ausam_lab.experiments.cells import pair_of
from ausam_lab.experiments.diagnose.measures import FIT, MEASUREMENTS
from ausam_lab.experiments.diagnose.pieces import OnPiece, Piece, Store, conditions
from ausam_lab.experiments.diagnose.subject import Subject, open_run
from ausam_lab.records import files, store
from ausam_lab.records.comparison import Comparison
from ausam_lab.records.run import Run
from ausam_lab.registry.pair_table import PAIRS
from ausam_lab.registry.pairs import label
from ausam_lab.report.pages import flatness
from ausam_lab.report.pages.flatness import Between, FlatComparison, FlatRun
from ausam_lab.report.pages.sections import NotMeasured

PIECES = 5  # of a run: those of _pieces, and the line to another run


def diagnose_comparison(folder: Path, samples: int, command: str, on_piece: OnPiece, **here: Any) -> FlatComparison:
    """Measure the flatness of every run of ``ausam compare`` in a folder, and write flatness.json and flatness.html.

    All runs are measured on the same samples with the same radius. The pieces are saved in the folders of the runs,
    where ``ausam diagnose RUN`` finds them too.
    """
    runs = _runs(folder)
    if not runs:
        raise ValueError(f"{folder} holds no comparison. Pass the folder (--out) of ausam compare.")
    measured: list[FlatRun] = []
    not_measured: list[NotMeasured] = []
    between: list[Between] = []
    first: Subject | None = None
    ends: dict[int, tuple[str, Subject]] = {}  # the first run of each seed
    for name, seed, run in runs:
        try:
            subject = open_run(run, samples, None if first is None else first.rho, **here)
            first = first or subject
            title = label(name, subject.config.base)
            other, begun = ends.setdefault(seed, (title, subject))
            results = []
            for piece in _pieces(subject):
                on_piece(f"{name} seed {seed}: {piece.name}", len(runs) * PIECES)
                results.append(piece.done(subject, Store(run / "diagnosis")))
            on_piece(f"{name} seed {seed}: between", len(runs) * PIECES)
            if begun is not subject and seed == runs[0][1]:
                between.append(Between(other, title, seed, _between(folder, begun, subject)))
        except ValueError as error:
            if first is None and len(runs) == 1:
                raise
            not_measured.append(NotMeasured(f"{name} seed {seed}", str(error)))
        else:
            measured.append(_flat_run(name, title, seed, subject, results))
    if first is None or not measured:
        raise ValueError(f"Nothing could be measured in {folder}. {' '.join(x.why for x in not_measured)}")
    whole = FlatComparison(
        command=command,
        created=store.now(),
        title=f"{first.config.data}{changes(first.config)}",
        conditions=conditions(first),
        findings=tuple(flatness.sentences(measured)),
        not_measured=tuple(not_measured),
        runs=tuple(measured),
        between=tuple(between),
    )
    store.write(folder / "flatness.json", whole)
    files.write(folder / "flatness.html", flatness.render(whole))
    return whole


def _flat_run(name: str, title: str, seed: int, subject: Subject, results: list[Any]) -> FlatRun:
    """The record of a run from the results of its pieces."""
    fitted, curved, sharp, line = results
    ended = store.read(subject.folder / "result.json", Run)
    return FlatRun(
        name,
        title,
        seed,
        subject.last,
        None if ended is None else ended.test.value,
        fitted,
        curved.eigenvalues,
        curved.trace,
        sharp.whole,
        sharp.groups,
        sharp.adaptive,
        line,
    )


def _pieces(subject: Subject) -> list[Piece]:
    """How well the run has fitted, its curvature, its sharpness, and the loss along a line."""
    measurements = (FIT, MEASUREMENTS["hessian"], MEASUREMENTS["sharpness"], MEASUREMENTS["landscape"])
    return [next(measurement.pieces(subject)) for measurement in measurements]


def _between(folder: Path, first: Subject, second: Subject) -> Slice:
    """The loss on the line between the last weights of two runs, saved in the folder of the comparison."""

    def measure() -> Slice:
        ends = (first.state(first.last), second.state(second.last))
        return loss_between(second.model, second.losses, [(second.x, second.y)], *ends, beyond=0)

    ends = {"first": first.digest(first.last), "second": second.digest(second.last)}
    return Store(folder / "diagnosis").piece("between", {"samples": len(second.index), **ends}, Slice, measure)


def _runs(folder: Path) -> list[tuple[str, int, Path]]:
    """Name, seed and folder of every run, sorted by seed and then in the order of the results."""
    there = [p for p in folder.glob("runs/*/seed-*") if p.is_dir() and p.name.removeprefix("seed-").isdigit()]
    old = store.read(folder / "results.json", Comparison) if there else None
    order = [row.name for row in old.rows] if old else []
    order += [name for name in PAIRS if name not in order]
    runs = [(pair_of(p.parent.name), int(p.name.removeprefix("seed-")), p) for p in there]
    return sorted(runs, key=lambda x: (x[1], order.index(x[0]) if x[0] in order else len(order), x[0]))
