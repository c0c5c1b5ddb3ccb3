"""The page of an audit, audit.html: what a training says about its data, suspects first; and its text and CSV."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ausam.audit import Audit, Verdict
from ausam.audit.table import Array
from ausam_lab.report import charts, html
from ausam_lab.report.charts import Picture
from ausam_lab.report.table import Table, to_csv, to_html, to_text
from ausam_lab.report.text import NONE, moment
from ausam_lab.report.vega import Field, PlainRow

if TYPE_CHECKING:
    from markupsafe import Markup

CARDS = 200  # flagged samples on the page
POINTS = 2000  # of the map
FEW_CLASSES = 12  # that a matrix of classes has room for
FIRST = 10  # suspects in a terminal
LEAST = 1e-4  # loss at the left end of the map
MAP_NOTE = (
    "One point per sample. Right: a high loss over the whole training. Up: a loss that changed much from visit to "
    "visit. Learnt samples are at the lower left; labels that the network never accepted are at the right. Large "
    "points are suspects."
)


@dataclass(frozen=True)
class Sample:
    """A sample as the page shows it: its picture as PNG, or a text."""

    png: bytes = b""
    text: str = ""
    side: int = 0  # of the picture, in pixels


@dataclass(frozen=True)
class Audited:
    """An audit with what a person needs to read it."""

    title: str
    about: str
    command: str
    created: str
    audit: Audit
    verdict: Verdict
    pair: str  # to try; empty if none
    names: tuple[str, ...]  # of the classes
    origin: Array  # index of each sample in the whole data set
    suspects: tuple[Sample, ...]  # the first CARDS, or none
    texts: tuple[str, ...]  # descriptions of all suspects, or none
    hidden: str  # why no samples are shown; empty if they are
    made_wrong: Array | None = None  # the samples whose labels were made wrong on purpose, if any were


@dataclass(frozen=True)
class Card:
    """A sample in a grid."""

    index: int
    given: str
    likely: str  # empty: no other class
    chance: str
    classes: tuple[int, ...]  # by which it can be filtered
    image: str  # data URI
    text: str
    small: bool  # its pixels are to be seen


def flagged_line(audited: Audited) -> str:
    """How many labels are flagged."""
    n = len(audited.audit.label_errors())
    return f"{n:,} of {len(audited.audit):,} labels are flagged." if n else "No label is flagged."


def hits_line(audited: Audited) -> str:
    """How many of the labels that were made wrong on purpose are among the first suspects; empty if none were."""
    if audited.made_wrong is None:
        return ""
    n, first = len(audited.made_wrong), audited.audit.label_errors().index[: len(audited.made_wrong)]
    hits = int(np.isin(first, audited.made_wrong).sum())
    if not len(first):
        return f"{n:,} labels were made wrong on purpose, so these are missed."
    return f"{n:,} labels were made wrong on purpose: {hits:,} of the first {len(first):,} suspects are among them."


def to_try(audited: Audited) -> str:
    """The command that tries the verdict's pair beside its random twin; empty without a pair."""
    pair = audited.pair
    return f'ausam compare sgd sam "{pair.replace("Trusted", "Random")}" "{pair}"' if pair else ""


def text(audited: Audited) -> str:
    """For a terminal: the verdict, the share of wrong labels, the first suspects."""
    verdict = audited.verdict
    parts = [str(verdict), " ".join(filter(None, (flagged_line(audited), hits_line(audited))))]
    if len(audited.audit.label_errors().index):
        parts.append(to_text(suspects_table(audited, FIRST)))
    if command := to_try(audited):
        parts.append(f"To try: {command}")
    return "\n\n".join(parts)


def csv(audited: Audited) -> str:
    """All flagged samples, most suspect first: index, given, likely, loss, and the description if there is one."""
    wrong = audited.audit.label_errors()
    lines: list[list[object]] = [
        [int(audited.origin[i]), _given(audited, i), _name(audited, wrong.likely[i]), round(float(wrong.loss[i]), 4)]
        for i in wrong.index
    ]
    head = ["index", "given", "likely", "loss"]
    if any(audited.texts):
        head.append("sample")
        lines = [[*line, said] for line, said in zip(lines, audited.texts, strict=True)]
    return to_csv(Table.of(head, lines))


