"""A search for settings on held-out samples, with Optuna: its storage (tuning.db) and its pruner.

All combinations of the values are tried, in random order. A trial trains with every seed, side by side. After half of
the epochs, Optuna's median pruner stops it if it is worse than half of the earlier trials were at the same epoch. The
runs are ordinary ones, so a search that was killed continues where it stopped.
"""

from __future__ import annotations

import itertools
import json
import random
import shlex
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, fields, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from ausam_lab.config import NOT_PART_OF_IDENTITY, Config, differences
from ausam_lab.experiments.cells import run_folder as folder_of
from ausam_lab.experiments.commands import flags
from ausam_lab.experiments.run_cells import OnEpoch
from ausam_lab.names.from_config import method_and_policy, refuse_idle, typed_settings
from ausam_lab.records import files, store
from ausam_lab.records.files import file_lock
from ausam_lab.records.run import Epoch, Run
from ausam_lab.report.pages import tuning
from ausam_lab.report.summary import times
from ausam_lab.report.table import Table, to_text
from ausam_lab.report.text import NONE, show, wrapped
from ausam_lab.training import run_folder
from ausam_lab.training.loop import train

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

HELD_OUT = 0.2  # default fraction of the training samples
DATABASE, PAGE = "tuning.db", "tuning.html"
POLICY = "AUSampling"  # default: Full has nothing to search for
SET_BY_SEARCH = ("seed", "epochs", "validation", *NOT_PART_OF_IDENTITY)  # or without effect on learning

Settings = dict[str, Any]  # one value per setting
Grid = Mapping[str, Sequence[float]]  # the values of each setting


def values(texts: Sequence[str], config: Config) -> dict[str, list[float]]:
    """``["rho=0.1,0.2", "alpha=0.5"]`` as numbers by setting. Without texts, defaults for the method and policy."""
    if not texts:
        return _suggested(config)
    grid: dict[str, list[float]] = {}
    for text in texts:
        name, _, numbers = text.partition("=")
        name = name.strip().replace("-", "_")
        try:
            tried = [typed_settings({name: json.loads(number)})[name] for number in numbers.split(",")]
        except json.JSONDecodeError:
            tried = []
        if name in SET_BY_SEARCH or not tried or not all(isinstance(value, int | float) for value in tried):
            raise ValueError(f'--over "{text}": write a numeric setting and its values, e.g. rho=0.1,0.2.')
        grid[name] = list(dict.fromkeys([*grid.get(name, ()), *tried]))
    return grid


def _suggested(config: Config) -> dict[str, list[float]]:
    method, policy = method_and_policy(config, steps=1)
    rho = getattr(method, "rho", None)
    grid = {} if rho is None else {"rho": [rho / 2, rho, 2 * rho]}
    if "alpha" in {f.name for f in fields(policy)}:  # type: ignore[arg-type]
        grid["alpha"] = [0.25, 0.5]
    if not grid:
        raise ValueError(f"{config.method} and {config.policy} have neither rho nor alpha. Name settings with --over.")
    return grid


def tune(
    over: Grid, seeds: Sequence[int], config: Config, out: Path, on_epoch: OnEpoch, say: Callable[[str], None]
) -> Study:
    """Search, running what is missing in the folder. Write tuning.html after every trial. Return Optuna's study.

    An error stops the search. The next one in the folder tries that trial again.

    Arguments:
        over: the values of each setting.
        seeds: the seeds of each trial.
        config: all other settings. ``validation`` is the fraction of the training samples to evaluate on.
        out: the folder.
        on_epoch: called with the name of the trial and each epoch.
        say: called with a line about each trial that has ended.
    """
    if not config.validation:
        raise ValueError("validation is 0, but a search needs held-out samples. Use --validation 0.2.")
    every: list[Settings] = [dict(zip(over, one, strict=True)) for one in itertools.product(*over.values())]
    for settings in every:
        method_and_policy(replace(config, **settings), steps=1)  # refuses impossible pairs before anything runs
        refuse_idle(settings, [replace(config, **settings)])

    def objective(trial: Trial) -> float:
        settings: Settings = {name: trial.suggest_categorical(name, tried) for name, tried in over.items()}
        return _train(trial, [replace(config, **settings, seed=seed) for seed in seeds], out, on_epoch)

    run_folder.make(out)
    with file_lock(out / run_folder.LOCK) as mine:
        if not mine:
            raise ValueError(f"Another process is searching in {out}. Wait for it to end, or choose another --out.")
        study = _study(over, config, seeds, out)
        done = [trial.params for trial in ended(study)]
        for settings in random.Random(0).sample(every, len(every)):
            if settings not in done:
                # one waits if a search was killed between the two calls
                if all(trial.state.name != "WAITING" for trial in study.trials):
                    study.enqueue_trial(settings)
                study.optimize(objective, n_trials=1)
                value = study.trials[-1].value
                say(f"{_called(settings)}: {'stopped early' if value is None else f'{value:.2f} %'}")
            write_page(study, out)
    return study


