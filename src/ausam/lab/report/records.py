"""What is known of runs, comparisons and tables: frozen records, and the only place that reads and writes their JSON.

A file holds ``format`` and ``version``, the fields of its record, and a ``digest`` of them. One of another version, one
whose content does not have that digest, and one with a field that is missing, strange or out of range is refused.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ausam.lab.config import Config
from ausam.lab.io import files, sealed
from ausam.lab.io.typed_json import plain, typed
from ausam.lab.problems.problem import Score
from ausam.settings import Count, Finite, NonNegative, Positive, PositiveCount, Probability, check

VERSION = 2  # 1 had no digest, and called every score accuracy


class _Checked:
    def __post_init__(self) -> None:
        check(self)


# -- a run -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hardware:
    """The machine: processor, cores, threads in use, memory, and the device trained on."""

    cpu: str
    cores: int | None
    threads: int
    memory_gib: float | None
    device: str
    gpu: str | None = None


@dataclass(frozen=True)
class Environment:
    """What a run ran on; without it a figure says nothing."""

    hardware: Hardware
    versions: dict[str, str]
    commit: str | None  # of the source, with a plus sign if it was changed; None for an installed package


@dataclass(frozen=True)
class Epoch(_Checked):
    """One epoch of a run; seconds and samples of the two passes count from the first."""

    epoch: PositiveCount
    lr: NonNegative
    train_loss: float  # not a number where training diverged
    test: Score
    seconds: NonNegative
    samples: Count
    samples_forward: Count
    samples_backward: Count
    images_per_second: NonNegative
    skipped: Count
    ranks: PositiveCount


@dataclass(frozen=True)
class Group(_Checked):
    """Samples together: how many, their mean score if known, how often one was chosen, and the part mislabelled."""

    n: Count
    score: float | None
    chosen: NonNegative
    wrong: Probability | None = None


@dataclass(frozen=True)
class Selection:
    """What a policy chose: the samples in bins of ascending score, and those labelled right and wrong, if known."""

    signal: str
    bins: tuple[Group, ...]
    right: Group | None = None
    wrong: Group | None = None


@dataclass(frozen=True)
class Samples(_Checked):
    """How much data a run had."""

    train: PositiveCount
    test: PositiveCount
    classes: PositiveCount


@dataclass(frozen=True)
class Run(_Checked):
    """A run that has ended: what it was, what it reached, what it cost, and what it ran on."""

    method: str
    policy: str
    pair: str  # both in brief
    seed: Count
    epochs: PositiveCount
    test: Score
    train: Score
    train_seconds: Positive
    samples_forward: PositiveCount
    samples_backward: PositiveCount
    skipped_steps: Count
    weights_sha256: str
    init_sha256: str | None  # of the weights it started from
    parameters: Count
    ranks: PositiveCount
    data: Samples
    selection: Selection | None
    environment: Environment
    config: Config
    metrics_sha256: str | None = None  # of metrics.jsonl; None in files of before
    steps: Count | None = None  # that were taken, besides those skipped; None in files of before it was counted

    @property
    def idle(self) -> bool:
        """Whether every step was skipped, so that nothing was learnt."""
        return self.steps == 0


# -- a comparison ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CurvePoint(_Checked):
    """One epoch of a learning curve."""

    epoch: PositiveCount
    train_loss: float
    score: Finite
    seconds: NonNegative


@dataclass(frozen=True)
class NamedRun:
    """A run under the name of its pair, with its learning curve."""

    name: str
    run: Run
    curve: tuple[CurvePoint, ...]


@dataclass(frozen=True)
class Difference(_Checked):
    """The mean difference of two rows over the seeds both have, its 95 % interval, and its p after correction."""

    n: PositiveCount
    mean: Finite
    low: Finite | None = None
    high: Finite | None = None
    p: Probability | None = None

    @property
    def clear(self) -> bool | None:
        """Whether it is beyond chance at 5 %; None if that cannot be said, as of a single seed."""
        return None if self.p is None else self.p <= 0.05


@dataclass(frozen=True)
class Row(_Checked):
    """A row of a table: one pair, over its seeds."""

    name: str
    label: str
    method: str
    policy: str
    pair: str
    epochs: PositiveCount
    metric: str
    unit: str
    seeds: tuple[int, ...]
    scores: tuple[float, ...]  # one per seed
    parts: dict[str, float]  # means of the figures that the score is the mean of
    seconds: tuple[float, ...]  # of training, one per seed
    samples_forward: PositiveCount
    samples_backward: PositiveCount
    speed_of_sam: Positive | None  # SAM = 100, on the same machine
    samples_of_sam: Positive | None  # SAM = 100
    against_sam: Difference | None = None
    skipped: Count = 0  # steps, over all its runs

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.seeds) == len(self.scores) == len(self.seconds) > 0:
            raise ValueError(f"Row: {self.name} has {len(self.seeds)} seeds, but {len(self.scores)} scores.")

    @property
    def n(self) -> int:
        """How many runs it is of."""
        return len(self.seeds)

    @property
    def mean(self) -> float:
        """The mean score."""
        return statistics.fmean(self.scores)

    @property
    def std(self) -> float | None:
        """The standard deviation of the score over seeds; None for one run."""
        return statistics.stdev(self.scores) if self.n > 1 else None

    @property
    def mean_seconds(self) -> float:
        """The mean training time."""
        return statistics.fmean(self.seconds)

    @property
    def std_seconds(self) -> float | None:
        """The standard deviation of the training time; None for one run."""
        return statistics.stdev(self.seconds) if self.n > 1 else None

    @property
    def part_of_sam(self) -> float | None:
        """Percent of SAM's training time."""
        return None if self.speed_of_sam is None else 1e4 / self.speed_of_sam


