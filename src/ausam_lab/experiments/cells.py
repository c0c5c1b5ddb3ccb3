"""The runs of a group as data: each has a folder of its own, which is the only state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import quote, unquote

from ausam_lab.config import Config
from ausam_lab.records import store
from ausam_lab.records.comparison import Comparison

SAFE = "+@(),=-. "  # signs that any file system takes


def run_folder(out: Path, name: str, seed: int) -> Path:
    """The folder of the run of a pair and a seed."""
    return out / "runs" / quote(name, safe=SAFE) / f"seed-{seed}"


def pair_of(folder: str) -> str:
    """The pair whose runs are in a folder of this name."""
    return unquote(folder)


def runs_in(place: Path) -> list[tuple[str, Path]]:
    """The runs in a folder: name (empty for a single run) and folder, by seed and then as in the comparison's table."""
    if (place / "config.json").exists():
        return [("", place)]
    there = [p for p in place.glob("runs/*/seed-*") if p.name.removeprefix("seed-").isdigit()]
    if not there:
        raise ValueError(f"{place} holds no run. Pass the folder (--out) of ausam train or ausam compare.")
    compared = store.read(place / "results.json", Comparison)
    order = {row.name: i for i, row in enumerate(compared.rows)} if compared else {}
    runs = [(int(p.name.removeprefix("seed-")), pair_of(p.parent.name), p) for p in there]
    return [(name, p) for _, name, p in sorted(runs, key=lambda run: (run[0], order.get(run[1], len(order)), run[1]))]


@dataclass(frozen=True)
class Cell:
    """One run of a table or of a search."""

    block: str
    name: str
    config: Config
    first: Cell | None = None  # the full-precision run whose weights it starts from

    @property
    def id(self) -> str:
        """Its name, in messages and for --only."""
        return f"{self.block}/{self.name}/seed-{self.config.seed}"

    def folder(self, out: Path) -> Path:
        """The folder of its run."""
        return run_folder(out / self.block, self.name, self.config.seed)

    def placed(self, out: Path) -> Config:
        """Its settings, with the path of the initial weights in this folder."""
        return self.config if self.first is None else replace(self.config, init=str(self.first.folder(out)))

    def matches(self, pattern: str) -> bool:
        """Whether the pattern matches its block, its row, both or its full name."""
        names = (self.block, self.name, f"{self.block}/{self.name}", self.id)
        return any(pattern == name or fnmatchcase(name, pattern) for name in names)
