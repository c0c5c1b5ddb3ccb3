"""The records of runs, comparisons and tables, and the only place that reads and writes their JSON.

A file holds ``format``, ``version`` and the fields of its record. A file of another version, or with a field that is
missing, unknown or out of range, is refused.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ausam.common.settings import Count, Finite, NonNegative, Positive, PositiveCount, Probability, validate
from ausam.lab.config import Config
from ausam.lab.records import files, versioned
from ausam.lab.records.score import Score, decimals
from ausam.lab.records.typed_json import plain, typed

VERSION = 1


class _Checked:
    def __post_init__(self) -> None:
        validate(self)


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
    """The environment of a run, without which a figure means nothing."""

    hardware: Hardware
    versions: dict[str, str]
    commit: str | None  # of the source, with a plus sign for local changes; None for an installed package


@dataclass(frozen=True)
class Epoch(_Checked):
    """One epoch of a run; seconds and samples of the two passes count from the first."""

    epoch: PositiveCount
    lr: NonNegative
    train_loss: float  # NaN if training diverged
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
    """A group of samples: size, mean score if known, mean times chosen, and the fraction mislabelled."""

    n: Count
    score: float | None
    chosen: NonNegative
    wrong: Probability | None = None


@dataclass(frozen=True)
class Selection:
    """What a policy chose: samples in bins of ascending score, correctly and wrongly labelled ones, and each class.

    Right and wrong are present if known; the classes, by label, only for long-tailed data.
    """

    signal: str
    bins: tuple[Group, ...]
    right: Group | None = None
    wrong: Group | None = None
    classes: dict[str, Group] = field(default_factory=dict)


@dataclass(frozen=True)
class Samples(_Checked):
    """The amount of data in a run."""

    train: PositiveCount
    test: PositiveCount
    classes: PositiveCount


@dataclass(frozen=True)
class Suspect(_Checked):
    """A training sample whose label is probably wrong."""

    index: Count  # in the whole data set
    given: Count
    suggested: Count | None  # None if the network agrees
    score: Probability


@dataclass(frozen=True)
class Findings(_Checked):
    """What a training says about its data: see :class:`ausam.audit.Verdict`."""

    kind: str
    sentences: tuple[str, ...]
    pair: str  # the pair to try; empty if none
    rate: Probability  # of wrong labels, with its 95 % interval
    low: Probability
    high: Probability
    suspects: Count
    redundant: Probability  # share of the samples
    first: tuple[Suspect, ...]  # of the suspects

    @property
    def unfitted(self) -> bool:
        """Whether the network has not fitted its data."""
        return self.kind == "unfitted"


@dataclass(frozen=True)
class Run(_Checked):
    """A finished run: its settings, score, cost and environment."""

    method: str
    policy: str
    pair: str  # both abbreviated
    seed: Count
    epochs: PositiveCount
    test: Score
    train: Score
    train_seconds: Positive
    samples_forward: PositiveCount
    samples_backward: PositiveCount
    skipped_steps: Count
    weights_sha256: str
    init_sha256: str | None  # of the initial weights
    parameters: Count
    ranks: PositiveCount
    data: Samples
    selection: Selection | None
    environment: Environment
    config: Config
    steps: Count | None = None  # taken, without the skipped ones; None if not recorded
    best_epoch: PositiveCount | None = None  # whose weights were kept, if held-out samples selected it
    audit: Findings | None = None  # None if the losses say nothing about labels

    @property
    def idle(self) -> bool:
        """Whether every step was skipped, so nothing was learnt."""
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
    """The mean difference of two rows over their common seeds, its 95 % interval, and its corrected p."""

    n: PositiveCount
    mean: Finite
    low: Finite | None = None
    high: Finite | None = None
    p: Probability | None = None

    @property
    def clear(self) -> bool | None:
        """Whether it is significant at 5 %; None if unknown, e.g. for a single seed."""
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
    parts: dict[str, float]  # means of a score's additional figures
    seconds: tuple[float, ...]  # of training, one per seed
    samples_forward: PositiveCount
    samples_backward: PositiveCount
    speed_of_sam: Positive | None  # SAM = 100, on the same machine
    samples_of_sam: Positive | None  # SAM = 100
    against_sam: Difference | None = None
    skipped: Count = 0  # steps, over all its runs
    lower_is_better: bool = False  # of the score
    nlls: tuple[float, ...] = ()  # of a classifier, one per seed; empty if not known for every seed
    calibration_errors: tuple[float, ...] = ()  # likewise, in percent
    unfitted: Count = 0  # runs whose network has not fitted its data

    def __post_init__(self) -> None:
        super().__post_init__()
        if not len(self.seeds) == len(self.scores) == len(self.seconds) > 0:
            raise ValueError(f"Row: {self.name} has {len(self.seeds)} seeds, but {len(self.scores)} scores.")

    @property
    def n(self) -> int:
        """The number of runs."""
        return len(self.seeds)

    @property
    def underfits(self) -> bool:
        """Whether most of its runs have not fitted their data."""
        return 2 * self.unfitted > self.n

    @property
    def mean(self) -> float:
        """The mean score."""
        return statistics.fmean(self.scores)

    @property
    def nll_of_seed(self) -> dict[int, float]:
        """The likelihood of each seed; empty if not known."""
        return dict(zip(self.seeds, self.nlls, strict=True)) if self.nlls else {}

    @property
    def merit(self) -> float:
        """The mean score, with a sign such that larger is better."""
        return -self.mean if self.lower_is_better else self.mean

    @property
    def decimals(self) -> int:
        """The number of decimals for its score."""
        return decimals(self.unit)

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
    """Several pairs, each with several seeds, on one problem."""

    title: str
    command: str
    created: str | None
    complete: bool
    data: Samples | None  # None until a run has ended
    seeds: tuple[int, ...]
    environment: Environment  # of the first run
    config: Config  # common to all runs, except method, policy and seed
    rows: tuple[Row, ...]
    runs: tuple[NamedRun, ...]


# -- a table of the paper ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Published:
    """The paper's figures for a row; None where it has none."""

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
    """A table of the paper next to ours."""

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
    deviations: tuple[str, ...] = ()  # from the paper's setup