@dataclass(frozen=True)
class Comparison:
    """Several pairs times several seeds on one problem."""

    title: str
    command: str
    created: str | None
    complete: bool
    data: Samples | None  # None until a run has ended
    seeds: tuple[int, ...]
    environment: Environment  # of the first run
    config: Config  # what the runs share; method, policy and seed are theirs
    rows: tuple[Row, ...]
    runs: tuple[NamedRun, ...]


# -- a table of the paper ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Published:
    """What the paper says of a row; None where it says nothing."""

    score: float | None = None
    std: float | None = None
    speed: float | None = None  # SAM = 100
    parts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TableCell:
    """One pair in one column of a table: the paper's figures, and ours if a run has ended."""

    name: str
    label: str
    note: str  # a key of the table's notes
    paper: Published
    ours: Row | None

    @property
    def in_paper(self) -> bool:
        """Whether the paper has figures for it."""
        return self.paper.score is not None


@dataclass(frozen=True)
class TableColumn:
    """A network on a data set: a column of a table, under the heading of its group."""

    name: str
    group: str
    heading: str
    title: str
    about: str
    headline: str
    cells: tuple[TableCell, ...]


@dataclass(frozen=True)
class PaperTable(_Checked):
    """A table of the paper beside ours."""

    table: str
    scale: str
    title: str
    command: str
    created: str
    seeds: tuple[int, ...]
    runs: Count  # that the whole table has
    missing: Count
    notes: dict[str, str]
    metric: str
    unit: str
    columns: tuple[TableColumn, ...]


# -- their files -------------------------------------------------------------------------------------------------------

R = TypeVar("R", Run, Comparison, PaperTable)
NAMES: dict[type[Any], str] = {Run: "run", Comparison: "comparison", PaperTable: "table"}


def write(path: Path, record: Run | Comparison | PaperTable) -> None:
    """Replace the file by this record."""
    sealed.write(path, NAMES[type(record)], VERSION, record)


def read(path: Path, kind: type[R]) -> R | None:
    """The record in a file; None if there is no file or no JSON in it; a ValueError for any other content."""
    return sealed.read(path, NAMES[kind], VERSION, kind)


def read_finished(path: Path, kind: type[R]) -> R:
    """The record in a file that must be there."""
    if (found := read(path, kind)) is None:
        raise ValueError(f"{path} is damaged. Remove it; {sealed.REMEDY}")
    return found


def kind_of(path: Path) -> type[Any] | None:
    """Which kind of record a file says it holds; None if it is no record."""
    found = files.read_json(path) or {}
    return next((kind for kind, name in NAMES.items() if found.get("format") == name), None)


def epochs_text(epochs: Iterable[Epoch]) -> str:
    """Epochs as JSON, a line each."""
    return "".join(json.dumps(plain(epoch)) + "\n" for epoch in epochs)


def epochs_of(text: str) -> list[Epoch]:
    """The epochs of such a text; a ValueError for a line that holds none."""
    return [typed(Epoch, json.loads(line)) for line in text.splitlines()]


def read_epochs(path: Path) -> list[Epoch]:
    """The epochs in a file, up to the first line that holds none."""
    found = []
    for row in files.read_rows(path):
        try:
            found.append(typed(Epoch, row))
        except ValueError:
            break
    return found
