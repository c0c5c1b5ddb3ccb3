"""A diagnosis of one run: the pieces that are missing, then the record and the page."""

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
from ausam.lab.io import files, sealed
from ausam.lab.training.environment import environment

Tell = Callable[[str, int], None]  # what comes next, and how many pieces there are in all


def diagnose(folder: Path, what: str | None, samples: int, command: str, tell: Tell, **here: Any) -> Diagnosis:
    """Measure what is missing in the folder of a run; writes diagnosis.json and diagnosis.html there.

    Every piece is kept in ``diagnosis/`` as soon as it is done, so a call that was stopped continues with the next. A
    part that the run has not kept enough for is refused if it was asked for by name, else left out and said so.
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
        except ValueError as error:  # a network that has fitted or diverged has no direction to look in
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
    sealed.write(folder / "diagnosis.json", NAMES[Diagnosis], VERSION, whole)
    files.write(folder / "diagnosis.html", page.of_run(whole))
    return whole


def conditions(subject: Subject) -> Conditions:
    """On what the figures were measured."""
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
    """The number of samples, if something can be measured on so many."""
    if samples < 10:
        raise ValueError(f"--samples is {samples}; give at least 10, better some hundreds.")
    return samples
