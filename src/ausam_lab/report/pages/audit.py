"""The page of an audit, audit.html: a tool to review the labels, most suspect first, and the audit as text and CSV."""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from ausam.audit import LabelErrors, Redundant, Review, Verdict, draw_review
from ausam.audit.review import csv_text
from ausam_lab.data.samples import Shown
from ausam_lab.report import html
from ausam_lab.report.table import Table, to_text
from ausam_lab.report.text import NONE, moment

Array = NDArray[Any]

FIRST = 10  # samples in a terminal
CARDS, MOST = 5000, 20_000  # samples on the page: so many of the ranking, and so many of those that are flagged
EXAMPLES, CLASSES = 6, 600  # of each class, of those that the model accepts best; about so many in all
POINTS = 5000  # of the map that are no cards
INSIDE = 8 * 2**20  # bytes of pictures that the page itself may hold; more go to a folder beside it
HOW = (
    "Training computes a loss for every sample at every visit. Labels whose loss stays high while the others are "
    "learned are ranked first. If the losses form two groups, the upper one is flagged. Otherwise those labels are "
    "flagged which the model contradicts with more confidence than it has where it errs. If there are none, the "
    "ranking still says where to look first. A flag is no proof: hard samples can be among them."
)


@dataclass(frozen=True)
class Audited:
    """An audit with what a person needs to review it.

    ``rows`` are the samples on the page, in the order of the ranking, and ``cards`` what they look like, or none.
    """

    title: str
    about: str
    command: str
    created: str
    verdict: Verdict
    errors: LabelErrors
    redundant: Redundant
    columns: dict[str, Array]
    labels: Array
    names: tuple[str, ...]  # of the classes
    origin: Array  # index of each sample in the whole data set
    rows: Array
    cards: tuple[Shown, ...]
    texts: tuple[str, ...]  # descriptions of all samples, or none
    hidden: str  # why no samples are shown; empty if they are
    next_steps: tuple[str, ...]  # commands that use the decisions
    to_try: str = ""  # the command that compares training methods; empty if there is nothing to suggest
    made_wrong: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # whose labels were made wrong on purpose

    @property
    def id(self) -> str:
        """What decisions are kept under: the same for every page of one run."""
        parts = [self.title, self.about, *map(repr, self.names)]
        content = [
            *(part.encode(errors="replace") for part in parts),
            self.labels.tobytes(),
            self.errors.order.tobytes(),
        ]
        return hashlib.sha256(b"\n".join(content)).hexdigest()[:16]

    @property
    def review(self) -> Review:
        """The samples to be reviewed for the share of wrong labels: always the same ones of a run."""
        return draw_review(self.errors.order)

    def given(self, i: int) -> str:
        """The name of the label of a sample."""
        return self.names[int(self.labels[i])]

    def likely(self, i: int) -> str:
        """The name of the class that the network preferred. Empty if that is unknown."""
        return self.names[int(self.errors.likely[i])] if self.errors.likely[i] >= 0 else ""


