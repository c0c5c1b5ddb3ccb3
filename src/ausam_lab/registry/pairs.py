"""A pair of method and policy as it is written: a name, METHOD x POLICY, or the user's own module:Class.

A pair has one name, if it has any, and one general form: ``METHOD x POLICY``. Whatever a pair is written as, its label
and the folder of its runs are the same.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from ausam.methods import METHODS
from ausam.policies import POLICIES
from ausam_lab.registry.expressions import arguments_of, canonical, has_radius, parse
from ausam_lab.registry.lookup import nearest, unknown
from ausam_lab.registry.pair_names import named_pair
from ausam_lab.registry.pair_table import (
    AUSAM,
    BASE_LABELS,
    FAMILIES,
    FULL,
    KEPT,
    NUMBER,
    PAIRS,
    SHORT,
    Pair,
    kept_suffix,
    method_of,
)
from ausam_lab.registry.user_code import is_own, refuse_other_form

ALPHA = re.compile(rf"(?P<name>.+)-(?P<alpha>{NUMBER})")

OUTSIDE = re.compile(r"(?P<name>.+)-(?P<alpha>\d+(\.\d+)?)")  # a number that may be no alpha

FRACTIONS = re.compile(r"(?P<name>.+)@(?P<epochs>\d*\.?\d+)(x(?P<batch>\d*\.?\d+))?", re.IGNORECASE | re.DOTALL)

KEEPING = re.compile(r"(?P<name>.+?)(?P<kept>(~(ema|best)(0?\.\d+)?)+)", re.IGNORECASE | re.DOTALL)

# What a pair may be written as besides a name in the table.
FORMS = [
    *FAMILIES,
    "ausam-ALPHA",
    "ausam-trim-ALPHA",
    "METHOD-ALPHA",
    "METHOD+POLICY-ALPHA",
    "METHOD x POLICY(...)",
    "module:Class",
    "NAME@F",
    "NAME@FxB",
    "NAME~ema",
    "NAME~best",
]


@cache
def pair(text: str) -> Pair:
    """The pair written as a name, as ``METHOD x POLICY``, or as your own ``module:Class``; and ``~ema``, ``@FxB``.

    Names are those of the table, of a family (``late-sam-0.3``), ``ausam-ALPHA`` and ``METHOD-ALPHA`` with AUSampling,
    ``ausam-trim-ALPHA`` with ``ema=0.5, trim=0.8``, and ``METHOD+POLICY-ALPHA``. Both sides of ``METHOD x POLICY``
    may have arguments or be your own: ``mine:MySAM(rho=0.1) x AUSampling(alpha=0.5, ema=0.5)``.

    ``@F`` trains for a fraction F of the epochs, ``@FxB`` also with a fraction B of the batch size, at the same
    learning rate. ``sam@0.5x0.5`` takes as many steps as ``ausam-0.5``, with as many samples each.

    ``~ema`` judges averaged weights (``~ema0.999``: with this decay; otherwise 0.99), and ``~best`` keeps the epoch
    that is best on a tenth of the training samples, which are held out (``~best0.2``: a fifth). Both come before ``@``.
    """
    match = FRACTIONS.fullmatch(text.strip())
    if match is None:
        return _keeping(text.strip())
    epochs, batch = float(match["epochs"]), float(match["batch"] or 1)
    if not 0 < epochs <= 10:
        raise ValueError(f'"{text}": the number after @ is a fraction of the epochs, above 0 and at most 10.')
    if not 0 < batch <= 10:
        raise ValueError(f'"{text}": the number after x is a fraction of the batch size, above 0 and at most 10.')
    whole = _keeping(match["name"])
    suffix = f"@{epochs:g}" + (f"x{batch:g}" if match["batch"] else "")
    return replace(whole, label=whole.label + suffix, name=whole.name + suffix, epochs=epochs, batch=batch)


def _keeping(text: str) -> Pair:
    """The pair with what follows ``~``: which of its weights are kept."""
    match = KEEPING.fullmatch(text)
    if match is None:
        return _whole(text)
    given: dict[str, Any] = dict.fromkeys(setting for setting, _ in KEPT.values())
    for word, number in re.findall(r"~([a-z]+)([\d.]*)", match["kept"].lower()):
        setting, usual = KEPT[word]
        if given[setting] is not None:
            raise ValueError(f'"{text}": ~{word} is given twice. Write it once.')
        given[setting] = float(number) if number else usual
        if not 0 < given[setting] < 1:
            raise ValueError(f'"{text}": the number after ~{word} is {number}, but it must be above 0 and below 1.')
    whole, suffix = _whole(match["name"]), kept_suffix(**given)
    return replace(whole, label=whole.label + suffix, name=whole.name + suffix, **given)


def _whole(text: str) -> Pair:
    """The pair without fractions."""
    if text.lower() == FULL:
        return Pair("Full prec.", "Plain", name=FULL)
    method, policy = _texts(text)
    if (known := named_pair(method, policy)) is not None:
        return known
    label = " × ".join(_short_path(part) for part in (method, policy) if part != "Full")
    return Pair(label, method, policy, name=_general_name(method, policy))


# -- from a name to method and policy ----------------------------------------------------------------------------------


def _texts(text: str) -> tuple[str, str]:
    """The method and the policy that a name or an expression stands for, as text."""
    if text.lower() in PAIRS:
        known = PAIRS[text.lower()]
        return known.method, known.policy
    if method := method_of(text):
        return method, "Full"
    left, right = _split(text)
    if right:
        return _method(left), _policy(left, right, text)
    if (match := ALPHA.fullmatch(text.lower())) is not None:
        return _with_alpha(match["name"], float(match["alpha"]), text)
    if is_own(text) or "(" in text:
        return canonical("method", text), "Full"
    raise _refusal(text)


def _split(text: str) -> tuple[str, str]:
    """The two sides of ``METHOD x POLICY`` or ``METHOD+POLICY``; the second is empty without a separator."""
    depth = 0
    for i, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and (sign in "+×" or re.match(r"\s[xX]\s", text[i : i + 3])):
            return text[:i].strip(), text[i + (3 if sign.isspace() else 1) :].strip()
    return text, ""


def _method(text: str) -> str:
    return method_of(text) or canonical("method", text)


def _policy(method: str, text: str, whole: str) -> str:
    """The policy on the right of ``METHOD x POLICY``, where ``-ALPHA`` may stand for its argument."""
    if is_own(text) or "(" in text:
        return canonical("policy", text)
    match = ALPHA.fullmatch(text)
    name = match["name"] if match else text
    kind = parse("policy", SHORT.get(name.lower(), name)).name
    if kind == "AUSampling" and "+" in whole and method_of(method):
        short = "ausam" if method.lower() == "sam" else method.lower()
        raise ValueError(f'"{whole}" has a shorter name. Write {short}-{match["alpha"] if match else 0.5}.')
    if match is None:
        return kind
    if "alpha" not in {f.name for f in fields(POLICIES[kind])}:
        raise ValueError(f'"{whole}": {kind} has no alpha. It takes {arguments_of(POLICIES[kind])}.')
    return f"{kind}(alpha={float(match['alpha'])})"


def _with_alpha(name: str, alpha: float, whole: str) -> tuple[str, str]:
    """``ausam-ALPHA``, ``ausam-trim-ALPHA`` or ``METHOD-ALPHA``: a method with AUSampling."""
    if name in AUSAM:
        given = {"alpha": alpha, **AUSAM[name][1]}
        return "SAM", f"AUSampling({', '.join(f'{k}={v}' for k, v in given.items())})"
    if method := "" if name == "sam" else method_of(name):
        return method, f"AUSampling(alpha={alpha})"
    cls = {key.lower(): key for key in METHODS}.get(name)
    if cls is None:
        raise _refusal(whole)
    known = named_pair(cls, f"AUSampling(alpha={alpha})")
    better = known.name if known else f'"{cls} x AUSampling(alpha={alpha})"'
    raise ValueError(f'"{whole}" has another name. Write {better}.')


def _short_path(text: str) -> str:
    """A user's own class without the folders of its file: ``mine.py:MySAM`` for ``/home/me/mine.py:MySAM``."""
    if not is_own(text):
        return text
    name, bracket, arguments = text.partition("(")
    path, _, cls = name.rpartition(":")
    return f"{Path(path).name}:{cls}{bracket}{arguments}"


