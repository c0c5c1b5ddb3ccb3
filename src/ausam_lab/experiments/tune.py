"""A search for settings on held-out samples, with Optuna: its storage (tuning.db) and its pruner.

All combinations of the values are tried, in random order. A trial trains with every seed, side by side. After half of
the epochs, Optuna's median pruner stops it if it is worse than half of the earlier trials were at the same epoch. The
runs are ordinary ones, so a search that was killed continues where it stopped.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import random
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ausam_lab.config import NOT_PART_OF_IDENTITY, Config, differences
from ausam_lab.experiments.cells import run_folder as folder_of
from ausam_lab.experiments.run_cells import OnEpoch
from ausam_lab.names.from_config import method_and_policy, refuse_idle
from ausam_lab.names.lookup import find
from ausam_lab.records import files, store
from ausam_lab.records.files import file_lock
from ausam_lab.records.run import Run, Score
from ausam_lab.report.pages import tuning
from ausam_lab.training import run_folder
from ausam_lab.training.failures import explain
from ausam_lab.training.logs import Logs
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
        config: all other settings; ``validation`` is the fraction of the training samples to evaluate on.
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


def tune(search: Search, on_epoch: OnEpoch, say: Callable[[str], None], logs: Logs) -> Study:
    """Search, running what is missing in the folder; write tuning.html after every trial; return Optuna's study.

    ``on_epoch`` is called with the name of the trial and each epoch, ``say`` with a line about each finished trial.
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
                say(f"{called(settings)}: {_attempt(search, settings, study, on_epoch, logs)}")
            files.write(out / "tuning.html", tuning.render(study))
    if not tuning.completed(study):
        raise ValueError(f"Every trial failed. The last: {study.trials[-1].user_attrs['failed']}")
    return study


def load(out: Path) -> Study:
    """The study in a folder."""
    import optuna

    return optuna.load_study(study_name="tuning", storage=_storage(out))


def _storage(out: Path) -> str:
    return f"sqlite:///{out / DATABASE}"


def _study(search: Search) -> Study:
    """The study in the folder, which is new or belongs to the same search. A trial that was killed begins again."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name="tuning",
        storage=_storage(search.out),
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=search.config.epochs // 2),
    )
    mine = {k: v for k, v in asdict(search.config).items() if k not in NOT_PART_OF_IDENTITY}
    mine |= {"seeds": list(search.seeds)}
    theirs = study.user_attrs.get("settings", mine)
    if theirs != mine:
        raise ValueError(
            f"{search.out} contains another search: {'; '.join(differences(theirs, mine))}. Choose another --out."
        )
    about = {"settings": mine, "given": dict(search.given), "out": str(search.out), "command": search.command}
    for name, value in about.items():
        study.set_user_attr(name, value)
    for killed in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
        study.tell(killed.number, state=optuna.trial.TrialState.FAIL)
    return study


def _attempt(search: Search, settings: Settings, study: Study, on_epoch: OnEpoch, logs: Logs) -> str:
    """Train a trial of these settings; its outcome. An error of its own does not stop the search."""
    study.enqueue_trial(settings)
    trial = study.ask()
    for name, value in settings.items():
        suggest: Any = trial.suggest_int if isinstance(value, int) else trial.suggest_float
        suggest(name, value, value)
    try:
        return _train(search, settings, study, trial, on_epoch, logs)
    except files.WriteError:
        raise  # a full disk concerns every trial
    except Exception as error:  # noqa: BLE001  (whatever it is, the other trials can be trained)
        known = explain(error)
        reason = known.text if known else f"{type(error).__name__}: {error}"
        trial.set_user_attr("failed", reason.partition("\n")[0])
        study.tell(trial, state=_state("FAIL"))
        return f"failed: {reason}"


def _state(name: str) -> Any:
    from optuna.trial import TrialState

    return TrialState[name]


def _train(search: Search, settings: Settings, study: Study, trial: Trial, on_epoch: OnEpoch, logs: Logs) -> str:
    """Train one trial with every seed, side by side, until it ends or is pruned; its outcome."""
    name = called(settings)
    folders = [folder_of(search.out, name, seed) for seed in search.seeds]
    configs = [replace(search.config, **settings, seed=seed) for seed in search.seeds]
    with contextlib.ExitStack() as until:
        runs = []
        for config, folder in zip(configs, folders, strict=True):
            fresh = train(config, folder, resume=True, logs=logs.of(f"{name}/{folder.name}"))
            until.enter_context(contextlib.closing(fresh))
            runs.append(itertools.chain(run_folder.epochs(folder), fresh))
        for number in range(1, search.config.epochs + 1):
            epochs = [next(run) for run in runs]
            for epoch in epochs:
                on_epoch(name, epoch)
            trial.report(_merit([epoch.test for epoch in epochs]), number)
            if number < search.config.epochs and trial.should_prune():
                trial.set_user_attr("scores", [epoch.test.value for epoch in epochs])
                study.tell(trial, state=_state("PRUNED"))
                return f"stopped after {number} epochs"
        for run in runs:
            collections.deque(run, maxlen=0)  # writes its result
    results = [store.read_finished(folder / "result.json", Run) for folder in folders]
    scores = [result.test for result in results]
    # SAM's cost is two forward and two backward passes over every sample
    work = [(r.samples_forward + r.samples_backward) / (4 * r.data.train * r.epochs) for r in results]
    trial.set_user_attr("score", asdict(replace(scores[0], parts={})))
    trial.set_user_attr("scores", [score.value for score in scores])
    trial.set_user_attr("unfitted", all(r.audit is not None and r.audit.unfitted for r in results))
    trial.set_user_attr("cost", sum(work) / len(work))
    study.tell(trial, _merit(scores))
    return ", ".join(map(str, scores))


def _merit(scores: Sequence[Score]) -> float:
    """The mean score of the seeds, larger for better."""
    return sum(-score.value if score.lower_is_better else score.value for score in scores) / len(scores)


def called(settings: Settings) -> str:
    """A trial's name, which also names a folder: ``rho=0.1,alpha=0.5``."""
    return ",".join(f"{name}={value:g}" for name, value in settings.items())