def choose_rows(errors: LabelErrors, labels: Array) -> Array:
    """The samples on the page, by rank: the flagged ones and the next ones, those drawn, and examples of each class."""
    n = len(labels)
    rank = np.empty(n, np.int64)
    rank[errors.order] = np.arange(n)
    accepted = errors.order[::-1][np.isfinite(errors.loss[errors.order[::-1]])]
    classes = np.unique(labels)
    each = max(1, min(EXAMPLES, CLASSES // len(classes)))
    examples = [accepted[labels[accepted] == c][:each] for c in classes.tolist()]
    chosen = np.unique(
        np.concatenate([errors.order[:CARDS], errors.index[:MOST], draw_review(errors.order).index, *examples])
    )
    return chosen[np.argsort(rank[chosen])]


# -- for a terminal, and as CSV ----------------------------------------------------------------------------------------


def summary(audited: Audited) -> str:
    """How many labels are flagged, and how many of those that were made wrong on purpose come first in the ranking."""
    n, made = len(audited.labels), len(audited.made_wrong)
    said = f"{len(audited.errors):,} of {n:,} labels are flagged. All samples are ranked."
    if not made:
        return said
    _, first = _hits(audited)
    return f"{said} {made:,} labels were made wrong on purpose: {first:,} of them are among the first {made:,}."


def _hits(audited: Audited) -> tuple[int, int]:
    """How many labels that were made wrong on purpose are flagged, and how many are as far up as there are of them."""
    made, errors = audited.made_wrong, audited.errors
    return int(np.isin(errors.index, made).sum()), int(np.isin(errors.order[: len(made)], made).sum())


def text(audited: Audited) -> str:
    """For a terminal: the verdict, what is flagged, the first samples of the ranking."""
    parts = [str(audited.verdict), summary(audited), to_text(first_table(audited))]
    return "\n\n".join([*parts, f"To try: {audited.to_try}"] if audited.to_try else parts)


def rows_table(rows: Sequence[tuple[str, Audited]]) -> Table:
    """The audits of several runs side by side, each with its label."""
    head, lines = ["Method", "Flagged"], [[name, f"{len(audited.errors):,}"] for name, audited in rows]
    if made := len(rows[0][1].made_wrong):  # in all of them: a comparison has one data set
        head += ["Wrong among them", f"Wrong among the first {made:,}"]
        lines = [[*line, *map(str, _hits(audited))] for line, (_, audited) in zip(lines, rows, strict=True)]
    return Table.of(head, lines)


def first_table(audited: Audited) -> Table:
    """The first samples of the ranking."""
    rows = [
        [str(index), given, likely or NONE, f"{loss:.2f}", flagged, *([path] if any(audited.texts) else [])]
        for index, path, given, likely, loss, flagged in _rows(audited, audited.errors.order[:FIRST])
        if loss != ""
    ]
    head = ["Sample", "Given", "Likely", "Loss", "Flagged", *(["File or text"] if any(audited.texts) else [])]
    return Table.of(head, rows, left=(1, 2, 4, 5))


def csv(audited: Audited) -> str:
    """All samples, most suspect first. No cell starts a formula."""
    head = ["index", "path", "given", "likely", "loss", "flagged"]
    return csv_text(head, _rows(audited, audited.errors.order))


def _rows(audited: Audited, samples: Array) -> list[list[Any]]:
    loss, flagged = audited.errors.loss, audited.errors.flagged
    return [
        [
            int(audited.origin[i]),
            audited.texts[i] if audited.texts else "",
            audited.given(i),
            audited.likely(i),
            round(float(loss[i]), 4) if math.isfinite(loss[i]) else "",
            "yes" if flagged[i] else "no",
        ]
        for i in samples.tolist()
    ]


# -- the page ----------------------------------------------------------------------------------------------------------


def render(audited: Audited, out: Path) -> tuple[str, dict[Path, bytes]]:
    """The page, which fetches nothing, and the files of its pictures, if they are too many for the page itself.

    Arguments:
        audited: the audit.
        out: where the page will be. The pictures are in a folder beside it.
    """
    beside = out.with_name(f"{out.stem}_files")
    inside = sum(len(card.picture) for card in audited.cards) <= INSIDE
    pictures = {
        beside / f"{audited.origin[i]}.{card.form}": card.picture
        for i, card in zip(audited.rows.tolist(), audited.cards, strict=False)
        if card.picture and not inside
    }
    easy = f"{100 * audited.redundant.share:.0f} % of the samples were learned early and never forgotten."
    made = html.fill(
        "audit.html",
        title=audited.title,
        about=audited.about,
        lead=str(audited.verdict),
        lines=[summary(audited), f"The samples are not shown: {audited.hidden}" if audited.hidden else "", easy],
        themes=html.THEMES,
        style=html.source("style.css") + html.source("audit.css"),
        script=html.source("audit.js"),
        axes=("the averaged loss that ranks the samples", "how much the loss changed from visit to visit"),
        mapped=bool(np.isfinite(audited.errors.loss).sum() > 1),
        next_steps=[html.code(command) for command in audited.next_steps],
        to_try=html.code(audited.to_try) if audited.to_try else "",
        how=HOW,
        created=moment(audited.created),
        command=html.code(audited.command or NONE),
        data=_data(audited, out, "" if inside else f"{quote(beside.name)}/"),
    )
    return f"{made}\n", pictures


def _data(audited: Audited, out: Path, folder: str) -> dict[str, Any]:
    """What the page's script works on: columns with an entry for each card, and what is drawn."""
    rows, errors, review = audited.rows, audited.errors, audited.review
    cards = audited.cards or tuple(Shown() for _ in rows)
    rank = np.empty(len(errors.order), np.int64)
    rank[errors.order] = np.arange(len(rank))
    place = {int(i): row for row, i in enumerate(rows)}
    rng = np.random.default_rng(0)
    others = rng.permutation(np.setdiff1d(errors.order, rows))[:POINTS]
    x, ticks_x = _scaled(errors.loss, log=True)
    y, ticks_y = _scaled(audited.columns["spread"], log=False)
    return {
        "id": audited.id,
        "names": audited.names,
        "n": len(errors.order),
        "flagged": len(errors),
        "folder": folder,
        "index": audited.origin[rows].tolist(),
        "rank": rank[rows].tolist(),
        "marked": errors.flagged[rows].astype(int).tolist(),
        "given": audited.labels[rows].tolist(),
        "likely": errors.likely[rows].tolist(),
        "loss": [float(f"{v:.3g}") if math.isfinite(v) else None for v in errors.loss[rows].tolist()],
        "path": [audited.texts[i] if audited.texts else "" for i in rows.tolist()],
        "text": ["" if audited.texts else card.text for card in cards],
        "file": ["" if card.file is None else _address(card.file, out) for card in cards],
        "side": [card.side for card in cards],
        "thumb": [
            f"{index}.{card.form}"
            if folder
            else f"{card.form};base64,{base64.b64encode(card.picture).decode()}"
            if card.picture
            else ""
            for index, card in zip(audited.origin[rows].tolist(), cards, strict=True)
        ],
        "x": x[rows].tolist(),
        "y": y[rows].tolist(),
        "ticks": {"x": ticks_x, "y": ticks_y},
        "cloud": {"x": x[others].tolist(), "y": y[others].tolist()},
        "review": {
            "row": [place[i] for i in review.index.tolist()],
            "stratum": review.stratum.tolist(),
            "sizes": review.sizes.tolist(),
        },
    }


def _address(file: Path, out: Path) -> str:
    """Where a file is, as seen from the page. Its name need not be Unicode."""
    return quote(os.fsencode(os.path.relpath(file, out.parent)))


def _scaled(values: Array, *, log: bool) -> tuple[Array, list[tuple[int, str]]]:
    """Values as whole numbers from 0 to 1,000, -1 for none, and ticks at round values."""
    values = np.asarray(values, np.float64)
    if log and np.isfinite(values).any():
        values = np.log10(np.maximum(values, max(1e-4, np.nanmax(values) * 1e-6)))
    seen = values[np.isfinite(values)]
    if not len(seen):
        return np.full(len(values), -1), []
    low, width = float(seen.min()), max(float(np.ptp(seen)), 1e-9)
    step = 1.0 if log else 10.0 ** math.floor(math.log10(width))
    marks = [step * i for i in range(math.ceil(low / step), math.floor((low + width) / step) + 1)]
    ticks = [(round(1000 * (mark - low) / width), f"{10**mark if log else mark:.3g}") for mark in marks]
    return np.where(np.isfinite(values), np.round(1000 * (values - low) / width), -1).astype(np.int64), ticks
