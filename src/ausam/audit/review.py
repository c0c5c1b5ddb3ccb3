"""Reviews: what a person decided about samples, as a file, and the corrected labels."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Kind = Literal["keep", "relabel", "remove", "unsure"]

# Where a spreadsheet may see a formula begin, whichever separator it splits at (templates/audit.js has it, too)
FORMULA = re.compile(r"(?<![^;,\t\r\n])(?=[\s\"]*[=+\-@\uff1d\uff0b\uff0d\uff20])|^(?=[\t\r\n'])")


@dataclass(frozen=True)
class Decision:
    """What a person decided about one sample. ``label`` is the new class of a relabelled one."""

    index: int
    kind: Kind
    label: int = -1


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
            if index < 0 or label < -1:
                raise ValueError
        except (TypeError, ValueError):
            why = f"index is {row['index']!r}, label {row['label']!r}. Use whole numbers, -1 for a removed sample."
            raise _bad_row(path, line, why) from None
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
