"""Audit a run: read what it kept, look up the samples that matter, and write the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ausam.audit import Audit
from ausam.audit.table import Array
from ausam_lab.config import Config
from ausam_lab.data.catalogue import changes, split_problem
from ausam_lab.data.datasets import UserSet
from ausam_lab.data.download import DownloadError
from ausam_lab.data.images import ImageSet
from ausam_lab.data.loading import DataError
from ausam_lab.data.samples import description, show
from ausam_lab.records import files, store
from ausam_lab.report.pages import audit as page
from ausam_lab.report.pages.audit import CARDS, Audited, Sample
from ausam_lab.training import auditing, run_folder


def audit_run(folder: Path, out: Path, export: Path | None, command: str, **here: Any) -> Audited:
    """Write the page of the audit in a run's folder, and its suspects as CSV if ``export`` says where.

    Arguments:
        folder: of a finished run.
        out: the page.
        export: the CSV file, or None.
        command: the command that the user typed.
        here: settings of this machine, such as ``data_dir``.
    """
    audited = read(folder, command, **here)
    files.write(out, page.render(audited))
    if export is not None:
        files.write(export, page.csv(audited))
    return audited


def read(folder: Path, command: str = "", **here: Any) -> Audited:
    """The audit of the run in a folder, with its suspects as pictures; a ValueError if there is nothing to read."""
    saved = run_folder.saved_config(folder) if folder.is_dir() else None
    if saved is None:
        one = next(iter(sorted(folder.glob("runs/*/seed-*"))), None)
        more = f" It holds several: choose one, such as {one}." if one else ""
        raise ValueError(f"{folder} holds no run. Pass the folder (--out) of ausam train.{more}")
    config = replace(saved, **here | {"device": "cpu", "workers": 0})
    audit = auditing.read(folder)
    if audit.labels is None:
        raise ValueError(
            f"{folder} is a run on {config.data}, whose targets are not classes, so there are no labels to check. Its "
            f"{auditing.FILE} holds the losses of every sample."
        )
    if not audit.columns()["visits"].any():
        raise ValueError(f"{folder}: {config.method} reported no loss of a single sample, so nothing is known of them.")
    data, hidden = _data(config)
    if data is not None:
        _require_same(data, audit, folder)
    said, wrong = audit.verdict(), audit.label_errors().index
    return Audited(
        title=f"{config.data}{changes(config)}: what the training says about the data",
        about=f"{len(audit):,} training samples, {config.method} + {config.policy}, {config.model}, "
        f"{config.epochs} epochs, seed {config.seed}",
        command=command,
        created=store.now(),
        audit=audit,
        verdict=said,
        pair=auditing.pair_to_try(audit, said, config.policy),
        names=_names(data, audit),
        origin=np.arange(len(audit)) if data is None else data.origin.numpy(),
        suspects=_shown(data, wrong[:CARDS]),
        texts=() if data is None else tuple(description(data, int(i)) for i in wrong),
        hidden=hidden,
        made_wrong=_made_wrong(data),
    )


def _made_wrong(data: ImageSet | UserSet | None) -> Array | None:
    wrong = None if data is None or data.wrong is None else np.flatnonzero(data.wrong.cpu().numpy())
    return None if wrong is None or not len(wrong) else wrong


def _data(config: Config) -> tuple[ImageSet | UserSet | None, str]:
    """The data of the run, or why they cannot be had: the audit itself does not need them."""
    try:
        data, _ = split_problem(config)
    except (ValueError, OSError, DownloadError, DataError) as error:
        return None, str(error)
    return (data, "") if isinstance(data, ImageSet | UserSet) else (None, f"{config.data} is of another kind.")


def _require_same(data: ImageSet | UserSet, audit: Audit, folder: Path) -> None:
    y = data.train_y.cpu().numpy()
    if len(y) != len(audit) or not np.array_equal(y, np.asarray(audit.labels)):
        raise ValueError(
            f"{data.name} is not the data that the run in {folder} was trained on: its labels differ ({len(y):,} "
            f"samples here, {len(audit):,} in the run). Restore the data, or give its place with --data-dir."
        )


def _names(data: ImageSet | UserSet | None, audit: Audit) -> tuple[str, ...]:
    known = () if data is None else data.names
    return known if len(known) == audit.classes else tuple(map(str, range(audit.classes or 0)))


def _shown(data: ImageSet | UserSet | None, index: Array) -> tuple[Sample, ...]:
    if data is None:
        return ()
    samples = (show(data, int(i)) for i in index)
    return tuple(Sample(sample.png, sample.text, sample.side) for sample in samples)
