"""Test the lemma and the theorems on one run, and write theory.json and theory.html."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ausam.lab.experiments.diagnose.run import Tell, measured
from ausam.lab.experiments.diagnose.subject import open_run
from ausam.lab.records import files, store
from ausam.paper.theory import page
from ausam.paper.theory.on_a_run import MEASUREMENTS
from ausam.paper.theory.page import SECTIONS, Theory


def diagnose_theory(
    folder: Path, what: Sequence[str] | None, samples: int, command: str, tell: Tell, **here: Any
) -> Theory:
    """Measure what is missing in the folder of a run; see :func:`ausam.lab.experiments.diagnose.run.diagnose`."""
    subject = open_run(folder, samples, **here)
    whole = Theory(**measured(MEASUREMENTS, SECTIONS, what, subject, command, tell))
    store.write(folder / "theory.json", whole)
    files.write(folder / "theory.html", page.render(whole))
    return whole
