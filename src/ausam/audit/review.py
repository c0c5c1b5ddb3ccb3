"""Reviews: what a person decided about samples, the share of wrong labels that follows, and the corrected labels.

The losses rank the samples, but they do not say how many labels are wrong. A person does: 200 samples, drawn at random
within four strata of the ranking, give an unbiased share with an interval that covers.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Kind = Literal["keep", "relabel", "remove", "unsure"]

STRATA = (0.01, 0.05, 0.2, 1.0)  # upper ends, as parts of the ranking
SLIPS = 0.05  # share of mistaken reviews that the wide interval allows for
# Where a spreadsheet may see a formula begin, whichever separator it splits at (templates/audit.js has it, too)
FORMULA = re.compile(r"(?<![^;,\t\r\n])(?=[\s\"]*[=+\-@\uff1d\uff0b\uff0d\uff20])|^(?=[\t\r\n'])")


@dataclass(frozen=True)
class Decision:
    """What a person decided about one sample. ``label`` is the new class of a relabelled one."""

    index: int
    kind: Kind
    label: int = -1


# -- decisions and labels --------------------------------------------------------------------------------------------


def read_decisions(path: str | Path, names: Sequence[str] = ()) -> list[Decision]:
    """Read the decisions that ``audit.html`` exports: columns index, decision and new_label. Others are ignored.

    Arguments:
        path: the CSV file.
        names: the classes by number, for new labels that are written as names. Without it, they are numbers.
    """
    numbers = {harmless(name): i for i, name in enumerate(names)} | {name: i for i, name in enumerate(names)}
    decisions: dict[int, Decision] = {}
    for line, row in _rows(path, ("index", "decision", "new_label"), "Use the decisions.csv that audit.html exports."):
        try:
            index = int(row["index"])
        except (TypeError, ValueError):
            raise _bad_row(path, line, f"index is {row['index']!r}. Use a whole number.") from None
        kind, written = row["decision"], row["new_label"] or ""
        if kind not in get_args(Kind):
            raise _bad_row(path, line, f"decision is {kind!r}. Use one of {', '.join(get_args(Kind))}.")
        label = numbers.get(written, int(written) if written.isdecimal() and not names else -1)
        if kind == "relabel" and label < 0:
            known = f"one of {', '.join(names)}" if names else "the number of a class"
            raise _bad_row(path, line, f"new_label is {written!r}. Use {known}.")
        if index in decisions:
            raise _bad_row(path, line, f"sample {index} is decided twice. Keep one of the rows.")
        decisions[index] = Decision(index, cast("Kind", kind), label if kind == "relabel" else -1)
    return list(decisions.values())


def write_labels(index: ArrayLike, labels: ArrayLike) -> str:
    """The labels as CSV, for ``ausam train --labels``: columns index and label. A removed sample has the label -1."""
    rows = zip(np.asarray(index).tolist(), np.asarray(labels).tolist(), strict=True)
    return csv_text(["index", "label"], rows)


def read_labels(path: str | Path) -> dict[int, int]:
    """Read the file of :func:`write_labels`: the label of each sample that is in it, -1 for a removed one."""
    labels: dict[int, int] = {}
    remedy = "Write it with: ausam audit RUN --decisions decisions.csv --apply labels.csv"
    for line, row in _rows(path, ("index", "label"), remedy):
        try:
            index, label = int(row["index"]), int(row["label"])
        except (TypeError, ValueError):
            why = f"index is {row['index']!r}, label {row['label']!r}. Use whole numbers."
            raise _bad_row(path, line, why) from None
        if index < 0 or label < -1:
            raise _bad_row(path, line, f"index is {index}, label {label}. Use -1 for a removed sample.")
        if index in labels:
            raise _bad_row(path, line, f"sample {index} is there twice. Keep one of the rows.")
        labels[index] = label
    return labels


def _rows(path: str | Path, columns: Sequence[str], remedy: str) -> list[tuple[int, dict[str, str]]]:
    """The rows of a CSV file with the numbers of their lines. A ValueError without these columns."""
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"{path} is not a regular file. {remedy}")  # a pipe would wait for its writer
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            found = [(reader.line_num, row) for row in reader]
            missing = set(columns) - set(reader.fieldnames or ())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}. {remedy}") from None
    if missing:
        raise ValueError(f"{path} has no column {', '.join(sorted(missing))}. {remedy}")
    return found


def csv_text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV. No text starts a formula, and none tears a row. Numbers are written in full."""
    out = io.StringIO()
    usual = csv.writer(out, lineterminator="\n")
    quoted = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    usual.writerow(head)
    for row in rows:
        cells = [harmless(cell) if isinstance(cell, str) else cell for cell in row]
        torn = any(isinstance(cell, str) and "\r" in cell for cell in cells)  # csv would not quote it
        (quoted if torn else usual).writerow(cells)
    return out.getvalue()


