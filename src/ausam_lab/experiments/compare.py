"""Comparisons: several pairs with several seeds each, on one problem, side by side."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from ausam_lab.config import Config
from ausam_lab.data.catalogue import changes
from ausam_lab.experiments.cells import run_folder
from ausam_lab.names.from_config import configured
from ausam_lab.names.pairs import pair
from ausam_lab.records import files, store
from ausam_lab.records.comparison import Comparison, CurvePoint, NamedRun
from ausam_lab.records.run import Epoch
from ausam_lab.report import statistics
from ausam_lab.report.pages import comparison as page
from ausam_lab.training.loop import train
from ausam_lab.training.run_folder import epochs, finished

OnEpoch = Callable[[str, int, Epoch], None]

GIVEN = "given"  # in place of a file of labels: the labels as they are


def rows(
    names: Sequence[str], config: Config, files: Sequence[str] = (), *, rho_given: bool = True
) -> dict[str, Config]:
    """The settings of each row by its name: of each pair, and again with each file of labels after the first.

    ``rho_given``: as for :func:`ausam_lab.names.from_config.configured`.
    """
    runs = {pair(name).name: configured(name, config, rho_given=rho_given) for name in names}
    if len(files) < 2:
        return runs
    if len(set(files)) < len(files):
        raise ValueError(f"--labels {' '.join(files)}: a file is there twice. Leave out one of them.")
    first, *others = files
    return {name: replace(run, label=f"{run.label} ({_words(first)})") for name, run in runs.items()} | {
        f"{name}, {file}": replace(run, labels=labels_of(file), label=f"{run.label} ({_words(file)})", kind="corrected")
        for file in others
        for name, run in runs.items()
    }


def labels_of(file: str) -> str:
    """The setting for a file of labels, or for the word that stands for none."""
    return "" if file == GIVEN else file


def _words(file: str) -> str:
    return "labels as given" if file == GIVEN else file


def compare(
    runs: Mapping[str, Config],
    seeds: list[int],
    config: Config,
    out: Path,
    command: str,
    on_epoch: OnEpoch,
) -> Comparison:
    """Run what is missing in ``out``, write results.json and report.html, and return the results.

    The runs of a seed take turns in random order, one epoch each, so that a noisy machine affects all alike. Everything
    resumes from ``out``: interrupt it at any time and call it again.

    Arguments:
        runs: the settings of each pair, by its name (:func:`ausam_lab.names.from_config.configured`).
        seeds: the seeds of each pair, at least one.
        config: the settings that the pairs share.
        out: the folder.
        command: the command that the user typed.
        on_epoch: called with the name, the seed and the figures of each epoch.
    """
    for seed in seeds:
        turns = {name: _run(name, replace(run, seed=seed), out, on_epoch) for name, run in runs.items()}
        shuffle = random.Random(seed)
        while turns:
            for name in shuffle.sample(list(turns), len(turns)):
                if next(turns[name], None) is None:
                    del turns[name]
        results = write(collect(list(runs), seeds, config, out, command), out)
    return results


def _run(name: str, config: Config, out: Path, on_epoch: OnEpoch) -> Iterator[Epoch]:
    for epoch in train(config, run_folder(out, name, config.seed), resume=True):
        on_epoch(name, config.seed, epoch)
        yield epoch


def collect(names: list[str], seeds: list[int], config: Config, out: Path, command: str, title: str = "") -> Comparison:
    """The results of a comparison from the finished runs in ``out``."""
    runs = []
    for name in names:
        for folder in (run_folder(out, name, seed) for seed in seeds):
            if (run := finished(folder)) is not None:
                curve = (CurvePoint(e.epoch, e.train_loss, e.test.value, e.seconds) for e in epochs(folder))
                runs.append(NamedRun(name, run, tuple(curve)))
    labels = {run.name: run.run.config.label for run in runs}
    return Comparison(
        title=title or f"{config.data}{changes(config)}",
        command=command,
        created=store.now(),
        complete=len(runs) == len(names) * len(seeds),
        seeds=tuple(seeds),
        config=config,
        rows=statistics.rows(list(labels.items()), runs),
        runs=tuple(runs),
    )


def write(results: Comparison, out: Path) -> Comparison:
    """Write results.json and report.html. Return their record."""
    store.write(out / "results.json", results)
    files.write(out / "report.html", page.render(results, links(results, out)))
    return results


def links(results: Comparison, out: Path) -> dict[tuple[str, int], str]:
    """Where report.html leads for each run that is beside it: to its audit page, or else to its folder."""
    found = {}
    for named in results.runs:
        folder = run_folder(out, named.name, named.run.seed)
        if folder.is_dir():
            page = "audit.html" if (folder / "audit.html").exists() else ""
            found[named.name, named.run.seed] = f"{quote(folder.relative_to(out).as_posix())}/{page}"
    return found
