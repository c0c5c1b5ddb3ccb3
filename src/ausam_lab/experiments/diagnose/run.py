"""Diagnose one run: measure the missing pieces, then write the record and the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ausam_lab.experiments.diagnose.measures import MEASUREMENTS
from ausam_lab.experiments.diagnose.pieces import OnPiece, measured
from ausam_lab.experiments.diagnose.subject import open_run
from ausam_lab.records import files, store
from ausam_lab.registry.lookup import find
from ausam_lab.report.pages import diagnosis
from ausam_lab.report.pages.diagnosis import SECTIONS, Diagnosis


def diagnose(
    folder: Path, what: Sequence[str] | None, samples: int, command: str, on_piece: OnPiece, **here: Any
) -> Diagnosis:
    """Measure the flatness of the run in a folder, and write diagnosis.json and diagnosis.html there.

    Each piece is saved in ``diagnosis/`` as soon as it is finished, so an interrupted call continues where it stopped.
    If the run has not kept what a measurement needs, it is refused when requested by name (``what``); otherwise it is
    skipped and the page says so.
    """
    subject = open_run(folder, samples, **here)
    whole = Diagnosis(**measured(MEASUREMENTS, SECTIONS, what, subject, command, on_piece))
    store.write(folder / "diagnosis.json", whole)
    files.write(folder / "diagnosis.html", diagnosis.render(whole))
    return whole


def parts_of(text: str, known: Sequence[str]) -> list[str]:
    """The measurements in a comma-separated list, in the order of ``known``."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"--what names no part. Choose from {', '.join(known)}.")
    wanted = {find("part", name, {n: n for n in known}) for name in names}
    return [name for name in known if name in wanted]