def harmless(text: str) -> str:
    """Text for a cell of a CSV file, with an apostrophe wherever a spreadsheet could begin a formula.

    >>> harmless("=1+1"), harmless("a;=1+1"), harmless("semi-final")
    ("'=1+1", "a;'=1+1", 'semi-final')
    """
    return FORMULA.sub("'", text)


def _bad_row(path: str | Path, line: int, why: str) -> ValueError:
    return ValueError(f"{path}, line {line}: {why}")


def apply(labels: ArrayLike, decisions: Iterable[Decision]) -> NDArray[np.int64]:
    """The labels after the decisions. -1 for a removed sample.

    >>> from ausam.audit import Decision, apply
    >>> apply([0, 1, 2, 1], [Decision(1, "relabel", 2), Decision(3, "remove")]).tolist()
    [0, 2, 2, -1]
    """
    corrected = np.asarray(labels).astype(np.int64)  # a copy
    for decision in decisions:
        if not 0 <= decision.index < len(corrected):
            raise IndexError(f"A decision is about sample {decision.index}, but there are {len(corrected)} labels.")
        if decision.kind == "relabel":
            corrected[decision.index] = decision.label
        elif decision.kind == "remove":
            corrected[decision.index] = -1
    return corrected


class Corrected:
    """A map-style dataset with corrected labels, without the removed samples.

    >>> from ausam.audit import Corrected
    >>> data = Corrected([("a", 0), ("b", 1), ("c", 1)], [0, -1, 0])
    >>> [data[i] for i in range(len(data))]
    [('a', 0), ('c', 0)]

    Arguments:
        dataset: returns tuples whose last entry is the label.
        labels: the label of each sample, as :func:`apply` returns them. A negative one removes the sample.
    """

    def __init__(self, dataset: Any, labels: ArrayLike) -> None:
        self.dataset = dataset
        self.labels = np.asarray(labels, np.int64)
        if len(self.labels) != len(dataset):
            raise ValueError(f"There are {len(self.labels)} labels for {len(dataset)} samples. Give one per sample.")
        self.index = np.flatnonzero(self.labels >= 0)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> Any:
        place = int(self.index[i])
        *inputs, _ = self.dataset[place]
        return (*inputs, int(self.labels[place]))


# -- the share of wrong labels ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """The estimated share of wrong labels with its 95 % interval."""

    share: float
    low: float
    high: float
    low_if_slips: float  # lower end if up to 5 % of the reviews are mistaken
    reviewed: int

    def __str__(self) -> str:
        def percent(part: float) -> str:
            return f"{100 * part:.1f}"

        return (
            f"{percent(self.share)} % of the labels are wrong (95 % interval {percent(self.low)} to "
            f"{percent(self.high)}, from {self.reviewed} reviewed samples; from {percent(self.low_if_slips)} if up to "
            f"{100 * SLIPS:.0f} % of the reviews are mistaken)."
        )


