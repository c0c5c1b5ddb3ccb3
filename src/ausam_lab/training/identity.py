"""Whether a saved run is the one that is asked for, wherever it is computed, and whether it can be extended."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import asdict, replace
from typing import Any

from ausam_lab.config import NOT_PART_OF_IDENTITY, Config, differences
from ausam_lab.names.from_config import method_and_policy
from ausam_lab.training.checkpoint import Checkpoint, brief
from ausam_lab.training.schedule import learning_rate


def same_run(a: Config, b: Config) -> bool:
    """Whether two settings describe the same run."""
    return _identity(a, NOT_PART_OF_IDENTITY) == _identity(b, NOT_PART_OF_IDENTITY)


def mismatch(theirs: Config, mine: Config, done: int, ignore: Collection[str] = NOT_PART_OF_IDENTITY) -> str:
    """How a saved run with ``done`` finished epochs differs from this one; empty if it can continue as this one."""
    a, b = _identity(theirs, ignore), _identity(mine, ignore)
    if {**a, "epochs": mine.epochs} != b:
        return "; ".join(differences(a, b))
    why = cannot_extend(theirs, mine.epochs, done)
    return f"it has {theirs.epochs} epochs and cannot be changed to {mine.epochs}, because {why}" if why else ""


def cannot_extend(config: Config, epochs: int, done: int) -> str | None:
    """Why a run with ``done`` finished epochs cannot be extended to ``epochs``; None if it can.

    It can if every finished epoch would have been the same in the longer run.
    """
    longer = replace(config, epochs=epochs)
    if epochs < config.epochs:
        return f"it was started with {config.epochs} epochs, and a run can only be made longer"
    moments = [half / 2 for half in range(2 * done)]
    if any(learning_rate(config, e) != learning_rate(longer, e) for e in moments):
        how = "in steps at fractions of all epochs" if config.lr_steps else "as a cosine over all epochs"
        return f"its learning rate falls {how}, so the {done} finished epochs would have had a different one"
    if config.rho_schedule in ("linear", "cosine") and epochs != config.epochs:
        return f"its rho falls over all epochs, so the {done} finished epochs would have had a different one"
    steps = 100  # steps per epoch; any number shows which objects plan over all epochs
    pairs = [method_and_policy(c, steps=c.epochs * steps) for c in (config, longer)]
    for one, other in zip(*pairs, strict=True):
        if one != other:
            return (
                f"{type(one).__name__} plans over all epochs, so the {done} finished epochs would have been different"
            )
    return None


@contextlib.contextmanager
def explain_misfit(saved: Checkpoint, config: Config) -> Iterator[None]:
    """Refuse a checkpoint of another run; inside the context, explain errors from content that does not fit."""
    remedy = "Remove that file; --resume then uses the previous one."
    if why := mismatch(saved.config, config, len(saved.epochs)):
        raise ValueError(f"{saved.path} belongs to another run: {why}. {remedy}")
    try:
        yield
    except (ValueError, TypeError, RuntimeError, AttributeError, LookupError) as error:
        raise ValueError(f"{saved.path} does not fit this run: {brief(error)}. {remedy}") from error


def _identity(config: Config, ignore: Collection[str]) -> dict[str, Any]:
    return {k: v for k, v in asdict(config).items() if k not in ignore}
