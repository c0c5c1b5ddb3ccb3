"""The record of a comparison: several pairs of method and policy, each with several seeds."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from ausam.common.settings import Count, Finite, NonNegative, Positive, PositiveCount, Probability
from ausam_lab.config import Config
from ausam_lab.records.run import Run
from ausam_lab.records.store import Checked, Record


@dataclass(frozen=True)
class CurvePoint(Checked):
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
class Difference(Checked):
    """The mean difference of two rows over their common seeds, its 95 % interval, and its corrected p."""

    n: PositiveCount
    mean: Finite
    low: Finite | None = None
    high: Finite | None = None
    p: Probability | None = None

    @property
    def clear(self) -> bool | None:
        """Whether it is significant at 5 %. None if unknown, e.g. for a single seed."""
        return None if self.p is None else self.p <= 0.05


@dataclass(frozen=True)
class Row(Checked):
    """A row of a table: one pair, over its seeds."""

    name: str
    label: str
    pair: str  # method and policy with their arguments
    metric: str
    seeds: tuple[int, ...]
    scores: tuple[float, ...]  # one per seed
    parts: dict[str, float]  # means of a score's additional figures
    seconds: tuple[float, ...]  # of training, one per seed
    samples_forward: PositiveCount
    samples_backward: PositiveCount
    speed_of_sam: Positive | None  # SAM = 100, on the same machine
    against_sam: Difference | None = None
    skipped: Count = 0  # steps, over all its runs
    nlls: tuple[float, ...] = ()  # of a classifier, one per seed; empty if not known for every seed
    calibration_errors: tuple[float, ...] = ()  # likewise, in percent
    unfitted: Count = 0  # runs whose network has not fitted its data
    diverged: Count = 0  # of these, the runs whose losses ended far above chance
    cpu_seconds: tuple[float, ...] = ()  # of training, one per seed; empty if not known, or not on the CPU
    kind: str = ""  # contender, baseline, own or method: see ausam_lab.names.pairs.Pair

    @property
    def n(self) -> int:
        """The number of runs."""
        return len(self.seeds)

    @property
    def underfits(self) -> bool:
        """Whether most of its runs have not fitted their data."""
        return 2 * self.unfitted > self.n

    @property
    def diverges(self) -> bool:
        """Whether most of its runs have diverged."""
        return 2 * self.diverged > self.n

    @property
    def mean(self) -> float:
        """The mean score."""
        return statistics.fmean(self.scores)

    @property
    def std(self) -> float | None:
        """The standard deviation of the score over seeds. None for one run."""
        return statistics.stdev(self.scores) if self.n > 1 else None

    @property
    def mean_seconds(self) -> float:
        """The mean training time."""
        return statistics.fmean(self.seconds)


@dataclass(frozen=True)
class Comparison(Record):
    """Several pairs, each with several seeds, on one problem."""

    FORMAT = "comparison"

    title: str
    command: str
    created: str | None
    complete: bool
    seeds: tuple[int, ...]
    config: Config  # common to all runs, except method, policy and seed
    rows: tuple[Row, ...]
    runs: tuple[NamedRun, ...]
