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

CARDS, HARD = 200, 24  # suspects and rare samples on the page
POINTS = 2000  # of the map
FEW_CLASSES = 12  # that a matrix of classes has room for
FIRST = 10  # suspects in a terminal
LEAST = 1e-4  # loss at the left end of the map
MAP_NOTE = (
    "One point per sample. Right: a high loss over the whole training. Up: a loss that changed much from visit to "
    "visit. Learnt samples are at the lower left; labels that the network never accepted are at the right. Large "
    "points are suspects."
)
HARDEST = {  # of the samples that are not suspected, where their labels cannot be trusted either
    "unfitted": ("Highest losses so far", "Their labels are not judged, because the model has not fitted the data."),
    "by heart": ("Learnt late or never", "Hardest first. Wrong labels, if there are any, are among them."),
}


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
    names: tuple[str, ...]  # of the classes
    origin: Array  # index of each sample in the whole data set
    suspects: tuple[Sample, ...]  # the first CARDS, or none
    rare: tuple[Sample, ...]  # the first HARD, or none
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


def rate_line(audited: Audited) -> str:
    """The estimated share of wrong labels, with its interval."""
    wrong, n = audited.audit.suspects(), len(audited.audit)
    low, high = (f"{100 * end:.1f}" for end in wrong.interval)
    if audited.verdict.kind == "unfitted" and not len(wrong.index):
        return "No label is judged before the model has fitted the data."
    share = f"{100 * wrong.rate:.1f} %, 95 % interval {low} to {high}"
    return f"{len(wrong.index):,} of {n:,} labels are suspected ({share})." if len(wrong.index) else "No suspects."


def hits_line(audited: Audited) -> str:
    """How many of the labels that were made wrong on purpose are among the first suspects; empty if none were."""
    if audited.made_wrong is None:
        return ""
    n, first = len(audited.made_wrong), audited.audit.suspects().index[: len(audited.made_wrong)]
    hits = int(np.isin(first, audited.made_wrong).sum())
    if not len(first):
        return f"{n:,} labels were made wrong on purpose, so these are missed."
    return f"{n:,} labels were made wrong on purpose: {hits:,} of the first {len(first):,} suspects are among them."


def to_try(audited: Audited) -> str:
    """The command that tries the verdict's pair beside its random twin; empty without a pair."""
    pair = audited.verdict.pair
    return f'ausam compare sgd sam "{pair.replace("Trusted", "Random")}" "{pair}"' if pair else ""


def text(audited: Audited) -> str:
    """For a terminal: the verdict, the share of wrong labels, the first suspects."""
    verdict = audited.verdict
    parts = [str(verdict), " ".join(filter(None, (rate_line(audited), hits_line(audited))))]
    if len(audited.audit.suspects().index):
        parts.append(to_text(suspects_table(audited, FIRST)))
    if command := to_try(audited):
        parts.append(f"To try: {command}")
    return "\n\n".join(parts)


def csv(audited: Audited) -> str:
    """All suspects, most suspect first: index, given, suggested, score, and the description if there is one."""
    wrong = audited.audit.suspects()
    rows = zip(wrong.index, wrong.suggested, wrong.probability, strict=True)
    lines: list[list[object]] = [
        [int(audited.origin[i]), _given(audited, i), _name(audited, likely), round(float(p), 4)]
        for i, likely, p in rows
    ]
    head = ["index", "given", "suggested", "score"]
    if any(audited.texts):
        head.append("sample")
        lines = [[*line, said] for line, said in zip(lines, audited.texts, strict=True)]
    return to_csv(Table.of(head, lines))


def percent(p: float) -> str:
    """A probability, which is never certain."""
    return "> 99 %" if p > 0.99 else f"{100 * p:.0f} %"


