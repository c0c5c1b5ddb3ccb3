"""Comparisons: several pairs with several seeds each, on one problem, side by side."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ausam.lab.config import Config
from ausam.lab.experiments.layout import run_folder
from ausam.lab.problems.catalogue import changes
from ausam.lab.records import files
from ausam.lab.records import results as records
from ausam.lab.records.results import Comparison, CurvePoint, Epoch, NamedRun
from ausam.lab.registry.from_config import configured, method_and_policy
from ausam.lab.registry.pairs import label, spelling
from ausam.lab.report import statistics
from ausam.lab.report.pages import comparison as page
from ausam.lab.report.runs_csv import runs_csv
from ausam.lab.training.environment import environment
from ausam.lab.training.logs import NO_LOGS, Logs
from ausam.lab.training.loop import train
from ausam.lab.training.run_folder import epochs, finished

OnEpoch = Callable[[str, int, Epoch], None]


def compare(
    names: list[str],
    seeds: list[int],
    config: Config,
    out: Path,
    command: str,
    on_epoch: OnEpoch,
    logs: Logs = NO_LOGS,
) -> Comparison:
    """Run what is missing in ``out``, write results.json, results.csv and report.html, and return the results.

    The runs of a seed take turns, one epoch each, so that a noisy machine affects all alike. Everything resumes from
    ``out``: interrupt it at any time and call it again.
    """
    names = list(dict.fromkeys(spelling(name) for name in names))
    for name in names:
        method_and_policy(configured(name, config), steps=1)  # refuses impossible pairs before anything runs
    for seed in seeds:
        turns = {name: _run(name, seed, config, out, on_epoch, logs) for name in names}
        shuffle = random.Random(seed)
        while turns:
            for name in shuffle.sample(list(turns), len(turns)):
                if next(turns[name], None) is None:
                    del turns[name]
        results = write(collect(names, seeds, config, out, command), out)
    return results


def _run(name: str, seed: int, config: Config, out: Path, on_epoch: OnEpoch, logs: Logs) -> Iterator[Epoch]:
    place = run_folder(out, name, seed)
    here = logs.of(str(place.relative_to(out / "runs")))
    for epoch in train(replace(configured(name, config), seed=seed), place, resume=True, logs=here):
        on_epoch(name, seed, epoch)
        yield epoch


def collect(names: list[str], seeds: list[int], config: Config, out: Path, command: str, title: str = "") -> Comparison:
    """The results of a comparison from the finished runs in ``out``."""
    places = [(name, run_folder(out, name, seed)) for name in names for seed in seeds]
    runs = [found for name, place in places if (found := named_run(name, place)) is not None]
    labels = [(name, label(name, config.base)) for name in names]
    return comparison(title or f"{config.data}{changes(config)}", command, seeds, config, labels, runs, len(places))


def named_run(name: str, place: Path) -> NamedRun | None:
    """The run in a folder under this name, with its learning curve; None if it is unfinished or damaged."""
    found = finished(place)
    return None if found is None else NamedRun(name, found, curve(place))


def comparison(
    title: str,
    command: str,
    seeds: list[int],
    config: Config,
    labels: list[tuple[str, str]],
    runs: list[NamedRun],
    expected: int,
) -> Comparison:
    """The record of these runs; ``labels`` are the name and the label of every row."""
    return Comparison(
        title=title,
        command=command,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        complete=len(runs) == expected,
        data=runs[0].run.data if runs else None,
        seeds=tuple(seeds),
        environment=runs[0].run.environment if runs else environment(config.device),
        config=config,
        rows=statistics.rows(labels, runs),
        runs=tuple(runs),
    )


def curve(place: Path) -> tuple[CurvePoint, ...]:
    """The learning curve of the run in a folder."""
    return tuple(CurvePoint(e.epoch, e.train_loss, e.test.value, e.seconds) for e in epochs(place))


def write(found: Comparison, out: Path) -> Comparison:
    """Write results.json, results.csv and report.html; return their record."""
    records.write(out / "results.json", found)
    files.write(out / "results.csv", runs_csv(("", named) for named in found.runs))
    page.write_report(found, out / "report.html")
    return found
