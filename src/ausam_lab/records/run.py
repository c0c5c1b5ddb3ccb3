"""The record of a finished run."""

from __future__ import annotations

from dataclasses import dataclass, field

from ausam.common.settings import Count, NonNegative, Positive, PositiveCount, Probability
from ausam_lab.config import Config
from ausam_lab.records.score import Score
from ausam_lab.records.store import Checked, Record


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
class SampleGroup(Checked):
    """A group of samples: size, mean score if known, mean times chosen, and the fraction mislabelled."""

    n: Count
    score: float | None
    chosen: NonNegative
    wrong: Probability | None = None


@dataclass(frozen=True)
class SelectionSummary:
    """What a policy chose: samples in bins of ascending score, correctly and wrongly labelled ones, and each class.

    Right and wrong are present if known; the classes, by label, only for long-tailed data.
    """

    signal: str
    bins: tuple[SampleGroup, ...]
    right: SampleGroup | None = None
    wrong: SampleGroup | None = None
    classes: dict[str, SampleGroup] = field(default_factory=dict)


@dataclass(frozen=True)
class Samples(Checked):
    """The amount of data in a run."""

    train: PositiveCount
    test: PositiveCount
    classes: PositiveCount


@dataclass(frozen=True)
class Suspect(Checked):
    """A training sample whose label is flagged."""

    index: Count  # in the whole data set
    given: Count
    likely: Count | None  # the class that the network preferred; None if unknown


@dataclass(frozen=True)
class Findings(Checked):
    """What a training says about its data: see :class:`ausam.audit.Verdict`."""

    kind: str
    sentences: tuple[str, ...]
    pair: str  # the pair to try; empty if none
    flagged: Count  # labels
    redundant: Probability  # share of the samples
    first: tuple[Suspect, ...]  # of the flagged

    @property
    def unfitted(self) -> bool:
        """Whether the network has not fitted its data."""
        return self.kind == "unfitted"


@dataclass(frozen=True)
class Run(Record):
    """A finished run: its settings, score, cost and environment."""

    FORMAT = "run"

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
    selection: SelectionSummary | None
    environment: Environment
    config: Config
    steps: Count | None = None  # taken, without the skipped ones; None if not recorded
    best_epoch: PositiveCount | None = None  # whose weights were kept, if held-out samples selected it
    audit: Findings | None = None  # None if the losses say nothing about labels

    @property
    def idle(self) -> bool:
        """Whether every step was skipped, so nothing was learnt."""
        return self.steps == 0