# -- a benchmark at equal cost -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry(_Checked):
    """A contender or a control under a budget, with its results once a run has ended."""

    name: str
    label: str
    budget: Positive  # the fraction of SAM's samples that it may use
    control: bool  # its choice of samples does not depend on scores
    row: Row | None = None
    cost: Positive | None = None  # the fraction of SAM's samples that it used, forward and backward
    twin: str = ""  # contenders: the entry with as many samples, drawn at random
    sgd: str = ""  # contenders: the base optimizer that the recipe fixed for this budget
    from_twin: Difference | None = None  # p corrected within the budget
    from_sgd: Difference | None = None  # likewise


@dataclass(frozen=True)
class BudgetProblem:
    """One problem of the benchmark, with everything that ran on it."""

    name: str
    title: str
    about: str
    tuning: str  # which settings were tuned, and on what
    seeds: tuple[int, ...]
    entries: tuple[Entry, ...]
    primary: str = ""  # the contender whose difference from its twin was named before anything ran
    margin: float = 0.0  # scores whose difference is within it are level; 0: never


@dataclass(frozen=True)
class EqualCost(_Checked):
    """Several problems, each under several budgets: what each budget buys."""

    table: str
    title: str
    command: str
    created: str
    runs: Count  # that the whole benchmark has
    missing: Count
    tuning: str
    problems: tuple[BudgetProblem, ...]


# -- a search for settings ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial(_Checked):
    """Values of the tuned settings, and their score on held-out samples."""

    settings: dict[str, float]
    row: Row | None  # None if a run failed
    cost: Positive | None = None  # the fraction of SAM's samples that it used
    failed: str = ""  # why


@dataclass(frozen=True)
class Round(_Checked):
    """Trials trained for the same number of epochs, best first."""

    epochs: PositiveCount
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Tuning:
    """A search by successive halving, up to now."""

    command: str
    created: str
    config: Config  # common to all runs, at full length
    seeds: tuple[int, ...]
    rounds: tuple[Round, ...]


# -- their files -------------------------------------------------------------------------------------------------------

R = TypeVar("R", Run, Comparison, PaperTable, EqualCost, Tuning)
NAMES: dict[type[Any], str] = {
    Run: "run",
    Comparison: "comparison",
    PaperTable: "table",
    EqualCost: "equal-cost",
    Tuning: "tuning",
}


def write(path: Path, record: Run | Comparison | PaperTable | EqualCost | Tuning) -> None:
    """Write this record to the file, replacing it."""
    versioned.write(path, NAMES[type(record)], VERSION, record)


def read(path: Path, kind: type[R]) -> R | None:
    """The record in a file; None if there is no file; a ValueError for any other content."""
    return versioned.read(path, NAMES[kind], VERSION, kind)


def read_finished(path: Path, kind: type[R]) -> R:
    """The record in a file that must exist."""
    record = read(path, kind)
    if record is None:
        raise ValueError(f"There is no file {path}.")
    return record


def kind_of(path: Path) -> type[Any] | None:
    """The kind of record that a file declares; None if it is not a record."""
    content = files.read_json(path) or {}
    return next((kind for kind, name in NAMES.items() if content.get("format") == name), None)


def epochs_text(epochs: Iterable[Epoch]) -> str:
    """Epochs as JSON, one per line."""
    return "".join(json.dumps(plain(epoch)) + "\n" for epoch in epochs)


def epochs_of(text: str) -> list[Epoch]:
    """The epochs in such a text; a ValueError names the first line that is not an epoch."""
    epochs = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            epochs.append(typed(Epoch, json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {str(error)[:200].rstrip('.') or 'it is nested too deeply'}") from None
    return epochs


def read_epochs(path: Path) -> list[Epoch]:
    """The epochs in a file; none if there is no file; a ValueError for any other content."""
    try:
        return epochs_of(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except ValueError as error:
        raise ValueError(
            f"{path} is not readable: {error}. Remove it and result.json; the command that wrote them will write them "
            "again from the checkpoint."
        ) from None
