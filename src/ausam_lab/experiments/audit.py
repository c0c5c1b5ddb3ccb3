"""Audit a run: read what it kept, look up the samples, write the page, and use the decisions that come back."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ausam.audit import Audit, Decision, apply, read_decisions
from ausam.audit.review import read_labels, write_labels
from ausam_lab.config import PAIR_SETTINGS, Config
from ausam_lab.data.catalogue import changes, split_problem
from ausam_lab.data.datasets import UserSet
from ausam_lab.data.folders import SIZED
from ausam_lab.data.images import ImageSet
from ausam_lab.data.loading import DataError
from ausam_lab.data.samples import description, plain, show
from ausam_lab.data.sources import DownloadError
from ausam_lab.experiments.cells import runs_in
from ausam_lab.experiments.commands import flags
from ausam_lab.names.pairs import PAIRS
from ausam_lab.names.user_code import is_code, is_own, refuse_strangers
from ausam_lab.records import files, store
from ausam_lab.records.run import measured_on
from ausam_lab.report.pages import audit as page
from ausam_lab.report.pages.audit import Audited
from ausam_lab.training import auditing, run_folder

OF_A_PAIR = (*PAIR_SETTINGS, "sync_perturbation", "labels")
OF_PAIRS = (
    *PAIR_SETTINGS,
    "sync_perturbation",
    "s_min",
    "s_max",
    "ramp",
)  # what a pair of another policy does not take
FEW = 2_000  # images, below which the network needs more steps per epoch
NEXT = 500  # samples of the ranking that a reviewer may look at next


def audit_run(
    folder: Path, out: Path, export: Path | None, command: str, *, trust: bool = False, typed: str = "", **here: Any
) -> Audited:
    """Write the page of the audit in a run's folder, and its ranking as CSV if ``export`` says where.

    Arguments:
        folder: of a finished run.
        out: the page.
        export: the CSV file, or None.
        command: the command that the user typed.
        trust: whether code that the folder's settings name may run.
        typed: the data that the user has named, which may be code.
        here: settings of this machine, such as ``data_dir``.
    """
    saved = run_folder.saved_config(folder) if folder.is_dir() else None
    if saved is not None and not trust:
        refuse_strangers(folder, {"data": saved.data}, [typed])
    audited = read(folder, command, **here)
    text, pictures = page.render(audited, out)
    if pictures:
        run_folder.make(next(iter(pictures)).parent)
    for path, content in pictures.items():  # not one by one to the disk, as files.write does
        with files.written(path):
            path.write_bytes(content)
    files.write(out, text)
    if export is not None:
        files.write(export, page.csv(audited))
    return audited


def audit_rows(place: Path, command: str, **how: Any) -> list[tuple[str, Path, Audited]]:
    """Audit a run of each row of a comparison, that of its first seed: label, page and audit of each."""
    runs: dict[str, Path] = {}
    for name, folder in runs_in(place):
        runs.setdefault(name, folder)
    found = []
    for run in runs.values():
        config = run_folder.saved_config(run) or Config()
        audited = audit_run(run, run / "audit.html", None, command, **how)
        found.append((config.label, run / "audit.html", audited))
    return found


def read(folder: Path, command: str = "", **here: Any) -> Audited:
    """The audit of the run in a folder, with its samples as cards. A ValueError if there is nothing to read."""
    saved = run_folder.saved_config(folder) if folder.is_dir() else None
    if saved is None:
        one = next(iter(sorted(folder.glob("seed-*"))), None)
        more = f" It holds several: choose one, such as {one}." if one else ""
        raise ValueError(f"{folder} holds no run. Pass the folder (--out) of ausam train or ausam compare.{more}")
    config = replace(saved, **here | {"device": "cpu", "workers": 0})
    audit = auditing.read(folder)
    if audit.labels is None:
        raise ValueError(
            f"{folder} is a run on {config.data}, whose targets are not classes, so there are no labels to check. Its "
            f"{auditing.FILE} holds the losses of every sample."
        )
    columns = audit.table()
    if not columns["visits"].any():
        raise ValueError(f"{folder}: {config.method} does not report losses per sample, so there is nothing to audit.")
    data, hidden = _data(config)
    if data is not None:
        _require_same(data, audit, folder)
    errors, verdict = audit.label_errors(), audit.verdict()
    rows = page.choose_rows(errors, audit.labels)
    pair = auditing.pair_to_try(audit, verdict, config.policy)
    name = config.label or f"{config.method} + {config.policy}"
    texts = () if data is None else tuple(description(data, i) for i in range(len(audit)))
    return Audited(
        title=f"{config.data}{changes(config)}: labels to review",
        about=f"{len(audit):,} training samples, {name}, {config.model}, {config.epochs} epochs, seed {config.seed}",
        command=command,
        created=store.now(),
        verdict=verdict,
        errors=errors,
        redundant=audit.redundant(),
        columns=columns,
        labels=audit.labels,
        names=_names(data, audit),
        origin=np.arange(len(audit)) if data is None else data.origin.numpy(),
        rows=rows,
        cards=() if data is None else tuple(show(data, i) for i in rows.tolist()),
        texts=texts if any(texts) else (),
        hidden=hidden,
        next_steps=_next_steps(folder, saved),
        to_try=_compare(pair, saved) if pair else "",
        made_wrong=np.flatnonzero([] if data is None or data.wrong is None else data.wrong.cpu().numpy()),
    )


# -- a training for the audit alone ------------------------------------------------------------------------------------


def folder_for(data: str) -> str:
    """Where a run on these data is kept if the user does not say."""
    name = re.sub(r"[^\w@-]+", "-", data.partition(":")[2] or data).strip("-")
    return f"runs/audit-{name or 'data'}"


def settings_to_train(given: dict[str, Any]) -> dict[str, Any]:
    """The settings of the user, and for their own data those of a short training on small pictures."""
    if not is_own(given["data"]):
        return given
    kind, _, place = given["data"].partition(":")
    sized = SIZED.fullmatch(place)
    short = {"epochs": 15, "batch_size": 64}
    if kind == "folder":
        files = Path(sized["path"] if sized else place).rglob("*.*")
        short = few_images(len(list(islice(files, 2 * FEW))))
    small = f"{given['data']}@32" if kind in ("folder", "hf") and not sized else given["data"]
    return short | given | {"data": small}


def few_images(images: int) -> dict[str, int]:
    """Epochs and batch size that give a network steps enough to fit a few images.

    >>> few_images(300), few_images(10_000)
    ({'epochs': 32, 'batch_size': 16}, {'epochs': 15, 'batch_size': 64})
    """
    size = 16 if images < FEW else 64
    return {"epochs": min(60, max(15, 600 * size // max(1, images))), "batch_size": size}


# -- decisions ---------------------------------------------------------------------------------------------------------


def review(audited: Audited, folder: Path, decided: Path, labels: Path | None) -> str:
    """What the decisions of a person say about a run. ``labels`` is the file for the labels that follow, or None.

    Raises a ValueError for decisions about other samples.
    """
    place = {int(index): i for i, index in enumerate(audited.origin)}
    decisions = read_decisions(decided, audited.names)
    if strange := [decision.index for decision in decisions if decision.index not in place]:
        raise ValueError(
            f"{decided} decides about sample {strange[0]}, which the run was not trained on. Use the decisions.csv "
            "from the page of this run."
        )
    decisions = [replace(decision, index=place[decision.index]) for decision in decisions]
    said = _summary(audited, decisions)
    if labels is None:
        return said
    config, run = run_folder.saved_config(folder), run_folder.finished(folder)
    if config is None or run is None:
        raise ValueError(f"{folder} holds no finished run. Finish it with ausam train --resume.")
    earlier = read_labels(config.labels) if config.labels else {}  # it may have removed samples
    corrected = earlier | dict(zip(audited.origin.tolist(), apply(audited.labels, decisions).tolist(), strict=True))
    files.write(labels, write_labels(list(corrected), list(corrected.values())))
    return (
        f"{said}\n\nBefore the correction: {measured_on(str(run.test))}\n"
        f"To train again on the corrected labels: {_train(folder, config, labels)}\n"
        f"To see what the correction is worth: {_before_and_after(folder, config, labels)}"
    )


def _summary(audited: Audited, decisions: Sequence[Decision]) -> str:
    kinds = Counter(decision.kind for decision in decisions)
    said = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()) or "none"
    try:
        share = str(audited.review.share(decisions))
    except ValueError as too_few:
        return f"Decisions: {said}.\n{too_few}"
    wrong, following = audited.review.expected_wrong(audited.errors.order, decisions, NEXT)
    after = f"About {wrong:.0f} of the next {following} undecided samples of the ranking are probably wrong."
    return f"Decisions: {said}.\n{share}\n{after}"


# -- commands to paste -------------------------------------------------------------------------------------------------


def _next_steps(folder: Path, config: Config) -> tuple[str, ...]:
    trust = " --trust" if is_code(config.data) else ""
    use = f"ausam audit {shlex.quote(str(folder))}{trust} --decisions decisions.csv --apply labels.csv"
    labels = Path("labels.csv")
    return use, _train(folder, config, labels), _before_and_after(folder, config, labels)


def _train(folder: Path, config: Config, labels: Path) -> str:
    """The command that repeats a run on the corrected labels."""
    where = shlex.join(["--labels", str(labels), "--out", f"{folder}-corrected"])
    return f"ausam train {flags(config, ['labels'])}{where}"


def _before_and_after(folder: Path, config: Config, labels: Path) -> str:
    """The command that compares a run on its labels with the same run on the corrected ones, side by side."""
    known = [name for name, row in PAIRS.items() if (row.method, row.policy) == (config.method, config.policy)]
    alpha = "" if config.alpha is None else f"alpha={config.alpha:g})"
    policy = (
        config.policy.removesuffix(")") + (", " if "(" in config.policy else "(") + alpha if alpha else config.policy
    )
    name = [*known, config.method if policy == "Full" else f"{config.method} + {policy}"][0]
    drawn = [] if config.data_seed is not None else ["--data-seed", str(config.seed)]  # one draw, which was reviewed
    where = shlex.join([*drawn, "--out", f"{folder}-compared", "--labels", "given", str(labels)])
    return f"ausam compare {shlex.quote(name)} {flags(config, OF_A_PAIR)}{where}"


def _compare(pair: str, config: Config) -> str:
    """The command that compares a pair with SGD, SAM, and its random-subset baseline, on the data of the run."""
    names = ["sgd", "sam", pair.replace("Trusted", "Random"), pair]
    return f"ausam compare {shlex.join(names)} {flags(config, OF_PAIRS)}".rstrip()


# -- the data ----------------------------------------------------------------------------------------------------------


def _data(config: Config) -> tuple[ImageSet | UserSet | None, str]:
    """The data of the run, or why they cannot be loaded: the audit itself does not need them."""
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
    return tuple(map(plain, known)) if len(known) == audit.classes else tuple(map(str, range(audit.classes or 0)))
