"""The record of a table: the paper's figures next to ours."""

from __future__ import annotations

from dataclasses import dataclass, field

from ausam.common.settings import Count
from ausam_lab.records.comparison import Row
from ausam_lab.records.store import Record


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
class PaperTable(Record):
    """A table of the paper next to ours."""

    FORMAT = "table"

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
