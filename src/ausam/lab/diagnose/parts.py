"""The parts of a diagnosis: the pieces of each, what they need, and how the pieces are joined into one record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from ausam.diagnostics import Slice, Surface
from ausam.lab.diagnose import measures
from ausam.lab.diagnose.records import (
    Fit,
    GeometryAt,
    GeometryPart,
    HessianPart,
    LandscapePart,
    Lemma1At,
    Lemma1Part,
    Lemma1Row,
    Point,
    SelectionPart,
    SharpnessPart,
    Theorem1At,
    Theorem1Part,
    Theorem2Part,
    Theorem3Part,
    Theorem4At,
    Theorem4Part,
)
from ausam.lab.diagnose.store import Store
from ausam.lab.diagnose.subject import Subject
from ausam.lab.registry.lookup import find
from ausam.paper.theory import average_dlp

POINTS = 300  # samples shown in a chart


@dataclass(frozen=True)
class Piece:
    """A unit of work whose result is saved in its own file."""

    name: str
    kind: type[Any]
    epochs: tuple[int, ...]  # epochs whose weights it reads
    measure: Callable[[], Any]

    def key(self, subject: Subject) -> dict[str, Any]:
        """Everything that its figures depend on, apart from the code."""
        read = {str(e): subject.digest(e) for e in self.epochs}
        return {"samples": len(subject.index), "rho": subject.rho, "weights": read}

    def done(self, subject: Subject, store: Store) -> Any:
        """Its result, read from the store or measured and saved."""
        return store.piece(self.name, self.key(subject), self.kind, self.measure)


def fit(subject: Subject) -> Piece:
    """How well the last weights fit; a comparison shows it beside their flatness."""
    return Piece("fit", Fit, (subject.last,), lambda: measures.fit(subject))


def pieces(part: str, subject: Subject) -> list[Piece]:
    """The pieces of a part; a ValueError if the run has not kept what they need."""
    return list(find("part", part, PIECES)(subject))


def joined(part: str, subject: Subject, results: list[Any]) -> Any:
    """The record of a part from the results of its pieces."""
    return JOINED[part](subject, results)


def _over_training(name: str, kind: type[Any], measure: Any, first: Callable[[Subject], int]) -> Any:
    def work(subject: Subject) -> Iterator[Piece]:
        epochs = subject.watched(first(subject))
        if not epochs:
            raise ValueError(
                f"{name} needs weights from epoch {first(subject)} or later, when samples are left out, but this run "
                "has none."
            )
        for epoch in epochs:
            yield Piece(f"{name}-{epoch:05d}", kind, (epoch,), partial(measure, subject, epoch))

    return work


def _at_the_end(name: str, kind: type[Any], measure: Any) -> Any:
    def work(subject: Subject) -> Iterator[Piece]:
        yield Piece(name, kind, (subject.last,), lambda: measure(subject))

    return work


def _theorem2(subject: Subject) -> Iterator[Piece]:
    epochs = measures.theorem2_epochs(subject)
    if len(epochs) < 3:
        raise ValueError(
            f"theorem2 needs weights from the start of training on, but {subject.folder} has kept only "
            f"{_listed(sorted(subject.saved))}. Train with --every N, which keeps every N-th epoch."
        )
    yield Piece("theorem2", Theorem2Part, tuple(epochs), lambda: measures.theorem2(subject))


def _landscape(subject: Subject) -> Iterator[Piece]:
    last, first = subject.last, subject.epochs[0]
    yield Piece("line", Slice, (last,), lambda: measures.line(subject))
    yield Piece("surface", Surface, (last,), lambda: measures.surface(subject))
    if first < last:
        yield Piece("between", Slice, (first, last), lambda: measures.between(subject, first))


def _selection(subject: Subject) -> Iterator[Piece]:
    yield Piece("selection", SelectionPart, tuple(sorted(subject.saved)), lambda: measures.selection(subject))


def _listed(epochs: list[int]) -> str:
    return f"epoch{'s' if len(epochs) > 1 else ''} {' and '.join(map(str, epochs))}"


PIECES: dict[str, Callable[[Subject], Iterator[Piece]]] = {
    "lemma1": _over_training("lemma1", Lemma1At, measures.lemma1, lambda _: 0),
    "theorem1": _over_training("theorem1", Theorem1At, measures.theorem1, lambda s: s.full_epochs),
    "theorem2": _theorem2,
    "theorem3": _at_the_end("theorem3", Theorem3Part, measures.theorem3),
    "theorem4": _over_training("theorem4", Theorem4At, measures.theorem4, lambda s: s.full_epochs),
    "hessian": _at_the_end("hessian", HessianPart, measures.hessian),
    "sharpness": _at_the_end("sharpness", SharpnessPart, measures.sharpness),
    "landscape": _landscape,
    "geometry": _over_training("geometry", GeometryAt, measures.geometry, lambda _: 0),
    "selection": _selection,
}


def _lemma1(subject: Subject, results: list[Lemma1At]) -> Lemma1Part:
    rows = []
    for i, at in enumerate(results):
        past = [[v * subject.rho for v in before.dlp] for before in results[:i]]
        average = average_dlp(past, at.norms, subject.rho) if past else None
        rows.append(Lemma1Row(at.epoch, at.norm, at.projection, at.cosine, at.table, average))
    end = results[-1]
    points = [Point(*p) for p in zip(end.dlp, end.norms, end.projections, strict=True)]
    return Lemma1Part(tuple(rows), tuple(points[:POINTS]))


def _whole(_: Subject, results: list[Any]) -> Any:
    return results[0]


JOINED: dict[str, Callable[[Subject, list[Any]], Any]] = {
    "lemma1": _lemma1,
    "theorem1": lambda _, results: Theorem1Part(tuple(results)),
    "theorem2": _whole,
    "theorem3": _whole,
    "theorem4": lambda _, results: Theorem4Part(tuple(results)),
    "hessian": _whole,
    "sharpness": _whole,
    "landscape": lambda s, r: LandscapePart(r[0], r[1], s.epochs[0], r[2] if len(r) > 2 else None),
    "geometry": lambda _, results: GeometryPart(tuple(results)),
    "selection": _whole,
}


def asked(what: str | None) -> list[str]:
    """The parts in a comma-separated list, in the order of the page; all of them for None."""
    if what is None:
        return list(PIECES)
    names = [name.strip() for name in what.split(",") if name.strip()]
    if not names:
        raise ValueError(f"--what names no part. Choose from {', '.join(PIECES)}.")
    known = {find("part", name, {n: n for n in PIECES}) for name in names}
    return [name for name in PIECES if name in known]
