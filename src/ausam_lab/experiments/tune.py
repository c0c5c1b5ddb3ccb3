"""A short search for settings on held-out samples: successive halving over ordinary, resumable runs.

The values of all settings are combined into trials. In each round, every remaining trial is trained with every seed,
and the best third advances to the next round, which is three times as long (Jamieson and Talwalkar: Non-stochastic Best
Arm Identification and Hyperparameter Optimization, AISTATS 2016). Each round trains from scratch: a cosine schedule
must reach a learning rate of 0, so a run of one round cannot be the beginning of another.
"""

from __future__ import annotations

import itertools
import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from ausam_lab.config import NOT_PART_OF_IDENTITY, Config, differences
from ausam_lab.experiments.cells import Cell
from ausam_lab.experiments.compare import named_run
from ausam_lab.experiments.run_cells import Failed, OnEpoch, in_turn
from ausam_lab.records import files, store
from ausam_lab.records.tuning import Round, Trial, Tuning
from ausam_lab.registry.from_config import method_and_policy, refuse_idle
from ausam_lab.registry.lookup import find
from ausam_lab.report import statistics
from ausam_lab.report.pages import tuning
from ausam_lab.training import run_folder
from ausam_lab.training.logs import Logs

HELD_OUT = 0.2  # default fraction of the training samples
POLICY = "AUSampling"  # default: Full has nothing to search for
FACTOR = 3  # one in this many trials advances, to a round this many times as long
SHORTEST = 3  # epochs of a round

Values = Mapping[str, Sequence[float]]
Settings = dict[str, Any]  # one value per setting


def values(texts: Sequence[str], config: Config) -> dict[str, list[float]]:
    """``["rho=0.1,0.2", "alpha=0.5"]`` as numbers by setting; without texts, defaults for the method and policy."""
    if not texts:
        return _suggested(config)
    kinds = {name: kind for name, hint in typing.get_type_hints(Config).items() if (kind := _number(hint))}
    for name in ("seed", "epochs", "validation", *NOT_PART_OF_IDENTITY):
        kinds.pop(name, None)  # set by the search itself, or without effect on learning
    grid: dict[str, list[float]] = {}
    for text in texts:
        name, _, numbers = text.partition("=")
        name = name.strip().replace("-", "_")
        kind = find("number to search for", name, kinds)
        if name in grid:
            raise ValueError(f"--over {name} is given twice. Put all of its values in one: {name}=0.1,0.2.")
        try:
            grid[name] = list(dict.fromkeys(kind(number) for number in numbers.split(",")))
        except ValueError:
            whole = "whole numbers" if kind is int else "numbers"
            raise ValueError(f'--over "{text}": put {whole} after the name, e.g. {name}=1,2.') from None
    return grid


def _number(hint: Any) -> type[int] | type[float] | None:
    """The numeric type of a setting; None if it is not a number."""
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not type(None)]
    return kinds[0] if kinds in ([int], [float]) else None


def _suggested(config: Config) -> dict[str, list[float]]:
    method, policy = method_and_policy(config, steps=1)
    rho = getattr(method, "rho", None)
    grid = {} if rho is None else {"rho": [rho / 2, rho, 2 * rho]}
    if "alpha" in {f.name for f in fields(policy)}:  # type: ignore[arg-type]
        grid["alpha"] = [0.25, 0.5]
    if not grid:
        raise ValueError(f"{config.method} and {config.policy} have neither rho nor alpha. Name settings with --over.")
    return grid


def rounds(trials: int, epochs: int) -> list[tuple[int, int]]:
    """The number of trials and of epochs in each round; the last round has all epochs.

    >>> rounds(9, 30)
    [(9, 3), (3, 10), (1, 30)]
    >>> rounds(6, 30)
    [(6, 10), (2, 30)]
    """
    shorter = 0
    while FACTOR ** (shorter + 1) <= trials and round(epochs / FACTOR ** (shorter + 1)) >= SHORTEST:
        shorter += 1
    return [(math.ceil(trials / FACTOR**k), round(epochs / FACTOR ** (shorter - k))) for k in range(shorter + 1)]


