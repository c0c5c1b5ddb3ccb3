"""Pages, tables and CSV anew from the runs in a folder, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ausam.lab.config import Config
from ausam.lab.experiments import compare, recipe, reproduce
from ausam.lab.experiments.layout import pair_of
from ausam.lab.io import files
from ausam.lab.registry.pairs import PAIRS
from ausam.lab.report import tables
from ausam.lab.report.results import read_finished, table
from ausam.lab.report.summary import headline, text_table


def rebuild(folder: Path) -> str:
    """Write everything that can be made of the results in this folder; returns the table as text.

    The folder of ``ausam reproduce``, of ``ausam compare`` or of a single run.
    """
    try:
        return _rebuilt(folder, files.read_json(folder / "results.json") or {})
    except (AttributeError, TypeError, LookupError) as error:
        raise ValueError(
            f"The results in {folder} are not as ausam writes them ({type(error).__name__}: {error!s:.80}). Remove "
            "results.json there, or give the command that made it again."
        ) from error


def _rebuilt(folder: Path, old: dict[str, Any]) -> str:
    if "table" in old:
        if not all(isinstance(seed, int) for seed in old["seeds"]):
            raise TypeError("seeds are whole numbers")
        found = recipe.read(old["table"], old["scale"])
        return tables.text(reproduce.write(found, folder, old["seeds"], old["command"]))
    if any(folder.glob("runs/*/seed-*/result.json")):
        return _shown(_comparison(folder, old), folder)
    if (folder / "result.json").exists():
        return _shown(_single(folder), folder)
    raise ValueError(
        f"{folder} holds no finished run. Give the folder (--out) of ausam reproduce, ausam compare or ausam train."
    )


def _shown(results: dict[str, Any], folder: Path) -> str:
    short = compare.write(results, folder)
    return f"{text_table(short)}\n\n{headline(short)}"


def _comparison(folder: Path, old: dict[str, Any]) -> dict[str, Any]:
    done = sorted(folder.glob("runs/*/seed-*/result.json"))
    there = {pair_of(path.parent.name) for path in folder.glob("runs/*/seed-*") if path.is_dir()}  # begun counts
    order = [row["name"] for row in old.get("rows", [])]
    order += [name for name in PAIRS if name not in order]
    names = sorted(there, key=lambda name: (order.index(name) if name in order else len(order), name))
    planned = (old.get("conditions") or {}).get("seeds", [])
    seeds = sorted({int(path.parent.name.removeprefix("seed-")) for path in done}.union(planned))
    shared = (old.get("conditions") or {}).get("config", {})
    config = Config(**read_finished(done[0].parent)["config"] | shared)
    return compare.collect(names, seeds, config, folder, old.get("command", ""), old.get("title", ""))


def _single(folder: Path) -> dict[str, Any]:
    result = read_finished(folder)
    config, name = result["config"], f"{result['method']} × {result['policy']}"
    run = {**result, "name": name, "curve": compare.curve(folder)}
    return {
        "version": 1,
        "title": f"{config['data']}: one run",
        "command": "",
        "created": None,
        "complete": True,
        "data": {"name": config["data"], "label_noise": config["label_noise"], **result["data"]},
        "conditions": {k: result[k] for k in ("hardware", "versions", "commit")}
        | {"seeds": [result["seed"]], "config": config},
        "rows": table([(name, name)], [run]),
        "runs": [run],
    }