def _general_name(method: str, policy: str) -> str:
    """The general form in one word; the user's own part stays as it is, because its letters matter."""
    parts = [part for part in (method, policy) if part != "Full"]
    return "+".join(part if ":" in part else re.sub(r"[\s'\"]", "", part.lower()) for part in parts)


def label(name: str, base: str) -> str:
    """The paper's name of a pair; "SGD" is replaced by the base optimizer if that is another."""
    return pair(name).label.replace("SGD", BASE_LABELS[base])


def with_alpha(text: str, alpha: float) -> str:
    """The name of a pair with AUSampling added: ausam-0.5 for sam; empty if it has a policy or cannot have that one."""
    plain, at, fractions = text.partition("@")
    whole = pair(plain)
    kept = kept_suffix(whole.average, whole.select_epoch)
    if whole.policy != "Full" or not has_radius(whole.method):
        return ""
    with contextlib.suppress(ValueError):  # it may be no alpha
        if known := named_pair(whole.method, f"AUSampling(alpha={alpha})"):
            return known.name + kept + at + fractions
    return ""


# -- what is nearly a name ---------------------------------------------------------------------------------------------


def _refusal(text: str) -> ValueError:
    """The error for a text that is no pair."""
    name = text.lower()
    refuse_other_form("method", text)
    if why := mistake(name):
        return ValueError(why)
    # A fraction after @ is near to the alpha of another pair, and ~ to the pair without it, which nobody meant.
    known = [] if {"@", "~"} & set(name) else [*PAIRS, *(f"{family}-0.5" for family in AUSAM)]
    match = ALPHA.fullmatch(name)
    if begun := [one for one in known if one.startswith(f"{match['name'] if match else name}-")]:
        known = begun
    elif match and (near := nearest(match["name"], _taking_alpha())):
        known = [f"{near}-{match['alpha']}"]
    return unknown("pair", name, known, f"the name of a pair, {', '.join(FORMS[:-1])} or {FORMS[-1]}")


def mistake(text: str) -> str:
    """What is wrong with a text that is nearly the name of a pair, and the remedy; empty if nothing is known."""
    name = text.lower()
    parts = [] if "(" in name else name.split(",")
    if len(parts) > 1 and any(map(_exists, parts)):
        return f'"{name}": names are separated by spaces, e.g. ausam compare {" ".join(parts)}.'
    if name in AUSAM:
        return (
            f'"{name}" needs ALPHA, the fraction of each mini-batch to keep. Did you mean {name}-0.5? See ausam list.'
        )
    match = OUTSIDE.fullmatch(name)
    if match is None or match["name"] not in _taking_alpha():
        return ""
    percent = float(match["alpha"]) / 100
    meant = f"{match['name']}-{percent if 0.01 <= percent <= 1 and '.' not in match['alpha'] else 0.5:g}"
    return (
        f'"{name}": ALPHA is {match["alpha"]}, but it must be in (0, 1]: the fraction of each mini-batch to keep, e.g. '
        f"{meant}."
    )


def _exists(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(pair(text))
    return False


def _taking_alpha() -> list[str]:
    """The names before ``-ALPHA``."""
    return [*AUSAM, *(name for name, known in PAIRS.items() if known.policy == "Full" and name != "sam")]
