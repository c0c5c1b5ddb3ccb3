"""The page of an audit, audit.html: a tool to review the labels, most suspect first, and the audit as text and CSV."""

from __future__ import annotations

import base64
import hashlib
import math
import os
from dataclasses import dataclass
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
    "learned are ranked first. If the losses form two groups, the upper one is flagged; otherwise nothing is, and the "
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
    made_wrong: Array | None = None  # the samples whose labels were made wrong on purpose, if any were

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


def flagged_line(audited: Audited) -> str:
    """How many labels are flagged."""
    n, count = len(audited.labels), len(audited.errors)
    where = "The ranking says where to look first." if not count else "All samples are ranked."
    return f"{count:,} of {n:,} labels are flagged. {where}"


def hits_line(audited: Audited) -> str:
    """How many of the labels that were made wrong on purpose come first in the ranking. Empty if none were."""
    if audited.made_wrong is None:
        return ""
    n = len(audited.made_wrong)
    hits = int(np.isin(audited.errors.order[:n], audited.made_wrong).sum())
    return f"{n:,} labels were made wrong on purpose: {hits:,} of them are among the first {n:,} of the ranking."


def text(audited: Audited) -> str:
    """For a terminal: the verdict, what is flagged, the first samples of the ranking."""
    parts = [str(audited.verdict), " ".join(filter(None, (flagged_line(audited), hits_line(audited))))]
    parts.append(to_text(first_table(audited)))
    if audited.to_try:
        parts.append(f"To try: {audited.to_try}")
    return "\n\n".join(parts)


def first_table(audited: Audited) -> Table:
    """The first samples of the ranking."""
    loss = audited.errors.loss
    first = audited.errors.order[:FIRST].tolist()
    rows = [
        [str(audited.origin[i]), audited.given(i), audited.likely(i) or NONE, f"{loss[i]:.2f}", _yes(audited, i)]
        for i in first
        if math.isfinite(loss[i])
    ]
    head = ["Sample", "Given", "Likely", "Loss", "Flagged"]
    if any(audited.texts):
        head.append("File or text")
        rows = [[*row, audited.texts[i]] for row, i in zip(rows, first, strict=False)]
    return Table.of(head, rows, left=(1, 2, 4, 5))


def csv(audited: Audited) -> str:
    """All samples, most suspect first. No cell starts a formula."""
    loss = audited.errors.loss
    rows = [
        [
            int(audited.origin[i]),
            audited.texts[i] if audited.texts else "",
            audited.given(i),
            audited.likely(i),
            round(float(loss[i]), 4) if math.isfinite(loss[i]) else "",
            _yes(audited, i),
        ]
        for i in audited.errors.order.tolist()
    ]
    return csv_text(["index", "path", "given", "likely", "loss", "flagged"], rows)


def _yes(audited: Audited, i: int) -> str:
    return "yes" if audited.errors.flagged[i] else "no"


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
    made = html.fill(
        "audit.html",
        title=audited.title,
        about=audited.about,
        lead=str(audited.verdict),
        lines=list(filter(None, (flagged_line(audited), hits_line(audited), _hidden(audited), _easy(audited)))),
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


def _hidden(audited: Audited) -> str:
    return f"The samples themselves are not shown: {audited.hidden}" if audited.hidden else ""


def _easy(audited: Audited) -> str:
    return f"{100 * audited.redundant.share:.0f} % of the samples were learned early and never forgotten."


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
        "thumb": [_thumb(audited, i, card, folder) for i, card in zip(rows.tolist(), cards, strict=True)],
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


def _thumb(audited: Audited, i: int, card: Shown, folder: str) -> str:
    if not card.picture:
        return ""
    inside = f"{card.form};base64,{base64.b64encode(card.picture).decode()}"
    return f"{audited.origin[i]}.{card.form}" if folder else inside


def _address(file: Path, out: Path) -> str:
    """Where a file is, as seen from the page. Its name need not be Unicode."""
    return quote(os.fsencode(os.path.relpath(file, out.parent)))


def _scaled(values: Array, *, log: bool) -> tuple[Array, list[tuple[int, str]]]:
    """Values as whole numbers from 0 to 1,000, -1 for none, and ticks at round values."""
    values = np.asarray(values, np.float64)
    seen = values[np.isfinite(values)]
    if not len(seen):
        return np.full(len(values), -1), []
    if log:
        floor = max(1e-4, float(seen.max()) * 1e-6)
        scale, back = np.log10(np.maximum(values, floor)), np.log10(np.maximum(seen, floor))
    else:
        scale, back = values, seen
    low, high = float(back.min()), float(back.max())
    width = max(high - low, 1e-9)
    step = 1.0 if log else 10.0 ** math.floor(math.log10(width))
    marks = [step * i for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    ticks = [(round(1000 * (mark - low) / width), f"{10**mark if log else mark:.3g}") for mark in marks]
    return np.where(np.isfinite(values), np.round(1000 * (scale - low) / width), -1).astype(np.int64), ticks
