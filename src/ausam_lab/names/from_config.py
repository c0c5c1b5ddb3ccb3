"""From the settings of a run to its method and policy. A setting that no run uses raises an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_type_hints

import torch
from torch import Tensor

from ausam.optimizer.step import Method
from ausam.pairing import check
from ausam.policies import Policy
from ausam_lab.config import Config, flag_of
from ausam_lab.names.expressions import construct, has_radius, parse, uses
from ausam_lab.names.lookup import unknown
from ausam_lab.names.pairs import label, pair
from ausam_lab.names.user_code import is_code
from ausam_lab.records.store import typed

# Methods that measure their radius on a scale of their own: the rho of a data set, which is SAM's, does not suit them.
# ASAM: its authors' for CIFAR-10. Momentum-SAM: the best on the digits, where its authors' 3 is too large.
OWN_RHO = {"ASAM": 0.5, "MomentumSAM": 1.0}

# Arguments that the papers count in epochs, but the methods in steps because they do not know epochs.
IN_EPOCHS = {"VSAM": {"warmup": 3}, "MESA": {"start": 5}}

# The axis of each flag: method or policy.
ARGUMENTS = {"rho": "method", "alpha": "policy", "s_min": "policy", "s_max": "policy", "ramp": "policy"}

NO_LABELS = torch.zeros(1, dtype=torch.int64)  # for a policy that is only looked at


def typed_settings(content: object) -> dict[str, Any]:
    """Settings from a file. A ValueError for an unknown name, or a value of a type that the setting cannot have."""
    if not isinstance(content, dict):
        raise ValueError(f"{content!r:.80} is not a table of settings.")
    hints, settings = get_type_hints(Config), {}
    for name, value in content.items():
        if name not in hints:
            raise unknown("setting", name, list(hints))
        try:
            settings[name] = typed(hints[name], value)
        except ValueError:
            raise ValueError(f"{name} is {value!r:.80}, which is not a value of this setting.") from None
    return settings


def configured(name: str, config: Config, *, rho_given: bool = True) -> Config:
    """The settings of a comparison, adapted to one of its rows, whose label and kind they then hold.

    ``rho_given``: whether the user chose ``config.rho``. The rho of a data set gives way to a method's own.
    """
    chosen = pair(name)
    of_pair = replace(
        config,
        label=label(name, config.base),
        kind=chosen.kind,
        method=chosen.method,
        policy=chosen.policy,
        rho_schedule=config.rho_schedule if has_radius(chosen.method) else "constant",
        alpha=None,
        quantize=0 if chosen.full_precision else config.quantize,
        init="" if chosen.full_precision else config.init,
        epochs=max(1, round(chosen.epochs * config.epochs)),
        batch_size=max(1, round(chosen.batch * config.batch_size)),
        average=config.average if chosen.average is None else chosen.average,
        select_epoch=config.select_epoch if chosen.select_epoch is None else chosen.select_epoch,
    )
    return of_pair if rho_given else with_own_rho(of_pair)


def with_own_rho(config: Config) -> Config:
    """The settings of a run for which the user gave no rho: a method with a scale of its own has its own."""
    if is_code(config.method):  # not in the table, and nothing to import: the settings may be a stranger's
        return config
    return replace(config, rho=own_rho(config.method) or config.rho)


def own_rho(method: str) -> float | None:
    """The rho of a method with a scale of its own, or of such an inner method. None for all others."""
    *_, innermost = parse("method", method).nested()
    return OWN_RHO.get(innermost.name)


def method_and_policy(config: Config, steps: int, labels: Tensor | None = None) -> tuple[Method, Policy]:
    """The method and policy of a run, checked against each other. ``steps`` is for methods with a schedule.

    ``labels`` are the training labels, for policies that need them. Without them, the pair is only for inspection.
    """
    written = parse("method", config.method)
    if written.name == "SAF" and isinstance(gap := written.arguments.get("gap"), int) and gap > config.epochs:
        raise ValueError(
            f"SAF: gap is {gap}, but a sample is visited at most {config.epochs} times (--epochs), so no output is old "
            f"enough. Use a gap of at most {config.epochs}."
        )
    counted = {
        name: max(1, epochs * steps // config.epochs)
        for part in written.nested()
        for name, epochs in IN_EPOCHS.get(part.name, {}).items()
    }
    method: Method = construct("method", config.method, rho=config.rho, total_steps=steps, **counted)
    policy: Policy = construct(
        "policy",
        config.policy,
        alpha=config.alpha,
        s_min=config.s_min,
        s_max=config.s_max,
        ramp=config.ramp,
        epochs=config.epochs,
        labels=NO_LABELS if labels is None else labels,
    )
    check(method, policy)
    return method, policy


def refuse_idle(given: Mapping[str, Any], runs: Sequence[Config]) -> None:
    """Raise a ValueError for a setting that was given but that no run uses."""
    for name, kind in ARGUMENTS.items():
        texts = list(dict.fromkeys(getattr(run, kind) for run in runs))
        if given.get(name) is not None and not any(uses(kind, text, name) for text in texts):
            flag, which = flag_of(name), " and ".join(texts)
            raise ValueError(f"{flag} has no effect: {which} sets {name} already or has none. Leave out {flag}.")
    shape = given.get("rho_schedule") or "constant"
    if shape != "constant" and not any(has_radius(run.method) for run in runs):
        methods = " and ".join(dict.fromkeys(run.method for run in runs))
        raise ValueError(f"--rho-schedule has no effect: {methods} has no rho. Leave out --rho-schedule.")
