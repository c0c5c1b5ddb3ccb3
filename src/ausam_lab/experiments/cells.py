"""The runs of a group as data: each has a folder of its own, which is the only state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import quote, unquote

from ausam_lab.config import Config

SAFE = "+@(),=-. "  # signs that any file system takes


def run_folder(out: Path, name: str, seed: int) -> Path:
    """The folder of the run of a pair and a seed."""
    return out / "runs" / quote(name, safe=SAFE) / f"seed-{seed}"


def pair_of(folder: str) -> str:
    """The pair whose runs are in a folder of this name."""
    return unquote(folder)


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
