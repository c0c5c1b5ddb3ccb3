"""The paper's names as pairs of method and policy: one table for the command line, configs, reports and docs.

A pair has one name, if it has any, and one general form: ``METHOD x POLICY``. Whatever a pair is written as, its label
and the folder of its runs are the same.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ausam import METHODS, POLICIES
from ausam.lab.config import Config
from ausam.lab.registry.expressions import OF_A_RUN, arguments_of, canonical, construct, has_radius, parse
from ausam.lab.registry.lookup import nearest, unknown
from ausam.lab.registry.user_code import is_own, refuse_other_form
from ausam.policies.ausampling import RECOMMENDED


@dataclass(frozen=True)
class Pair:
    """A method and a policy, as text with arguments, with the paper's name for the two and their training length."""

    label: str
    method: str
    policy: str = "Full"
    epochs: float = 1.0  # fraction of a comparison's epochs
    batch: float = 1.0  # fraction of its batch size
    name: str = ""  # how it is written, which also names its folder; empty in the table, whose keys are the names


PAIRS = {
    "sgd": Pair("SGD", "Plain"),
    "sam": Pair("SAM", "SAM"),
    "asam": Pair("ASAM", "ASAM"),
    "gsam": Pair("GSAM", "GSAM"),
    "friendly-sam": Pair("Friendly-SAM", "FriendlySAM"),
    "looksam-5": Pair("LookSAM-5", "LookSAM(k=5)"),
    "esam": Pair("ESAM", "ESAM"),
    "saf": Pair("SAF", "SAF"),
    "mesa": Pair("MESA", "MESA"),
    "k-sam": Pair("K-SAM", "KSAM"),
    "g-rst": Pair("G-RST", "RST(p=0.5, gamma=2.0)"),
    "ae-sam": Pair("AE-SAM", "AESAM"),
    "ae-looksam": Pair("AE-LookSAM", "AESAM(inner=LookSAM())"),
    "vsam": Pair("vSAM", "VSAM"),
    "momentum-sam": Pair("Momentum-SAM", "MomentumSAM"),
    "s2-sam": Pair("S2-SAM", "PreviousGradientSAM"),
    "wsam": Pair("WSAM", "WSAM"),
    "functional-sam": Pair("Functional-SAM", "FunctionalSAM"),
    "late-sam-0.1": Pair("Late-SAM-0.1", "RST(p=0.1, schedule='piecewise')"),
    "late-sam-0.25": Pair("Late-SAM-0.25", "RST(p=0.25, schedule='piecewise')"),
    "sam-ascent-0.25": Pair("SAM-ascent-0.25", "SAM(ascent=0.25)"),
    "16-sam": Pair("16-SAM", "SAM(m=16)"),
    "ausam-0.4": Pair("AUSAM-0.4", "SAM", "AUSampling(alpha=0.4)"),
    "ausam-0.5": Pair("AUSAM-0.5", "SAM", "AUSampling(alpha=0.5)"),
    "ausam-0.6": Pair("AUSAM-0.6", "SAM", "AUSampling(alpha=0.6)"),
    "ausam-0.7": Pair("AUSAM-0.7", "SAM", "AUSampling(alpha=0.7)"),
    "sam+random": Pair("SAM+Random", "SAM", "Random(alpha=0.5)"),
    "sgd+random": Pair("SGD+Random", "Plain", "Random(alpha=0.5)"),
    "sgd+info": Pair("SGD+Info", "Plain", "InfoBatch"),
    "sam+info*": Pair("SAM+Info*", "SAM", "InfoBatch(on='first')"),
    "sam+info": Pair("SAM+Info", "SAM", "InfoBatch(on='second')"),
}


class Family(NamedTuple):
    """Pairs that differ in one number: ``sam-ascent-0.25`` is ``SAM(ascent=0.25)``."""

    name: str  # with {} for the number
    label: str
    number: str  # a regular expression
    method: str
    argument: str
    others: dict[str, Any]  # arguments that all of them have


PART = r"0?\.\d*[1-9]\d*"

# By the form in help texts: SAM in the last fraction P of training only, its ascent on a fraction P of each batch, and
# groups of M samples.
FAMILIES = {
    "late-sam-P": Family("late-sam-{}", "Late-SAM-{}", PART, "RST", "p", {"schedule": "piecewise"}),
    "sam-ascent-P": Family("sam-ascent-{}", "SAM-ascent-{}", PART, "SAM", "ascent", {}),
    "M-sam": Family("{}-sam", "{}-SAM", r"[1-9]\d*", "SAM", "m", {}),
}

BASE_LABELS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}

# The reference of quantised rows: not a separate pair, and not part of "every pair".
FULL = "full"

# SAM with the paper's policy, and with our recommended settings: NAME-ALPHA.
AUSAM: dict[str, tuple[str, dict[str, float]]] = {"ausam": ("AUSAM", {}), "ausam-trim": ("AUSAM-trim", RECOMMENDED)}

# Short names of policies in names of pairs; the others use the name of their class.
SHORT = {"balanced": "ClassBalanced", "info": "InfoBatch"}

NUMBER = r"0?\.\d+|1(?:\.0+)?"  # an alpha

ALPHA = re.compile(rf"(?P<name>.+)-(?P<alpha>{NUMBER})")

OUTSIDE = re.compile(r"(?P<name>.+)-(?P<alpha>\d+(\.\d+)?)")  # a number that may be no alpha

FRACTIONS = re.compile(r"(?P<name>.+)@(?P<epochs>\d*\.?\d+)(x(?P<batch>\d*\.?\d+))?", re.IGNORECASE | re.DOTALL)

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
]


