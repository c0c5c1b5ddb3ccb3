"""A search for settings on held-out samples, with Optuna: its storage (tuning.db) and its pruner.

All combinations of the values are tried, in random order. A trial trains with every seed, side by side. After half of
the epochs, Optuna's median pruner stops it if it is worse than half of the earlier trials were at the same epoch. The
runs are ordinary ones, so a search that was killed continues where it stopped.
"""

from __future__ import annotations

import itertools
import random
import typing
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ausam_lab.config import NOT_PART_OF_IDENTITY, Config, differences
from ausam_lab.experiments.cells import run_folder as folder_of
from ausam_lab.experiments.run_cells import OnEpoch
from ausam_lab.names.from_config import method_and_policy, refuse_idle
from ausam_lab.names.lookup import find
from ausam_lab.records import files, store
from ausam_lab.records.files import file_lock
from ausam_lab.records.run import Epoch, Run, Score
from ausam_lab.report.pages import tuning
from ausam_lab.training import run_folder
from ausam_lab.training.failures import explain
from ausam_lab.training.loop import train

if TYPE_CHECKING:
    from optuna import Study, Trial

HELD_OUT = 0.2  # default fraction of the training samples
DATABASE = "tuning.db"
POLICY = "AUSampling"  # default: Full has nothing to search for

Settings = dict[str, Any]  # one value per setting


@dataclass(frozen=True)
class Search:
    """What a search is made of.

    Attributes:
        over: the values of each setting.
        seeds: the seeds of each trial.
        config: all other settings. ``validation`` is the fraction of the training samples to evaluate on.
        given: the settings that the user gave, for the command to paste.
        out: the folder.
        command: the command that the user typed.
    """

    over: Mapping[str, Sequence[float]]
    seeds: Sequence[int]
    config: Config
    given: Mapping[str, Any]
    out: Path
    command: str


def values(texts: Sequence[str], config: Config) -> dict[str, list[float]]:
    """``["rho=0.1,0.2", "alpha=0.5"]`` as numbers by setting. Without texts, defaults for the method and policy."""
    if not texts:
        return _suggested(config)
    kinds = {name: _number(hint) for name, hint in typing.get_type_hints(Config).items()}
    own = {"seed", "epochs", "validation", *NOT_PART_OF_IDENTITY}  # set by the search, or without effect on learning
    searchable = {name: kind for name, kind in kinds.items() if kind and name not in own}
    grid: dict[str, list[float]] = {}
    for text in texts:
        name, _, numbers = text.partition("=")
        name = name.strip().replace("-", "_")
        kind = find("number to search for", name, searchable)
        if name in grid:
            raise ValueError(f"--over {name} is given twice. Put all of its values in one: {name}=0.1,0.2.")
        try:
            grid[name] = list(dict.fromkeys(kind(number) for number in numbers.split(",")))
        except ValueError:
            whole = "whole numbers" if kind is int else "numbers"
            raise ValueError(f'--over "{text}": put {whole} after the name, e.g. {name}=1,2.') from None
    return grid


def _number(hint: Any) -> type[int] | type[float] | None:
    """The numeric type of a setting. None if it is not a number."""
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


def tune(search: Search, on_epoch: OnEpoch, say: Callable[[str], None]) -> Study:
    """Search, running what is missing in the folder. Write tuning.html after every trial. Return Optuna's study.

    ``on_epoch`` is called with the name of the trial and each epoch, ``say`` with a line about each finished trial. An
    error in a trial stops no other trial. The next search in the folder tries it again.
    """
    config, out = search.config, search.out
    if not config.validation:
        raise ValueError("validation is 0, but a search needs held-out samples. Use --validation 0.2.")
    every: list[Settings] = [
        dict(zip(search.over, combined, strict=True)) for combined in itertools.product(*search.over.values())
    ]
    for settings in every:
        method_and_policy(replace(config, **settings), steps=1)  # refuses impossible pairs before anything runs
        refuse_idle(settings, [replace(config, **settings)])
    run_folder.make(out)
    with file_lock(out / run_folder.LOCK) as mine:
        if not mine:
            raise ValueError(f"Another process is searching in {out}. Wait for it to end, or choose another --out.")
        study = _study(search)
        done = [trial.params for trial in study.trials if trial.state.name in ("COMPLETE", "PRUNED")]
        for settings in random.Random(0).sample(every, len(every)):
            if settings not in done:
                study.enqueue_trial(settings)
                study.optimize(lambda trial: _objective(trial, search, on_epoch), n_trials=1, catch=Exception)
                say(tuning.outcome(study.trials[-1]))
            files.write(out / "tuning.html", tuning.render(study))
    if not tuning.completed(study):
        raise ValueError(f"Every trial failed. The last: {study.trials[-1].user_attrs['failed']}")
    return study


