"""The recipes of the paper's tables: TOML files, read into blocks, rows and cells."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ausam_lab.config import Config
from ausam_lab.data.catalogue import resolve
from ausam_lab.experiments.cells import Cell
from ausam_lab.names.from_config import configured, typed_settings
from ausam_lab.names.lookup import find
from ausam_lab.names.pairs import FULL
from ausam_lab.paper import catalogue
from ausam_lab.records.store import typed

catalogue.register()  # recipes name the paper's networks and data

FOLDER = Path(__file__).parent / "recipes"
SCALES = ("paper", "small", "laptop")  # the last has files of its own: TABLE.laptop.toml
OF_ROWS = "settings_of"  # in the small settings: those of single rows

Settings = dict[str, Any]


class RecipeRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of a block: a named pair, and the paper's figures for it."""

    name: str
    score: float | None = None
    std: float | None = None
    speed: float | None = None
    note: int | None = None  # of the recipe's notes: where the paper took the figures from
    parts: dict[str, float] = {}  # the figures that the score averages


class Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network on a data set: the columns of the table that share their settings."""

    name: Annotated[str, msgspec.Meta(pattern=r"^\w[\w.+-]{0,99}\Z")]  # of its folder, too
    column: str
    group: str = ""  # its heading in the table
    settings: Settings = {}  # of all rows
    settings_of: dict[str, Settings] = {}  # of single rows; they override the common ones
    small: Settings = {}  # what the small scale changes
    rows: tuple[RecipeRow, ...] = ()
    extra: tuple[str, ...] = ()  # rows that the paper does not have

    def __post_init__(self) -> None:
        if not self.rows and not self.extra:
            raise ValueError(f'block "{self.name}" has no rows')

    @property
    def title(self) -> str:
        """Its position in the paper's table."""
        return " on ".join(filter(None, (self.group, self.column)))

    @property
    def names(self) -> list[str]:
        """The pairs to run, without duplicates."""
        return list(dict.fromkeys(row.name for row in self.rows))


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table: as it is written, and after :func:`read` at one scale, with all settings in its blocks."""

    title: str
    seeds: Annotated[int, msgspec.Meta(ge=1, le=10_000)]  # runs of each row
    blocks: tuple[Block, ...] = msgspec.field(name="block")
    metric: str = "accuracy"  # the score, in percent
    notes: dict[str, str] = {}
    deviations: tuple[str, ...] = ()  # from the paper, for the reader of the table
    settings: Settings = {}
    settings_of: dict[str, Settings] = {}
    small: Settings | None = None
    table: str = ""  # its name, or the path of the user's own
    scale: str = ""  # empty if there is only one

    def __post_init__(self) -> None:
        if not self.blocks or len({block.name for block in self.blocks}) < len(self.blocks):
            raise ValueError("it needs at least one [[block]], each with a name of its own")

    @property
    def folder(self) -> str:
        """The default name of its folder."""
        return "-".join(filter(None, (Path(self.table).stem, self.scale)))


def files() -> dict[str, Path]:
    """The names of all recipes."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml")) if "." not in path.stem}


def read(table: str, scale: str = "", seeds: int | None = None) -> Recipe:
    """The recipe of a table.

    Arguments:
        table: the name of the table, or the path of your own recipe, FILE.toml.
        scale: one of SCALES, the first if empty. Must be empty for a recipe that has only one.
        seeds: runs of each row, instead of the recipe's.
    """
    path = Path(table) if table.endswith(".toml") else find("table", table, files())
    of_scale = path.with_suffix(f".{scale or SCALES[0]}.toml")
    written = _written(of_scale if of_scale.exists() else path)
    if written.small is not None:
        scale = scale or SCALES[0]
        if scale not in SCALES[:2]:
            raise ValueError(f'scale is "{scale}", but {path.stem} has only paper and small. Use one of them.')
    elif scale and not of_scale.exists():
        raise ValueError(f'scale is "{scale}", but {path.stem} has only one scale. Leave out --scale.')
    blocks = tuple(_at_scale(block, written, scale) for block in written.blocks)
    name = table if table.endswith(".toml") else path.stem
    return msgspec.structs.replace(written, table=name, scale=scale, seeds=seeds or written.seeds, blocks=blocks)


def _written(path: Path) -> Recipe:
    if path.exists() and not path.is_file():  # a pipe would wait for its writer
        raise ValueError(f"{path} is not a regular file. Give the path of a recipe.")
    try:
        return typed(Recipe, tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}. Give the path of a recipe.") from None
    except ValueError as error:
        raise ValueError(f"{path} is not a recipe: {error}. See the recipes in {FOLDER}.") from None


def _at_scale(block: Block, recipe: Recipe, scale: str) -> Block:
    """The block with its whole settings: those of all blocks, then its own, then the small ones. A later one wins."""
    layers = [part.settings | {OF_ROWS: part.settings_of} for part in (recipe, block)]
    if scale == "small":
        layers += [recipe.small or {}, block.small]
    settings: Settings = {}
    settings_of: dict[str, Settings] = {}
    for layer in layers:
        settings |= {key: value for key, value in layer.items() if key != OF_ROWS}
        for row, own in typed(dict[str, Settings], layer.get(OF_ROWS, {})).items():
            settings_of[row] = settings_of.get(row, {}) | own
    rows = (*block.rows, *map(RecipeRow, block.extra))
    if strange := settings_of.keys() - {row.name for row in rows}:
        raise ValueError(f"{block.name} has settings of {min(strange)}, which is not one of its rows.")
    whole = {
        "settings": typed_settings(settings),
        "settings_of": {k: typed_settings(v) for k, v in settings_of.items()},
    }
    return msgspec.structs.replace(block, **whole, small={}, rows=rows, extra=())


def base(block: Block, **here: Any) -> Config:
    """The settings that the rows of a block share. ``here`` has those of the machine (data_dir, threads, device)."""
    return resolve(**block.settings | here)


def cells(recipe: Recipe, **here: Any) -> list[Cell]:
    """All runs of a table, with seeds in the outer loop so that early results cover every row.

    If a block has a full-precision row, its other rows start from the weights of that row, or from ``init`` if given.
    """
    planned: list[Cell] = []
    for seed in range(recipe.seeds):
        for block in recipe.blocks:
            shared = base(block, **here)
            first: Cell | None = None
            for name in block.names:
                if name == FULL and shared.init:
                    continue
                config = configured(name, shared, rho_given="rho" in block.settings)
                own = block.settings_of.get(name, {})
                planned.append(Cell(block.name, name, replace(config, seed=seed, **own), first))
                if name == FULL:
                    first = planned[-1]
    return planned


def chosen(cells: list[Cell], patterns: list[str]) -> list[Cell]:
    """The cells that match a pattern, each after the one that it starts from. All cells without patterns."""
    matching = [c for c in cells if not patterns or any(c.matches(p) for p in patterns)]
    if not matching:
        blocks, names = (", ".join(dict.fromkeys(getattr(c, k) for c in cells)) for k in ("block", "name"))
        raise ValueError(
            f"No cell matches --only {' '.join(patterns)}. Use a block ({blocks}), a row ({names}), or BLOCK/ROW; "
            "* matches anything."
        )
    return list(dict.fromkeys(c for cell in matching for c in (cell.first, cell) if c is not None))