def pair(text: str) -> Pair:
    """The pair written as a name, as ``METHOD x POLICY``, or as your own ``module:Class``; and ``@F`` or ``@FxB``.

    Names are those of the table, of a family (``late-sam-0.3``), ``ausam-ALPHA`` and ``METHOD-ALPHA`` with AUSampling,
    ``ausam-trim-ALPHA`` with our recommended settings, and ``METHOD+POLICY-ALPHA``. Both sides of ``METHOD x POLICY``
    may have arguments or be your own: ``mine:MySAM(rho=0.1) x AUSampling(alpha=0.5, ema=0.5)``.

    ``@F`` trains for a fraction F of the epochs, ``@FxB`` also with a fraction B of the batch size, at the same
    learning rate. ``sam@0.5x0.5`` takes as many steps as ``ausam-0.5``, with as many samples each.
    """
    match = FRACTIONS.fullmatch(text.strip())
    if match is None:
        return _whole(text.strip())
    epochs, batch = float(match["epochs"]), float(match["batch"] or 1)
    if not 0 < epochs <= 10:
        raise ValueError(f'"{text}": the number after @ is a fraction of the epochs, above 0 and at most 10.')
    if not 0 < batch <= 10:
        raise ValueError(f'"{text}": the number after x is a fraction of the batch size, above 0 and at most 10.')
    whole = _whole(match["name"])
    suffix = f"@{epochs:g}" + (f"x{batch:g}" if match["batch"] else "")
    return replace(whole, label=whole.label + suffix, name=whole.name + suffix, epochs=epochs, batch=batch)


def _whole(text: str) -> Pair:
    """The pair without fractions."""
    if text.lower() == FULL:
        return Pair("Full prec.", "Plain", name=FULL)
    method, policy = _texts(text)
    if (known := _named(method, policy)) is not None:
        return known
    label = " × ".join(_short_path(part) for part in (method, policy) if part != "Full")
    return Pair(label, method, policy, name=_general_name(method, policy))


# -- from a name to method and policy ----------------------------------------------------------------------------------


def _texts(text: str) -> tuple[str, str]:
    """The method and the policy that a name or an expression stands for, as text."""
    if text.lower() in PAIRS:
        known = PAIRS[text.lower()]
        return known.method, known.policy
    if method := _named_method(text):
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


def _named_method(text: str) -> str:
    """The method of a pair without selection, in the table or of a family; empty if the name is not one."""
    name = text.lower()
    if name in PAIRS and PAIRS[name].policy == "Full":
        return PAIRS[name].method
    for family in FAMILIES.values():
        if match := re.fullmatch(family.name.format(f"({family.number})"), name):
            given = {family.argument: float(match[1]) if "." in match[1] else int(match[1]), **family.others}
            return f"{family.method}({', '.join(f'{k}={v!r}' for k, v in given.items())})"
    return ""


def _method(text: str) -> str:
    return _named_method(text) or canonical("method", text)


def _policy(method: str, text: str, whole: str) -> str:
    """The policy on the right of ``METHOD x POLICY``, where ``-ALPHA`` may stand for its argument."""
    if is_own(text) or "(" in text:
        return canonical("policy", text)
    match = ALPHA.fullmatch(text)
    name = match["name"] if match else text
    kind = parse("policy", SHORT.get(name.lower(), name)).name
    if kind == "AUSampling" and "+" in whole and _named_method(method):
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
    if method := "" if name == "sam" else _named_method(name):
        return method, f"AUSampling(alpha={alpha})"
    cls = {key.lower(): key for key in METHODS}.get(name)
    if cls is None:
        raise _refusal(whole)
    known = _named(cls, f"AUSampling(alpha={alpha})")
    better = known.name if known else f'"{cls} x AUSampling(alpha={alpha})"'
    raise ValueError(f'"{whole}" has another name. Write {better}.')


# -- from method and policy to their name ------------------------------------------------------------------------------

Settings = tuple[str, dict[str, Any]]  # the name of a class, and the arguments that differ from its defaults


def _named(method: str, policy: str, alpha: float | None = None) -> Pair | None:
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
    method = _named_method(name)
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


def label_of(config: Config) -> str:
    """The label of the pair with the method and the policy of a run; empty if no name is known for the two.

    Other settings do not matter: in a comparison, too, a pair keeps its name whatever the rho or the ramp.
    """
    with contextlib.suppress(ValueError):  # a record may name a method of another version
        if known := _named(config.method, config.policy, config.alpha):
            return known.label.replace("SGD", BASE_LABELS[config.base])
    return ""


def with_alpha(text: str, alpha: float) -> str:
    """The name of a pair with AUSampling added: ausam-0.5 for sam; empty if it has a policy or cannot have that one."""
    plain, at, fractions = text.partition("@")
    whole = pair(plain)
    if whole.policy != "Full" or not has_radius(whole.method):
        return ""
    with contextlib.suppress(ValueError):  # it may be no alpha
        if known := _named(whole.method, f"AUSampling(alpha={alpha})"):
            return known.name + at + fractions
    return ""


# -- what is nearly a name ---------------------------------------------------------------------------------------------


def _refusal(text: str) -> ValueError:
    """The error for a text that is no pair."""
    name = text.lower()
    refuse_other_form("method", text)
    if why := mistake(name):
        return ValueError(why)
    # A fraction after @ is near to the alpha of another pair, which nobody meant.
    known = [] if "@" in name else [*PAIRS, *(f"{family}-0.5" for family in AUSAM)]
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