def load(out: Path) -> Study:
    """The study in a folder."""
    import optuna

    return optuna.load_study(study_name="tuning", storage=f"sqlite:///{out / DATABASE}")


def _study(search: Search) -> Study:
    """The study in the folder, which is new or belongs to the same search. A trial that was killed begins again."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name="tuning",
        storage=f"sqlite:///{search.out / DATABASE}",
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=search.config.epochs // 2),
    )
    mine = {k: v for k, v in asdict(search.config).items() if k not in NOT_PART_OF_IDENTITY}
    mine |= {"seeds": list(search.seeds)}
    theirs = study.user_attrs.get("settings", mine)
    if theirs != mine:
        changed = "; ".join(differences(theirs, mine))
        raise ValueError(f"{search.out} contains another search: {changed}. Choose another --out.")
    about = {"settings": mine, "given": dict(search.given), "out": str(search.out), "command": search.command}
    for name, value in about.items():
        study.set_user_attr(name, value)
    return study


def _objective(trial: Trial, search: Search, on_epoch: OnEpoch) -> float:
    """Train with the settings of a trial, with every seed, side by side. The mean score, larger for better."""
    from optuna import TrialPruned

    settings: Settings = {name: trial.suggest_categorical(name, tried) for name, tried in search.over.items()}
    name = tuning.called(settings)
    folders = [folder_of(search.out, name, seed) for seed in search.seeds]
    runs = [
        _run(replace(search.config, **settings, seed=seed), folder)
        for seed, folder in zip(search.seeds, folders, strict=True)
    ]
    try:
        for number, epochs in enumerate(zip(*runs, strict=True), start=1):
            for epoch in epochs:
                on_epoch(name, epoch)
            trial.report(_merit([epoch.test for epoch in epochs]), number)
            if number < search.config.epochs and trial.should_prune():
                trial.set_user_attr("scores", [epoch.test.value for epoch in epochs])
                raise TrialPruned
    except TrialPruned:
        raise
    except Exception as error:
        known = explain(error)
        reason = known.text if known else f"{type(error).__name__}: {error}"
        trial.set_user_attr("failed", reason.partition("\n")[0])
        raise
    finally:
        for run in runs:
            run.close()  # releases its folder
    results = [store.read_finished(folder / "result.json", Run) for folder in folders]
    work = [(r.samples_forward + r.samples_backward) / (2 * r.data.train * r.epochs) for r in results]
    spent = [r.cpu_seconds if r.environment.hardware.device == "cpu" else r.train_seconds for r in results]
    attributes = {
        "score": asdict(replace(results[0].test, parts={})),
        "scores": [r.test.value for r in results],
        "unfitted": all(r.audit is not None and r.audit.unfitted for r in results),
        "cost": fmean(work),
        "seconds": fmean(spent),
    }
    for key, value in attributes.items():
        trial.set_user_attr(key, value)
    return _merit([r.test for r in results])


def _run(config: Config, folder: Path) -> Generator[Epoch, None, None]:
    """The epochs of a run: those that it has, then those that it lacks."""
    yield from run_folder.epochs(folder)
    yield from train(config, folder, resume=True)


def _merit(scores: Sequence[Score]) -> float:
    """The mean score of the seeds, larger for better."""
    return fmean(-score.value if score.lower_is_better else score.value for score in scores)
