"""The recipes of the paper's tables and of the equal-cost benchmark: TOML files, read into blocks, rows and cells."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ausam_lab.config import Config
from ausam_lab.data.catalogue import resolve
from ausam_lab.experiments.cells import Cell
from ausam_lab.paper import catalogue
from ausam_lab.registry.from_config import configured
from ausam_lab.registry.lookup import find
from ausam_lab.registry.pair_table import FULL

catalogue.register()  # recipes name the paper's networks and data

FOLDER = Path(__file__).parent / "recipes"
SCALES = ("paper", "small")
OF_ROWS = "settings_of"  # the one table with settings of single rows, by name or pattern
SHARED_KEYS = {"settings", OF_ROWS, "small", "budget", "seeds", "tuning", "margin"}  # of a recipe and of a block
RECIPE_KEYS = SHARED_KEYS | {"title", "metric", "notes", "deviations", "block"}
BLOCK_KEYS = SHARED_KEYS | {"name", "group", "column", "rows", "extra", "without", "primary"}


@dataclass(frozen=True)
class RecipeRow:
    """A row of a block: a named pair, and the paper's figures for it or its place in a budget."""

    name: str
    score: float | None = None
    std: float | None = None
    speed: float | None = None
    note: str = ""  # a key of the recipe's notes: where the paper took the figures from
    parts: dict[str, float] = field(default_factory=dict)  # the figures that the score averages
    budget: float | None = None  # at equal cost: the fraction of SAM's samples that it may use
    control: bool = False  # its choice of samples does not depend on scores
    label: str = ""  # its name in the table; empty: that of the pair
    twin: str = ""  # of a contender: the row with as many samples, drawn at random
    sgd: str = ""  # of a contender: the base optimizer of its budget


@dataclass(frozen=True)
class Block:
    """A network on a data set: the columns of the table that share their settings."""

    name: str
    group: str  # its heading in the table
    column: str
    settings: dict[str, Any]  # of all rows
    settings_of: dict[str, dict[str, Any]]  # of single rows; they override the common ones
    rows: tuple[RecipeRow, ...]
    seeds: int  # runs of each row
    tuning: str = ""  # which settings were tuned, and on what
    primary: str = ""  # at equal cost: the contender whose difference from its twin is the question
    margin: float = 0.0  # scores whose difference is within it are level

    @property
    def title(self) -> str:
        """Its position in the paper's table."""
        return " on ".join(filter(None, (self.group, self.column)))

    @property
    def names(self) -> list[str]:
        """The pairs to run, without duplicates."""
        return list(dict.fromkeys(row.name for row in self.rows))


@dataclass(frozen=True)
class Recipe:
    """A table at one scale."""

    table: str
    scale: str  # empty if there is only one
    title: str
    notes: dict[str, str]
    blocks: tuple[Block, ...]
    metric: str = "accuracy"  # the score, in percent
    tuning: str = ""  # of all blocks
    deviations: tuple[str, ...] = ()  # from the paper, for the reader of the table

    @property
    def equal_cost(self) -> bool:
        """Whether its rows have budgets, rather than figures of the paper."""
        return any(row.budget is not None for block in self.blocks for row in block.rows)

    @property
    def folder(self) -> str:
        """The default name of its folder."""
        return "-".join(filter(None, (Path(self.table).stem, self.scale)))


def files() -> dict[str, Path]:
    """The names of all recipes."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"))}


def read(table: str, scale: str = "", seeds: int | Mapping[str, int] | None = None) -> Recipe:
    """The recipe of a table.

    Arguments:
        table: the name of the table, or the path of your own recipe, FILE.toml.
        scale: one of SCALES, the first if empty; must be empty for a recipe without small settings.
        seeds: runs of each row, or the same by block, instead of the recipe's.
    """
    path = Path(table) if table.endswith(".toml") else find("table", table, files())
    content = _content(path)
    _check_keys(f"The recipe {path.stem}", content, RECIPE_KEYS)
    if "small" in content:
        find("scale", scale := scale or SCALES[0], dict.fromkeys(SCALES))
    elif scale:
        raise ValueError(f'scale is "{scale}", but {path.stem} has only one scale. Leave out --scale.')
    blocks = tuple(_block(block, content, scale) for block in content["block"])
    if seeds is not None:
        own = dict.fromkeys((b.name for b in blocks), seeds) if isinstance(seeds, int) else seeds
        blocks = tuple(replace(block, seeds=own.get(block.name, block.seeds)) for block in blocks)
    return Recipe(
        table if table.endswith(".toml") else path.stem,
        scale,
        content["title"],
        content.get("notes", {}),
        blocks,
        content.get("metric", "accuracy"),
        content.get("tuning", ""),
        tuple(content.get("deviations", ())),
    )


def _content(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}. Give the path of a recipe.") from None
    except ValueError as error:
        raise ValueError(f"{path} is not TOML: {error}.") from None


def _block(block: dict[str, Any], content: dict[str, Any], scale: str) -> Block:
    name = block["name"]
    _check_keys(f"The block {name}", block, BLOCK_KEYS)
    settings, settings_of = _settings(block, content, scale)
    rows = [_row(row) for row in block.get("rows", [])]
    rows += [RecipeRow(extra) for extra in block.get("extra", [])]
    rows += _budget_rows(content.get("budget", {}), block.get("budget", {}))
    without = {row for key in block.get("without", []) for row in _matching(name, "leaves out", key, rows)}
    rows = [row for row in rows if row.name not in without]
    of_row: dict[str, dict[str, Any]] = {}
    for key, own in settings_of.items():
        for row_name in _matching(name, "has settings of", key, rows):
            of_row[row_name] = of_row.get(row_name, {}) | own
    for row in rows:
        for beside in {row.twin, row.sgd} - {"", *(other.name for other in rows)}:
            raise _unknown(name, f"compares {row.name} with", beside)
    if (primary := block.get("primary", "")) and not any(row.name == primary and row.twin for row in rows):
        raise ValueError(f"The primary row of {name}, {primary}, must be one of its rows and have a twin.")
    return Block(
        name,
        block.get("group", ""),
        block["column"],
        settings,
        of_row,
        tuple(rows),
        block.get("seeds", content["seeds"]),
        block.get("tuning", ""),
        primary,
        block.get("margin", content.get("margin", 0.0)),
    )


def _settings(block: dict[str, Any], content: dict[str, Any], scale: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of all rows, and of single rows by name: those of all blocks, then the block's, then the small."""
    layers = [part.get("settings", {}) | {OF_ROWS: part.get(OF_ROWS, {})} for part in (content, block)]
    if scale == "small":
        layers += [content["small"], block["small"]]
    settings: dict[str, Any] = {}
    settings_of: dict[str, Any] = {}
    for layer in layers:
        settings |= {key: value for key, value in layer.items() if key != OF_ROWS}
        for row, own in layer.get(OF_ROWS, {}).items():
            settings_of[row] = settings_of.get(row, {}) | own
    return settings, settings_of


