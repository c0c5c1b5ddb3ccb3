"""Several pairs times several seeds on one problem, side by side."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ausam.lab.config import Config
from ausam.lab.experiments.layout import run_folder
from ausam.lab.io import files
from ausam.lab.registry.pairs import configured, label, method_and_policy
from ausam.lab.report import csv, page
from ausam.lab.report.results import NUMBER, read, table
from ausam.lab.training import environment
from ausam.lab.training.loop import Row, train
from ausam.lab.training.tensorboard import logged

OnEpoch = Callable[[str, int, Row], None]


def compare(
    names: list[str],
    seeds: list[int],
    config: Config,
    out: Path,
    command: str,
    on_epoch: OnEpoch,
    tensorboard: bool = False,
) -> dict[str, Any]:
    """Run what is missing in ``out`` and write results.json, results.csv and report.html; returns the results.

    The runs of a seed take turns, an epoch each, so that a noisy machine disturbs all alike. Everything is resumed from
    ``out``: interrupt it at any time and call it again.
    """
    names = list(dict.fromkeys(name.lower() for name in names))
    for name in names:
        method_and_policy(configured(name, config), steps=1)  # refuses what cannot work before anything has run
    for seed in seeds:
        turns = {name: _run(name, seed, config, out, on_epoch, tensorboard) for name in names}
        shuffle = random.Random(seed)
        while turns:
            for name in shuffle.sample(list(turns), len(turns)):
                if next(turns[name], None) is None:
                    del turns[name]
        write(collect(names, seeds, config, out, command), out)
    return write(collect(names, seeds, config, out, command), out)


def _run(name: str, seed: int, config: Config, out: Path, on_epoch: OnEpoch, tensorboard: bool) -> Iterator[Row]:
    folder = run_folder(out, name, seed)
    rows = train(replace(configured(name, config), seed=seed), folder, resume=True)
    if tensorboard:
        rows = logged(rows, folder, out / "tensorboard" / folder.relative_to(out / "runs"))
    for row in rows:
        on_epoch(name, seed, row)
        yield row


def collect(
    names: list[str], seeds: list[int], config: Config, out: Path, command: str, title: str = ""
) -> dict[str, Any]:
    """The results of a comparison from the runs that lie in ``out``, as far as they are finished."""
    found = []
    for name in names:
        for seed in seeds:
            folder = run_folder(out, name, seed)
            if (result := read(folder)) is not None:
                found.append({**result, "name": name, "curve": curve(folder)})
    noise = f", {100 * config.label_noise:g} % wrong labels" if config.label_noise else ""
    shared = {"method", "policy", "rho", "alpha", "seed"}  # what differs by run is in its row
    return {
        "version": 1,
        "title": title or f"{config.data}{noise}",
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "complete": len(found) == len(names) * len(seeds),
        "data": {"name": config.data, "label_noise": config.label_noise, **(found[0]["data"] if found else {})},
        "conditions": {
            "hardware": found[0]["hardware"] if found else environment.hardware(config.device),
            "versions": found[0]["versions"] if found else environment.versions(),
            "commit": found[0]["commit"] if found else environment.commit(),
            "seeds": seeds,
            "config": {k: v for k, v in asdict(config).items() if k not in shared} | {"rho": config.rho},
        },
        "rows": table([(name, label(name, config.base)) for name in names], found),
        "runs": found,
    }


def curve(folder: Path) -> list[Row]:
    """The learning curve of a run."""
    keys = ("epoch", "train_loss", "test_accuracy", "seconds")
    rows = files.read_rows(folder / "metrics.jsonl")
    return [{k: row[k] for k in keys} for row in rows if all(isinstance(row.get(k), NUMBER) for k in keys)]


def write(results: dict[str, Any], out: Path) -> dict[str, Any]:
    """Write results.json, results.csv and report.html; returns what the JSON holds."""
    per_run = ("config", "versions", "hardware", "commit", "data")
    short = results | {"runs": [{k: v for k, v in r.items() if k not in per_run} for r in results["runs"]]}
    files.write_json(out / "results.json", short)
    files.write(out / "results.csv", csv.csv_text(results["runs"]))
    page.write_report(short, out / "report.html")
    return short