def _study(over: Grid, config: Config, seeds: Sequence[int], out: Path) -> Study:
    """The study in the folder, which is new or belongs to the same search. A trial that was killed begins again."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name="tuning",
        storage=f"sqlite:///{out / DATABASE}",
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=config.epochs // 2),
    )
    grid = " ".join(f"{name}={','.join(map(str, tried))}" for name, tried in over.items())
    mine = asdict(config) | {"seeds": list(seeds), "over": grid}
    theirs = mine | study.user_attrs.get("settings", {}) | {name: mine[name] for name in NOT_PART_OF_IDENTITY}
    if theirs != mine:
        changed = "; ".join(differences(theirs, mine))
        raise ValueError(f"{out} contains another search: {changed}. Choose another --out.")
    study.set_user_attr("settings", mine)
    return study


def _train(trial: Trial, configs: Sequence[Config], out: Path, on_epoch: OnEpoch) -> float:
    """Train the runs of a trial side by side. The mean score."""
    from optuna import TrialPruned

    name = _called(trial.params)
    folders = [folder_of(out, name, config.seed) for config in configs]
    scores: list[float] = []
    with ExitStack() as until:
        runs = [until.enter_context(closing(_run(*of))) for of in zip(configs, folders, strict=True)]
        for number, epochs in enumerate(zip(*runs, strict=True), start=1):
            for epoch in epochs:
                on_epoch(name, epoch)
            scores = [epoch.test.value for epoch in epochs]
            trial.report(fmean(scores), number)
            if number < configs[0].epochs and trial.should_prune():
                raise TrialPruned
    ended = [store.read_finished(folder / "result.json", Run) for folder in folders]
    trial.set_user_attr("std", stdev(scores) if len(scores) > 1 else None)
    trial.set_user_attr("unfitted", all(run.audit is not None and run.audit.unfitted for run in ended))
    passed = fmean((run.samples_forward + run.samples_backward) / (2 * run.data.train * run.epochs) for run in ended)
    trial.set_user_attr("cost", times(passed))
    return fmean(scores)


def _run(config: Config, folder: Path) -> Generator[Epoch, None, None]:
    """The epochs of a run: those that it has, then those that it lacks."""
    yield from run_folder.epochs(folder)
    yield from train(config, folder, resume=True)


def _called(settings: Mapping[str, float]) -> str:
    """A trial's name, which also names a folder: ``rho=0.1,alpha=0.5``."""
    return ",".join(f"{name}={value:g}" for name, value in settings.items())


# -- the result --------------------------------------------------------------------------------------------------------


def load(out: Path) -> Study:
    """The study in a folder."""
    import optuna

    return optuna.load_study(study_name="tuning", storage=f"sqlite:///{out / DATABASE}")


def ended(study: Study) -> list[FrozenTrial]:
    """The trials that ran to their end, best first, then those that were stopped early."""
    trials = [trial for trial in study.trials if trial.state.name in ("COMPLETE", "PRUNED")]
    return sorted(trials, key=lambda trial: (trial.state.name, -(trial.value or 0.0)))


def write_page(study: Study, out: Path) -> None:
    """Write tuning.html, once a trial ran to its end."""
    rows = [t.params | {"score": t.value} for t in study.trials if t.state.name == "COMPLETE"]
    if rows:
        about = study.user_attrs["settings"]
        title = f"{about['data']}: search for settings of {about['method']}"
        table, rule, advice, command = _result(study, out)
        files.write(out / PAGE, tuning.render(title, advice, command, rows, table, rule))


def text(study: Study, out: Path, columns: int | None = None) -> str:
    """For a terminal: every trial, best first, and the command that trains with the best settings."""
    table, rule, advice, command = _result(study, out)
    said = [to_text(table, columns), wrapped(rule, columns), f"{wrapped(advice, columns)}\n{command}".rstrip()]
    return "\n\n".join([*said, str(out / PAGE)])


def _result(study: Study, out: Path) -> tuple[Table, str, str, str]:
    """Every trial, best first, how they were measured, what to do next, and the command for it, if there is one."""
    trials, about = ended(study), study.user_attrs["settings"]
    if not trials:
        raise ValueError(f"No trial in {out} has ended. Continue the search: the same ausam tune with this --out.")
    lines = []
    for trial in trials:
        epochs, score = max(trial.intermediate_values.items())
        figures = show(score, 2, trial.user_attrs.get("std")), trial.user_attrs.get("cost", NONE)
        lines.append([*(f"{value:g}" for value in trial.params.values()), epochs, *figures])
    table = Table.of([*trials[0].params, "Epochs", "Score %", "Cost"], lines, left=())
    rule = f"Scores are on {100 * about['validation']:g} % of the training samples. No test sample was used."
    if all(trial.user_attrs.get("unfitted", True) for trial in trials):
        advice = "The model has not fitted the data in any trial. Train longer, or use --over lr=0.01,0.03,0.1."
        return table, rule, advice, ""
    return table, rule, "To train with the best settings:", best_command(study, out)


def best_command(study: Study, out: Path) -> str:
    """The command that trains with the best settings, on all training samples."""
    settings = {name: value for name, value in study.user_attrs["settings"].items() if name not in ("seeds", "over")}
    best = replace(Config(**settings), **ended(study)[0].params, validation=0.0)
    return f"ausam train {flags(best)}--out {shlex.quote(f'{out}/best')}"
