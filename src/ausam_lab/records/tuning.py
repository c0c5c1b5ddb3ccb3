"""The record of a search for settings."""

from __future__ import annotations

from dataclasses import dataclass

from ausam.common.settings import Positive, PositiveCount
from ausam_lab.config import Config
from ausam_lab.records.comparison import Row
from ausam_lab.records.store import Checked, Record


@dataclass(frozen=True)
class Trial(Checked):
    """Values of the tuned settings, and their score on held-out samples."""

    settings: dict[str, float]
    row: Row | None  # None if a run failed
    cost: Positive | None = None  # the fraction of SAM's samples that it used
    failed: str = ""  # why


@dataclass(frozen=True)
class Round(Checked):
    """Trials trained for the same number of epochs, best first."""

    epochs: PositiveCount
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Tuning(Record):
    """A search by successive halving, up to now."""

    FORMAT = "tuning"

    command: str
    created: str
    config: Config  # common to all runs, at full length
    seeds: tuple[int, ...]
    rounds: tuple[Round, ...]