@dataclass(frozen=True)
class Review:
    """Samples to be reviewed for the share: drawn at random within strata of the ranking."""

    index: NDArray[np.int64]  # the drawn samples
    stratum: NDArray[np.int64]  # of each drawn sample
    sizes: NDArray[np.int64]  # samples in each stratum

    def share(self, decisions: Iterable[Decision]) -> Share:
        """Estimate the share of wrong labels from the decisions about the drawn samples.

        Relabelled and removed samples count as wrong, kept ones as right. Undecided and unsure ones are left out. Each
        stratum has an exact (Clopper and Pearson 1934) interval. Their weighted sum follows Zou and Donner (2008).
        """
        n, k = self._counts(decisions)
        if (n == 0).any():
            raise ValueError(
                f"Too few of the {len(self.index)} drawn samples are reviewed: a stratum of the ranking has none. "
                "Review the rest of them."
            )
        ends = np.array([_interval(*row) for row in zip(k.tolist(), n.tolist(), self.sizes.tolist(), strict=True)])
        weight, p = self.sizes / self.sizes.sum(), k / n
        share = float(weight @ p)
        low = max(0.0, share - math.sqrt(float((weight**2) @ (p - ends[:, 0]) ** 2)))
        high = min(1.0, share + math.sqrt(float((weight**2) @ (ends[:, 1] - p) ** 2)))
        return Share(share, low, high, max(0.0, (low - SLIPS) / (1 - 2 * SLIPS)), int(n.sum()))

    def expected_wrong(self, order: ArrayLike, decisions: Iterable[Decision], count: int = 500) -> tuple[float, int]:
        """The expected number of wrong labels among the next ``count`` undecided samples of the ranking.

        Returns that number and how many samples it is about. It uses the rate of each stratum.
        """
        decisions = list(decisions)
        n, k = self._counts(decisions)
        decided = {decision.index for decision in decisions}
        stratum = np.repeat(np.arange(len(self.sizes)), self.sizes)
        following = [s for i, s in zip(np.asarray(order).tolist(), stratum, strict=True) if i not in decided][:count]
        rate = k / np.maximum(1, n)
        return float(rate[following].sum()), len(following)

    def _counts(self, decisions: Iterable[Decision]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Reviewed samples and wrong labels in each stratum."""
        kinds = {decision.index: decision.kind for decision in decisions}
        n, k = np.zeros(len(self.sizes), np.int64), np.zeros(len(self.sizes), np.int64)
        for i, stratum in zip(self.index.tolist(), self.stratum.tolist(), strict=True):
            kind = kinds.get(i, "unsure")
            if kind != "unsure":
                n[stratum] += 1
                k[stratum] += kind != "keep"
        return n, k


def draw_review(order: ArrayLike, size: int = 200, seed: int = 0) -> Review:
    """Draw samples to review: more from the top of the ranking than a plain random sample would have.

    >>> from ausam.audit import Decision, draw_review
    >>> review = draw_review(range(1000), size=200)
    >>> decisions = [Decision(i, "relabel" if i < 100 else "keep") for i in review.index.tolist()]
    >>> round(review.share(decisions).share, 3)
    0.104

    Arguments:
        order: all samples, most suspect first.
        size: how many to draw, >= 8.
        seed: for the draw.
    """
    ranking = np.asarray(order, np.int64)
    n = len(ranking)
    if size < 2 * len(STRATA):
        raise ValueError(f"size is {size}. Draw at least {2 * len(STRATA)} samples.")
    ends = np.unique(np.maximum(1, np.round(np.array(STRATA) * n).astype(np.int64)))
    sizes = np.diff(ends, prepend=0)
    counts = _allocate(sizes, min(size, n))
    rng = np.random.default_rng(seed)
    drawn = [
        np.sort(rng.choice(np.arange(end - length, end), count, replace=False))
        for end, length, count in zip(ends, sizes, counts, strict=True)
    ]
    return Review(ranking[np.concatenate(drawn)], np.repeat(np.arange(len(sizes)), counts), sizes)


def _allocate(sizes: NDArray[np.int64], total: int) -> NDArray[np.int64]:
    """Numbers of draws that grow with the square root of the stratum: small strata at the top count for more."""
    part = total * np.sqrt(sizes) / np.sqrt(sizes).sum()
    counts: NDArray[np.int64] = np.minimum(sizes, np.maximum(1, np.floor(part))).astype(np.int64)
    while counts.sum() < total:
        room = np.where(counts < sizes, np.sqrt(sizes) / counts, 0.0)
        counts[np.argmax(room)] += 1
    return counts


def _interval(k: int, n: int, size: int) -> tuple[float, float]:
    """The exact 95 % interval of a rate, from k of n. The rate itself if the whole stratum is reviewed."""
    if n >= size:
        return k / n, k / n
    low = _solve(lambda p: 1 - _cdf(k - 1, n, p), 0.025) if k else 0.0
    high = _solve(lambda p: 1 - _cdf(k, n, p), 0.975) if k < n else 1.0
    return low, high


def _cdf(k: int, n: int, p: float) -> float:
    """The probability of at most k of n."""
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


def _solve(rising: Any, value: float) -> float:
    """Where a rising function of [0, 1] has this value, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return (low + high) / 2