def suspects_table(audited: Audited, count: int) -> Table:
    """The first suspects."""
    wrong = audited.audit.suspects()
    rows = [
        [str(audited.origin[i]), _given(audited, i), _name(audited, likely) or NONE, percent(p)]
        for i, likely, p in zip(wrong.index[:count], wrong.suggested, wrong.probability, strict=False)
    ]
    head = ["Sample", "Given", "Likely", "Probably wrong"]
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
    yield from _rare(audited)
    yield from html.pictures([_redundancy(audited)], hint=False)
    yield html.heading("How it was found")
    yield html.paragraph(
        "The loss of every sample at every visit of the training, and the class that the network preferred; no pass "
        "was made for this page. Suspects are samples whose label stayed less likely than another class while the "
        "others were learnt. The interval covers chance, not a wrong model of the losses: look before you change a "
        "label.",
        "note",
    )
    yield html.code(audited.command or NONE)
    yield html.paragraph(f"Made {moment(audited.created)}.", "note")


def _suspects(audited: Audited) -> Iterator[Markup]:
    wrong = audited.audit.suspects()
    yield html.heading("Labels that are probably wrong", key="suspects")
    yield html.paragraph(rate_line(audited))
    if not len(wrong.index):
        return
    if audited.hidden:
        yield html.paragraph(f"The samples are not shown: {audited.hidden}", "open")
        yield to_html(suspects_table(audited, CARDS))
    else:
        chances = [percent(p) for p in wrong.probability]
        cards = _cards(audited, wrong.index, wrong.suggested, chances, audited.suspects)
        counts = Counter(key for card in cards for key in set(card.classes))
        classes = [(key, audited.names[key], counts[key]) for key in sorted(counts)]
        yield html.fill("cards.html", cards=cards, classes=classes, group="suspects")
    more = len(wrong.index) - min(CARDS, len(wrong.index))
    rest = f" {more:,} more are in the CSV file that --export writes." if more else ""
    how = (
        "Most suspect first. Below a sample: how probably its label is wrong, and its number. A class shows the "
        "samples that have it or should have it."
    )
    yield html.paragraph(f"{how}{rest}", "note")


def _rare(audited: Audited) -> Iterator[Markup]:
    hard = audited.audit.rare()
    title, how = HARDEST.get(
        audited.verdict.kind, ("Learnt late or never, although the label is trusted", "Hardest first.")
    )
    yield html.heading(title, key="rare")
    yield html.paragraph(f"{len(hard.index):,} samples, {100 * hard.share:.1f} % of the data. {how}")
    if audited.rare and not audited.hidden:
        columns = audited.audit.columns()
        likely = columns["guess"][hard.index]
        likely = np.where(likely == _labels(audited)[hard.index], -1, likely)
        losses = [f"loss {columns['mean'][i]:.2f}" for i in hard.index]
        cards = _cards(audited, hard.index, likely, losses, audited.rare)
        yield html.fill("cards.html", cards=cards, classes=[], group="rare")


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
    wrong = audited.audit.suspects()
    pairs = Counter(
        (int(_labels(audited)[i]), int(other)) for i, other in zip(wrong.index, wrong.suggested, strict=True)
    )
    if not pairs:
        return
    yield html.heading("Which classes are confused")
    present = sorted({c for pair in pairs for c in pair if c >= 0})
    if len(present) <= FEW_CLASSES:
        sizes = {c: (n, count) for c, n, count in wrong.by_class}
        lines = [
            [
                audited.names[c],
                *(pairs.get((c, other)) or "" for other in present),
                f"{sizes[c][1]} of {sizes[c][0]}" if c in sizes else NONE,
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
    columns, wrong = audited.audit.columns(), audited.audit.suspects()
    seen = np.flatnonzero(columns["visits"] > 0)
    suspected = np.isin(seen, wrong.index)
    kept = seen
    if len(seen) > POINTS:  # suspects first, because they are few
        rng = np.random.default_rng(0)
        first = wrong.index[: POINTS // 2]
        rest = rng.permutation(seen[~suspected])[: POINTS - len(first)]
        kept = np.sort(np.concatenate([first, rest]))
    many = len(audited.names) > FEW_CLASSES
    likely = dict(zip(wrong.index.tolist(), wrong.suggested.tolist(), strict=True))
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
    when = np.where(columns["learnt"] > 0, columns["learnt"] / np.maximum(1, columns["visits"]), np.inf)[seen]
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
