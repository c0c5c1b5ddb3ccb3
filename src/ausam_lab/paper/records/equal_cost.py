"""The record of the benchmark at equal cost."""

from __future__ import annotations

from dataclasses import dataclass

from ausam.common.settings import Count, Positive
from ausam_lab.records.comparison import Difference, Row
from ausam_lab.records.store import Checked, Record


@dataclass(frozen=True)
class BudgetEntry(Checked):
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
    entries: tuple[BudgetEntry, ...]
    primary: str = ""  # the contender whose difference from its twin was named before anything ran
    margin: float = 0.0  # scores whose difference is within it are level; 0: never


@dataclass(frozen=True)
class EqualCost(Record):
    """Several problems, each under several budgets: what each budget buys."""

    FORMAT = "equal-cost"

    table: str
    title: str
    command: str
    created: str
    runs: Count  # that the whole benchmark has
    missing: Count
    tuning: str
    problems: tuple[BudgetProblem, ...]
