"""Several pairs times several seeds on one problem, side by side."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ausam.lab import conditions, files, report
from ausam.lab.config import Config
from ausam.lab.pairs import configured, method_and_policy, pair
from ausam.lab.results import table
from ausam.lab.train import Row, train

OnEpoch = Callable[[str, int, Row], None]


def compare(
    names: list[str], seeds: list[int], config: Config, out: Path, command: str, on_epoch: OnEpoch
) -> dict[str, Any]:
    """Run what is missing in ``out`` and write results.json and report.html; returns the results.

    The runs of a seed take turns, an epoch each, so that a noisy machine disturbs all alike. Everything is resumed from
    ``out``: interrupt it at any time and call it again.
    """
    names = list(dict.fromkeys(name.lower() for name in names))
    for name in names:
        method_and_policy(configured(name, config), steps=1)  # refuses what cannot work before anything has run
    for seed in seeds:
        turns = {name: _run(name, seed, config, out, on_epoch) for name in names}
        shuffle = random.Random(seed)
        while turns:
            for name in shuffle.sample(list(turns), len(turns)):
                if next(turns[name], None) is None:
                    del turns[name]
        _write(names, seeds, config, out, command)
    return _write(names, seeds, config, out, command)


def _run(name: str, seed: int, config: Config, out: Path, on_epoch: OnEpoch) -> Iterator[Row]:
    for row in train(replace(configured(name, config), seed=seed), run_folder(out, name, seed), resume=True):
        on_epoch(name, seed, row)
        yield row


def run_folder(out: Path, name: str, seed: int) -> Path:
    """Where the run of a pair and a seed lies."""
    return out / "runs" / name.replace("*", "star") / f"seed-{seed}"


def _write(names: list[str], seeds: list[int], config: Config, out: Path, command: str) -> dict[str, Any]:
    found = []
    for name in names:
        for seed in seeds:
            folder = run_folder(out, name, seed)
            if (result := files.read_json(folder / "result.json")) is not None:
                lines = (folder / "metrics.jsonl").read_text().splitlines()
                keys = ("epoch", "train_loss", "test_accuracy", "seconds")
                curve = [{k: row[k] for k in keys} for row in map(json.loads, lines)]
                found.append({**result, "name": name, "curve": curve})
    noise = f", {100 * config.label_noise:g} % wrong labels" if config.label_noise else ""
    shared = {"method", "policy", "rho", "alpha", "seed"}  # what differs by run is in its row
    per_run = ("config", "versions", "hardware", "commit", "data")
    results = {
        "version": 1,
        "title": f"{config.data}{noise}",
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "complete": len(found) == len(names) * len(seeds),
        "data": {"name": config.data, "label_noise": config.label_noise, **(found[0]["data"] if found else {})},
        "conditions": {
            "hardware": found[0]["hardware"] if found else conditions.hardware(config.device),
            "versions": found[0]["versions"] if found else conditions.versions(),
            "commit": found[0]["commit"] if found else conditions.commit(),
            "seeds": seeds,
            "config": {k: v for k, v in asdict(config).items() if k not in shared} | {"rho": config.rho},
        },
        "rows": table([(name, pair(name)[0].label) for name in names], found),
        "runs": [{k: v for k, v in r.items() if k not in per_run} for r in found],
    }
    files.write_json(out / "results.json", results)
    report.write_report(results, out / "report.html")
    return results
