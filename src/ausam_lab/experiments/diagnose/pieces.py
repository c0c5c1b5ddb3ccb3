"""Measurements in pieces: each is saved as soon as it is finished, so that an interrupted diagnosis can continue."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ausam_lab.experiments.diagnose.subject import Subject
from ausam_lab.records import store
from ausam_lab.report.pages.sections import VERSION, Conditions, NotMeasured, ResultSection, findings
from ausam_lab.training.environment import environment

T = TypeVar("T")
log = logging.getLogger("ausam")


@dataclass(frozen=True)
class Store:
    """The finished pieces in a folder; the key of each covers everything that its figures depend on."""

    folder: Path

    def path(self, name: str, key: dict[str, Any]) -> Path:
        """The file of a piece."""
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{name}-{digest[:12]}.json"

    def piece(self, name: str, key: dict[str, Any], kind: type[T], measure: Callable[[], T]) -> T:
        """Read the piece if it is there; otherwise measure and save it."""
        path = self.path(name, key)
        try:
            result = store.read_as(path, name, VERSION, kind)
        except ValueError as error:
            log.warning("%s Measuring it again.", error)
            result = None
        if result is None:
            result = measure()
            store.write_as(path, name, VERSION, result)
        return result


@dataclass(frozen=True)
class Piece:
    """A unit of work whose result is saved in its own file."""

    name: str
    kind: type[Any]
    epochs: tuple[int, ...]  # epochs whose weights it reads
    measure: Callable[[], Any]

    def done(self, subject: Subject, store: Store) -> Any:
        """Its result, read from the store or measured and saved."""
        read = {str(e): subject.digest(e) for e in self.epochs}
        key = {"samples": len(subject.index), "rho": subject.rho, "weights": read}
        return store.piece(self.name, key, self.kind, self.measure)


@dataclass(frozen=True)
class Measurement:
    """A measurement: its pieces for a run, and how their results make its result.

    ``pieces`` raises a ValueError if the run has not kept what they need.
    """

    pieces: Callable[[Subject], Iterator[Piece]]
    join: Callable[[Subject, list[Any]], Any]


def at_the_end(name: str, kind: type[Any], measure: Callable[[Subject], Any]) -> Measurement:
    """A measurement of the last weights, in one piece."""

    def pieces(subject: Subject) -> Iterator[Piece]:
        yield Piece(name, kind, (subject.last,), lambda: measure(subject))

    return Measurement(pieces, only_piece)


def over_training(
    name: str,
    kind: type[Any],
    measure: Callable[[Subject, int], Any],
    join: Callable[[Subject, list[Any]], Any],
    first: Callable[[Subject], int] = lambda _: 0,
) -> Measurement:
    """A measurement of the weights of several epochs, a piece each, from epoch ``first`` on."""

    def pieces(subject: Subject) -> Iterator[Piece]:
        epochs = subject.watched(first(subject))
        if not epochs:
            raise ValueError(
                f"{name} needs weights from epoch {first(subject)} or later, when samples are left out, but this run "
                "has none."
            )
        for epoch in epochs:
            yield Piece(f"{name}-{epoch:05d}", kind, (epoch,), partial(measure, subject, epoch))

    return Measurement(pieces, join)


def only_piece(_: Subject, results: list[Any]) -> Any:
    """The result of a measurement in one piece."""
    return results[0]


# -- measuring ---------------------------------------------------------------------------------------------------------

OnPiece = Callable[[str, int], None]  # called with the name of the next piece and the total number of pieces


def measured(
    measurements: Mapping[str, Measurement],
    sections: Mapping[str, ResultSection],
    what: Sequence[str] | None,
    subject: Subject,
    command: str,
    on_piece: OnPiece,
) -> dict[str, Any]:
    """The fields of a record of these measurements on a run: the results, their sentences and the conditions."""
    results, not_measured = measure(measurements, what, subject, on_piece)
    return {
        "command": command,
        "created": store.now(),
        "conditions": conditions(subject),
        "findings": findings(sections, results),
        "not_measured": tuple(not_measured),
        **results,
    }


def measure(
    measurements: Mapping[str, Measurement], what: Sequence[str] | None, subject: Subject, on_piece: OnPiece
) -> tuple[dict[str, Any], list[NotMeasured]]:
    """The results of these measurements, by name, and what could not be measured; None: of all of them."""
    work: dict[str, list[Piece]] = {}
    not_measured: list[NotMeasured] = []
    for name in measurements if what is None else what:
        try:
            work[name] = list(measurements[name].pieces(subject))
        except ValueError as error:
            if what is not None:
                raise
            not_measured.append(NotMeasured(name, str(error)))
    total, store = sum(map(len, work.values())), Store(subject.folder / "diagnosis")
    results: dict[str, Any] = {}
    for name, pieces in work.items():
        try:
            done = []
            for piece in pieces:
                on_piece(piece.name, total)
                done.append(piece.done(subject, store))
            results[name] = measurements[name].join(subject, done)
        except ValueError as error:  # a network that has fitted perfectly or diverged has no gradient direction
            not_measured.append(NotMeasured(name, str(error)))
    if not results:
        raise ValueError(f"Nothing could be measured in {subject.folder}. {' '.join(x.why for x in not_measured)}")
    return results, not_measured


def conditions(subject: Subject) -> Conditions:
    """The conditions under which the figures were measured."""
    return Conditions(
        pair=subject.pair,
        parameters=subject.parameters,
        trained=subject.last,
        epochs=tuple(subject.epochs),
        samples=len(subject.index),
        batch_size=subject.config.batch_size,
        rho=subject.rho,
        rho_from=subject.rho_from,
        config=subject.config,
        environment=environment(subject.config.device),
    )
