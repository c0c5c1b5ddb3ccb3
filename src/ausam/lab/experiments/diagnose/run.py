"""Diagnose one run: measure the missing pieces, then write the record and the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ausam.lab.experiments.diagnose.measures import MEASUREMENTS
from ausam.lab.experiments.diagnose.pieces import Measurement, Piece, Store
from ausam.lab.experiments.diagnose.subject import Subject, open_run
from ausam.lab.records import files, store
from ausam.lab.registry.lookup import find
from ausam.lab.report.pages import diagnosis
from ausam.lab.report.pages.diagnosis import SECTIONS, Diagnosis
from ausam.lab.report.pages.sections import Conditions, NotMeasured, Section, findings
from ausam.lab.training.environment import environment

Tell = Callable[[str, int], None]  # called with the name of the next piece and the total number of pieces


def diagnose(
    folder: Path, what: Sequence[str] | None, samples: int, command: str, tell: Tell, **here: Any
) -> Diagnosis:
    """Measure the flatness of the run in a folder, and write diagnosis.json and diagnosis.html there.

    Each piece is saved in ``diagnosis/`` as soon as it is finished, so an interrupted call continues where it stopped.
    If the run has not kept what a measurement needs, it is refused when requested by name (``what``); otherwise it is
    skipped and the page says so.
    """
    subject = open_run(folder, samples, **here)
    whole = Diagnosis(**measured(MEASUREMENTS, SECTIONS, what, subject, command, tell))
    store.write(folder / "diagnosis.json", whole)
    files.write(folder / "diagnosis.html", diagnosis.render(whole))
    return whole


def measured(
    measurements: Mapping[str, Measurement],
    sections: Mapping[str, Section],
    what: Sequence[str] | None,
    subject: Subject,
    command: str,
    tell: Tell,
) -> dict[str, Any]:
    """The fields of a record of these measurements on a run: the results, their sentences and the conditions."""
    results, not_measured = measure(measurements, what, subject, tell)
    return {
        "command": command,
        "created": store.now(),
        "conditions": conditions(subject),
        "findings": findings(sections, results),
        "not_measured": tuple(not_measured),
        **results,
    }


def measure(
    measurements: Mapping[str, Measurement], what: Sequence[str] | None, subject: Subject, tell: Tell
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
                tell(piece.name, total)
                done.append(piece.done(subject, store))
            results[name] = measurements[name].join(subject, done)
        except ValueError as error:  # a network that has fitted perfectly or diverged has no gradient direction
            not_measured.append(NotMeasured(name, str(error)))
    if not results:
        raise ValueError(f"Nothing could be measured in {subject.folder}. {' '.join(x.why for x in not_measured)}")
    return results, not_measured


def parts_of(text: str, known: Sequence[str]) -> list[str]:
    """The measurements in a comma-separated list, in the order of ``known``."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"--what names no part. Choose from {', '.join(known)}.")
    wanted = {find("part", name, {n: n for n in known}) for name in names}
    return [name for name in known if name in wanted]


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