def suspects_table(audited: Audited, count: int) -> Table:
    """The first suspects."""
    wrong = audited.audit.label_errors()
    rows = [
        [str(audited.origin[i]), _given(audited, i), _name(audited, wrong.likely[i]) or NONE, f"{wrong.loss[i]:.2f}"]
        for i in wrong.index[:count]
    ]
    head = ["Sample", "Given", "Likely", "Loss"]
    if any(audited.texts):
        head.append("Is")
        rows = [[*row, said] for row, said in zip(rows, audited.texts, strict=False)]
    return Table.of(head, rows, left=(1, 2, 4))


def render(audited: Audited) -> str:
    """The page; it fetches nothing."""
    return html.page(audited.title, _fragments(audited), width=62)


def _fragments(audited: Audited) -> Iterator[Markup]:
    verdict = audited.verdict
    yield html.heading(audited.title, 1)
    yield html.paragraph(audited.about, "soft")
    yield html.paragraph(str(verdict), "lead")
    if hits := hits_line(audited):
        yield html.paragraph(hits)
    if command := to_try(audited):
        yield html.paragraph("To see on your data what that gains over a random part of the same size:")
        yield html.code(command)
    yield from _suspects(audited)
    yield from html.pictures([_map(audited)])
    yield from _confusion(audited)
    yield from html.pictures([_redundancy(audited)], hint=False)
    yield html.heading("How it was found")
    yield html.paragraph(
        "The loss of every sample at every visit of the training, and the class that the network preferred; no pass "
        "was made for this page. Flagged samples are those whose label stayed less likely than another class while the "
        "others were learned. Look before you change a label.",
        "note",
    )
    yield html.code(audited.command or NONE)
    yield html.paragraph(f"Made {moment(audited.created)}.", "note")


def _suspects(audited: Audited) -> Iterator[Markup]:
    wrong = audited.audit.label_errors()
    yield html.heading("Labels that are probably wrong", key="suspects")
    yield html.paragraph(flagged_line(audited))
    if not len(wrong.index):
        return
    if audited.hidden:
        yield html.paragraph(f"The samples are not shown: {audited.hidden}", "open")
        yield to_html(suspects_table(audited, CARDS))
    else:
        losses = [f"loss {loss:.2f}" for loss in wrong.loss[wrong.index]]
        cards = _cards(audited, wrong.index, wrong.likely[wrong.index], losses, audited.suspects)
        counts = Counter(key for card in cards for key in set(card.classes))
        classes = [(key, audited.names[key], counts[key]) for key in sorted(counts)]
        yield html.fill("cards.html", cards=cards, classes=classes, group="suspects")
    more = len(wrong.index) - min(CARDS, len(wrong.index))
    rest = f" {more:,} more are in the CSV file that --export writes." if more else ""
    how = (
        "Most suspect first. Below a sample: its loss and its number. A class shows the samples that have it or "
        "should have it."
    )
    yield html.paragraph(f"{how}{rest}", "note")


def _cards(
    audited: Audited, index: Array, likely: Array, chances: Sequence[str], samples: Sequence[Sample]
) -> list[Card]:
    cards = []
    for i, other, chance, sample in zip(index, likely, chances, samples, strict=False):
        classes = int(_labels(audited)[i]), *([] if other < 0 else [int(other)])
        image = f"data:image/png;base64,{base64.b64encode(sample.png).decode()}" if sample.png else ""
        given, its = _given(audited, i), _name(audited, other)
        small = sample.side <= 48
        cards.append(Card(int(audited.origin[i]), given, its, chance, classes, image, sample.text, small))
    return cards


