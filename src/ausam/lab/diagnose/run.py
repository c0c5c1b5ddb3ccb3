"""Diagnose one run: measure the missing pieces, then write the record and the page."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ausam.lab.diagnose import findings, page
from ausam.lab.diagnose.parts import asked, joined, pieces
from ausam.lab.diagnose.records import NAMES, VERSION, Conditions, Diagnosis, Left
from ausam.lab.diagnose.store import Store
from ausam.lab.diagnose.subject import Subject, open_run
from ausam.lab.records import files, versioned
from ausam.lab.training.environment import environment

Tell = Callable[[str, int], None]  # called with the name of the next piece and the total number of pieces


def diagnose(folder: Path, what: str | None, samples: int, command: str, tell: Tell, **here: Any) -> Diagnosis:
    """Measure what is missing in the folder of a run, and write diagnosis.json and diagnosis.html there.

    Each piece is saved in ``diagnosis/`` as soon as it is finished, so an interrupted call continues where it stopped.
    If the run has not kept what a part needs, the part is refused when requested by name; otherwise it is skipped and
    the page says so.
    """
    names = asked(what)
    subject = open_run(folder, checked(samples), **here)
    store = Store(folder / "diagnosis")
    work: dict[str, Any] = {}
    left: list[Left] = []
    for name in names:
        try:
            work[name] = pieces(name, subject)
        except ValueError as error:
            if what is not None:
                raise
            left.append(Left(name, str(error)))
    total = sum(len(of) for of in work.values())
    found: dict[str, Any] = {}
    for name, of in work.items():
        try:
            results = []
            for piece in of:
                tell(piece.name, total)
                results.append(piece.done(subject, store))
            found[name] = joined(name, subject, results)
        except ValueError as error:  # a network that has fitted perfectly or diverged has no gradient direction
            left.append(Left(name, str(error)))
    if not found:
        raise ValueError(f"Nothing could be measured in {folder}. {' '.join(x.why for x in left)}")
    whole = Diagnosis(
        command=command,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        conditions=conditions(subject),
        findings=findings.of_run(found),
        left=tuple(left),
        **found,
    )
    versioned.write(folder / "diagnosis.json", NAMES[Diagnosis], VERSION, whole)
    files.write(folder / "diagnosis.html", page.of_run(whole))
    return whole


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


def checked(samples: int) -> int:
    """Return the number of samples; refuse one that is too small to measure anything."""
    if samples < 10:
        raise ValueError(f"--samples is {samples}. Use at least 10, preferably a few hundred.")
    return samples
