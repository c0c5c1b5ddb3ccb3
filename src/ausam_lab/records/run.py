"""The record of a run: the score of an evaluation, an epoch, and what a finished run leaves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from ausam.common.settings import Count, Finite, NonNegative, Positive, PositiveCount
from ausam_lab.config import Config
from ausam_lab.records.store import Checked, Record, as_line, typed

VALIDATION = "validation "  # prefix of the name of a score measured on held-out training samples


def measured_on(name: str) -> str:
    """The name of a score with the data that it was measured on: test accuracy, validation accuracy."""
    return name if name.startswith(VALIDATION) else f"test {name}"


@dataclass(frozen=True)
class Score(Checked):
    """The result of an evaluation: a figure in percent with its name, and further figures as parts, if any."""

    value: Finite
    name: str = "accuracy"
    parts: dict[str, float] = field(default_factory=dict)
    nll: float | None = None  # mean negative log-likelihood of the right class, of a classifier
    calibration_error: float | None = None  # of a classifier, in percent

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} %"


@dataclass(frozen=True)
class Epoch(Checked):
    """One epoch of a run. Seconds and samples of the two passes count from the first."""

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
    cpu_seconds: NonNegative = 0.0  # of all threads and ranks, without data workers


def epochs_text(epochs: Iterable[Epoch]) -> str:
    """Epochs as JSON, one per line."""
    return "".join(f"{as_line(epoch)}\n" for epoch in epochs)


def epochs_of(text: str) -> list[Epoch]:
    """The epochs in such a text. A ValueError if a line is not an epoch."""
    try:
        return [typed(Epoch, json.loads(line)) for line in text.splitlines()]
    except RecursionError:
        raise ValueError("a line is nested too deeply") from None


@dataclass(frozen=True)
class Hardware:
    """The machine: processor, cores, threads in use, and the device trained on."""

    cpu: str
    cores: int | None
    threads: int
    device: str
    gpu: str | None = None


@dataclass(frozen=True)
class Environment:
    """The environment of a run, without which a figure means nothing."""

    hardware: Hardware
    versions: dict[str, str]
    commit: str | None  # of the source, with a plus sign for local changes; None for an installed package


@dataclass(frozen=True)
class Samples(Checked):
    """The amount of data in a run."""

    train: PositiveCount
    test: PositiveCount
    classes: PositiveCount


@dataclass(frozen=True)
class Findings(Checked):
    """What a training says about its data: see :class:`ausam.audit.Verdict`."""

    kind: str
    sentences: tuple[str, ...]
    flagged: Count  # labels

    @property
    def unfitted(self) -> bool:
        """Whether the network has not fitted its data, or has diverged."""
        return self.kind in ("unfitted", "diverged")


@dataclass(frozen=True)
class Run(Record):
    """A finished run: its settings, score, cost and environment."""

    FORMAT = "run"

    method: str  # with the arguments that differ from the defaults
    policy: str  # likewise
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
    environment: Environment
    config: Config
    cpu_seconds: NonNegative = 0.0  # of training, all threads and ranks; 0 if not recorded
    steps: Count | None = None  # taken, without the skipped ones; None if not recorded
    best_epoch: PositiveCount | None = None  # whose weights were kept, if held-out samples selected it
    audit: Findings | None = None  # None if the losses say nothing about labels

    @property
    def pair(self) -> str:
        """Its method and its policy, unless that takes every sample."""
        return self.method if self.policy == "Full()" else f"{self.method} + {self.policy}"

    @property
    def idle(self) -> bool:
        """Whether every step was skipped, so nothing was learnt."""
        return self.steps == 0