def tune(
    over: Values,
    seeds: Sequence[int],
    config: Config,
    out: Path,
    command: str,
    epoch_callback: Callable[[int], OnEpoch],
    say: Callable[[str], None],
    logs: Logs,
) -> Tuning:
    """Search, running what is missing in ``out``; write tuning.json and its page after every round; return the record.

    Arguments:
        over: the values of each setting.
        seeds: the seeds of each trial.
        config: all other settings; ``validation`` is the fraction of the training samples to evaluate on.
        out: the folder; you can interrupt the search at any time, and the same call continues it.
        command: the command that the user typed.
        epoch_callback: called at the start of each round with its number of epochs; returns what to call with each.
        say: called with a line about each finished run.
        logs: additional logs for the epochs.
    """
    if not config.validation:
        raise ValueError("validation is 0, but a search needs held-out samples. Use --validation 0.2.")
    every: list[Settings] = [dict(zip(over, combined, strict=True)) for combined in itertools.product(*over.values())]
    for settings in every:
        method_and_policy(replace(config, **settings), steps=1)  # refuses impossible pairs before anything runs
        refuse_idle(settings, [replace(config, **settings)])
    _claim(out, config)
    done: list[Round] = []
    plan = rounds(len(every), config.epochs)
    if len(plan) == 1 and len(every) >= FACTOR:
        say(
            f"One round: a round has at least {SHORTEST} epochs and the next is {FACTOR} times as long, which takes "
            f"more than {config.epochs} epochs."
        )
    for count, epochs in plan:
        left = every if not done else [dict(trial.settings) for trial in done[-1].trials[:count]]
        done.append(_round(left, epochs, seeds, config, out, epoch_callback, say, logs))
        record = Tuning(command, store.now(), config, tuple(seeds), tuple(done))
        store.write(out / "tuning.json", record)
        files.write(out / "tuning.html", tuning.render(record))
    return record


def _claim(out: Path, config: Config) -> None:
    """Make the folder; refuse one that contains another search."""
    old = store.read(out / "tuning.json", Tuning)
    if old is not None:
        theirs, mine = (
            {k: v for k, v in asdict(c).items() if k not in NOT_PART_OF_IDENTITY} for c in (old.config, config)
        )
        if theirs != mine:
            raise ValueError(
                f"{out} contains another search: {'; '.join(differences(theirs, mine))}. Choose another --out."
            )
    run_folder.make(out)


def _round(
    left: Sequence[Settings],
    epochs: int,
    seeds: Sequence[int],
    config: Config,
    out: Path,
    epoch_callback: Callable[[int], OnEpoch],
    say: Callable[[str], None],
    logs: Logs,
) -> Round:
    """Train every trial with every seed; the record lists the trials by score."""
    cells = {
        (i, seed): Cell(f"{epochs}-epochs", called(settings), replace(_shortened(config, settings, epochs), seed=seed))
        for seed in seeds
        for i, settings in enumerate(left)
    }
    failed: dict[str, str] = {}
    on_epoch = epoch_callback(sum(epochs - len(run_folder.epochs(cell.folder(out))) for cell in cells.values()))
    for cell, outcome in in_turn(cells.values(), out, on_epoch, logs):
        if outcome is None:
            raise ValueError(f"Another process is working on {cell.id} in {out}. Wait for it, or choose another --out.")
        if isinstance(outcome, Failed):
            failed[cell.name] = outcome.text.partition("\n")[0]
            say(f"{cell.id} failed: {failed[cell.name]}")
        elif outcome:
            say(f"{cell.id}: {outcome}")
    trials = []
    for i, settings in enumerate(left):
        name = called(settings)
        runs = [named_run(name, cells[i, seed].folder(out)) for seed in seeds]
        known = [] if name in failed else [run for run in runs if run is not None]
        (row,) = statistics.rows([(name, name)], known) or (None,)
        cost = None
        if row is not None:
            cost = (row.samples_forward + row.samples_backward) / (4 * known[0].run.data.train * epochs)
        trials.append(Trial(settings, row, cost, failed.get(name, "")))
    trials.sort(key=lambda trial: -math.inf if trial.row is None else trial.row.merit, reverse=True)
    if all(trial.row is None for trial in trials):
        raise ValueError(f"Every trial failed. The last: {trials[-1].failed}")
    return Round(epochs, tuple(trials))


def _shortened(config: Config, settings: Settings, epochs: int) -> Config:
    """The settings of a trial in a round; a ramp given in epochs keeps its fraction of them."""
    whole = replace(config, **settings)
    if epochs == config.epochs:
        return whole
    ramp = whole.ramp
    if ramp is not None and ramp >= 1:
        ramp = round(ramp * epochs / config.epochs)
    return replace(whole, epochs=epochs, ramp=ramp)


def called(settings: Settings) -> str:
    """A trial's name, which also names a folder: ``rho=0.1,alpha=0.5``."""
    return ",".join(f"{name}={value:g}" for name, value in settings.items())
