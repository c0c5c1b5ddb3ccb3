"""From a method and a policy to the name and the label of the pair."""

from __future__ import annotations

import contextlib
import re
from dataclasses import MISSING, fields, replace
from functools import cache
from typing import Any

from ausam.policies import POLICIES
from ausam_lab.config import Config
from ausam_lab.registry.expressions import OF_A_RUN, construct
from ausam_lab.registry.pair_table import (
    AUSAM,
    BASE_LABELS,
    FAMILIES,
    NUMBER,
    PAIRS,
    SHORT,
    Pair,
    kept_suffix,
    method_of,
)

Settings = tuple[str, dict[str, Any]]  # the name of a class, and the arguments that differ from its defaults


def named_pair(method: str, policy: str, alpha: float | None = None) -> Pair | None:
    """The pair of this method and this policy under its name; None if no name is known for the two."""
    if ":" in method + policy:  # the user's own class or signal, which a name must not import
        return None
    of_method, (kind, given) = _settings("method", method), _settings("policy", policy, alpha)
    for name, known in PAIRS.items():
        if (of_method, (kind, given)) == _of_table(name):
            return replace(known, name=name)
    if (called := _method_name(of_method)) is None:
        return None
    others = {k: v for k, v in given.items() if k != "alpha"}
    number = _number(given.get("alpha", _defaults(POLICIES[kind]).get("alpha")))
    name, label = called
    method = method_of(name)
    if kind == "AUSampling":
        ausam = [key for key, (_, extra) in AUSAM.items() if name == "sam" and extra == others]
        if others and not ausam:
            return None
        name, label = (ausam[0], AUSAM[ausam[0]][0]) if ausam else (name, label)
        name, label = f"{name}-{number}", f"{label}-{number}"
    elif kind != "Full":
        if others:
            return None
        short = next((key for key, cls in SHORT.items() if cls == kind), "")
        suffix = f"-{number}" if "alpha" in given else ""
        name, label = f"{name}+{short or kind.lower()}{suffix}", f"{label}+{short.capitalize() or kind}{suffix}"
    if number and not re.fullmatch(NUMBER, number):
        return None
    written = {"alpha": float(number), **others} if number else others
    arguments = ", ".join(f"{k}={v!r}" for k, v in written.items())
    return Pair(label, method, f"{kind}({arguments})" if arguments else kind, name=name)


def _settings(kind: str, text: str, alpha: float | None = None) -> Settings:
    """What tells a method or policy from others; what the data and the length of a run decide is left out."""
    thing = construct(kind, text, alpha=alpha, **OF_A_RUN)
    defaults = _defaults(type(thing))
    given = {f.name: getattr(thing, f.name) for f in fields(thing) if f.name not in OF_A_RUN}
    return type(thing).__name__, {k: v for k, v in given.items() if k not in defaults or v != defaults[k]}


def _defaults(cls: Any) -> dict[str, Any]:
    values = {f.name: f.default for f in fields(cls) if f.default is not MISSING}
    return values | {f.name: f.default_factory() for f in fields(cls) if f.default_factory is not MISSING}


@cache
def _of_table(name: str) -> tuple[Settings, Settings]:
    return _settings("method", PAIRS[name].method), _settings("policy", PAIRS[name].policy)


def _method_name(settings: Settings) -> tuple[str, str] | None:
    """The name and the label of a method without selection."""
    for name, known in PAIRS.items():
        if known.policy == "Full" and settings == _of_table(name)[0]:
            return name, known.label
    cls, given = settings
    for family in FAMILIES.values():
        if cls == family.method and given.keys() == {family.argument, *family.others}:
            number = _number(given[family.argument])
            if re.fullmatch(family.number, number) and all(given[k] == v for k, v in family.others.items()):
                return family.name.format(number), family.label.format(number)
    return None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.12g}"


def label_of(config: Config) -> str:
    """The label of the pair with the method and the policy of a run; empty if no name is known for the two.

    Other settings do not matter: in a comparison, too, a pair keeps its name whatever the rho or the ramp.
    """
    with contextlib.suppress(ValueError):  # a record may name a method of another version
        if known := named_pair(config.method, config.policy, config.alpha):
            label = known.label.replace("SGD", BASE_LABELS[config.base])
            return label + kept_suffix(config.average, config.select_epoch)
    return ""