def _confusion(audited: Audited) -> Iterator[Markup]:
    wrong = audited.audit.label_errors()
    pairs = Counter(
        (int(_labels(audited)[i]), int(other)) for i, other in zip(wrong.index, wrong.likely[wrong.index], strict=True)
    )
    if not pairs:
        return
    yield html.heading("Which classes are confused")
    present = sorted({c for pair in pairs for c in pair if c >= 0})
    if len(present) <= FEW_CLASSES:
        labels = _labels(audited)
        sizes = {c: (int((labels == c).sum()), int((labels[wrong.index] == c).sum())) for c in present}
        lines = [
            [
                audited.names[c],
                *(pairs.get((c, other)) or "" for other in present),
                f"{sizes[c][1]} of {sizes[c][0]}",
            ]
            for c in present
        ]
        yield to_html(Table.of(["Given", *(audited.names[c] for c in present), "Suspects"], lines))
        yield html.paragraph("Lines: the given label. Columns: the label that the network prefers.", "note")
        return
    most = [[audited.names[a], _name(audited, b) or NONE, n] for (a, b), n in pairs.most_common(FEW_CLASSES)]
    yield to_html(Table.of(["Given", "Likely", "Suspects"], most, left=(0, 1)))
    yield html.paragraph(f"The {len(most)} commonest of {len(pairs)} pairs.", "note")


def _map(audited: Audited) -> Picture:
    columns, wrong = audited.audit.columns(), audited.audit.label_errors()
    seen = np.flatnonzero(columns["visits"] > 0)
    suspected = np.isin(seen, wrong.index)
    kept = seen
    if len(seen) > POINTS:  # suspects first, because they are few
        rng = np.random.default_rng(0)
        first = wrong.index[: POINTS // 2]
        rest = rng.permutation(seen[~suspected])[: POINTS - len(first)]
        kept = np.sort(np.concatenate([first, rest]))
    many = len(audited.names) > FEW_CLASSES
    likely = dict(zip(wrong.index.tolist(), wrong.likely[wrong.index].tolist(), strict=True))
    rows: list[PlainRow] = []
    for i in kept.tolist():
        row: dict[str, object] = {"x": max(LEAST, float(columns["mean"][i])), "y": float(columns["spread"][i])}
        row |= {"index": int(audited.origin[i]), "label": _given(audited, i)}
        if i in likely:
            row |= {"strong": True, "likely": _name(audited, likely[i]) or NONE}
        rows.append(row | ({"by": "suspects" if i in likely else "the others"} if many else {"by": row["label"]}))
    hover = [Field("index", "sample"), Field("label", "given"), Field("likely", "likely")]
    hover += [Field("x", "mean loss", ".3~g"), Field("y", "its spread", ".3~g")]
    order = ("the others", "suspects") if many else audited.names
    across, up = Field("x", "mean loss"), Field("y", "standard deviation of the loss")
    spec = charts.scatter(rows, across, up, Field("by", ""), hover, log="x", order=order)
    part = (
        f" {len(kept):,} of {len(seen):,} samples, suspects first, the others at random."
        if len(kept) < len(seen)
        else ""
    )
    return Picture("map", spec, "A map of the samples", f"{MAP_NOTE}{part}")


def _redundancy(audited: Audited) -> Picture:
    columns, easy = audited.audit.columns(), audited.audit.redundant()
    seen = columns["visits"] > 0
    when = np.where(columns["learned"] > 0, columns["learned"] / np.maximum(1, columns["visits"]), np.inf)[seen]
    steps = np.linspace(0, 1, 1 + int(np.clip(np.median(columns["visits"][seen]), 1, 40)))
    rows = [{"x": 100 * t, "y": 100 * float((when <= t + 1e-9).mean()), "of": "learnt for good"} for t in steps]
    note = (
        "The share of the samples that the network held from this part of the training to its end. "
        f"{100 * easy.share:.0f} % were learnt at once and never lost."
    )
    if easy.alpha < 1:
        note += f" To draw these a tenth as often leaves a fraction alpha of {easy.alpha:g}: a suggestion to try."
    x, y = Field("x", "part of the training (%)", ".3~g"), Field("y", "samples learnt for good (%)", ".3~g")
    title = "How soon the samples were learnt"
    return Picture(title, charts.lines(rows, x, y, Field("of", ""), [x, y]), title, note)


def _labels(audited: Audited) -> Array:
    labels = audited.audit.labels
    return np.zeros(0, np.int64) if labels is None else labels


def _given(audited: Audited, i: int) -> str:
    return _name(audited, int(_labels(audited)[i]))


def _name(audited: Audited, label: int) -> str:
    return audited.names[label] if label >= 0 else ""