def _row(row: dict[str, Any]) -> RecipeRow:
    _check_keys(f"The row {row.get('name', '')}", row, {f.name for f in fields(RecipeRow)} - {"budget", "control"})
    return RecipeRow(**row | {"note": str(row.get("note", ""))})


def _check_keys(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a key that would have no effect."""
    if strange := set(given) - set(known):
        raise ValueError(f"{what} has {min(strange)}, which is unknown. It may have {', '.join(sorted(known))}.")


def _matching(block: str, does: str, key: str, rows: list[RecipeRow]) -> list[str]:
    """The rows that a name or a pattern (``sgd*``) stands for; one that stands for none is refused."""
    names = list(dict.fromkeys(row.name for row in rows))
    found = [key] if key in names else fnmatch.filter(names, key)  # a row's own name may have a *
    if not found:
        raise _unknown(block, does, key)
    return found


def _unknown(block: str, does: str, row: str) -> ValueError:
    return ValueError(f"{block} {does} {row}, which is not one of its rows.")


def _budget_rows(shared: dict[str, Any], own: dict[str, Any]) -> list[RecipeRow]:
    """The controls and contenders of each budget: first those of all blocks, then the block's own."""
    rows = []
    for budget in sorted({*shared, *own}, key=float):
        both = shared.get(budget, {}), own.get(budget, {})
        sgd = both[1].get("sgd", both[0].get("sgd", ""))
        for kind in ("controls", "contenders"):
            for row in (*both[0].get(kind, []), *both[1].get(kind, [])):
                given = _row({"name": row} if isinstance(row, str) else row)
                beside = "" if kind == "controls" else given.sgd or sgd
                rows.append(replace(given, sgd=beside, budget=float(budget), control=kind == "controls"))
    return rows


def base(block: Block, **here: Any) -> Config:
    """The settings that the rows of a block share; ``here`` has those of the machine (data_dir, threads, device).

    A finished run keeps its weights alone, unless the recipe says otherwise: a table has hundreds of runs.
    """
    return resolve(**{"keep": "weights"} | block.settings | here)


def cells(recipe: Recipe, **here: Any) -> list[Cell]:
    """All runs of a table, with seeds in the outer loop so that early results cover every row.

    If a block has a full-precision row, its other rows start from the weights of that row, or from ``init`` if given.
    """
    planned: list[Cell] = []
    for seed in range(max(block.seeds for block in recipe.blocks)):
        for block in (block for block in recipe.blocks if seed < block.seeds):
            shared = base(block, **here)
            first: Cell | None = None
            for name in block.names:
                if name == FULL and shared.init:
                    continue
                config = configured(name, shared, rho_given="rho" in block.settings)
                own = dict(block.settings_of.get(name, {}))
                if name == FULL and config.keep == "none":
                    own["keep"] = "weights"  # the others start from them
                planned.append(Cell(block.name, name, replace(config, seed=seed, **own), first))
                if name == FULL:
                    first = planned[-1]
    return planned


def chosen(cells: list[Cell], patterns: list[str]) -> list[Cell]:
    """The cells that match a pattern, each after the one that it starts from; all cells without patterns."""
    matching = [c for c in cells if not patterns or any(c.matches(p) for p in patterns)]
    if not matching:
        blocks, names = (", ".join(dict.fromkeys(getattr(c, k) for c in cells)) for k in ("block", "name"))
        raise ValueError(
            f"No cell matches --only {' '.join(patterns)}. Use a block ({blocks}), a row ({names}), or BLOCK/ROW; "
            "* matches anything."
        )
    return list(dict.fromkeys(c for cell in matching for c in (cell.first, cell) if c is not None))
