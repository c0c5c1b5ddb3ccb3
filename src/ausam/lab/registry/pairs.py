"""The paper's names as pairs of method and policy: one table for the command line, configs, reports and docs."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, fields, replace
from typing import Any

from ausam import METHODS, POLICIES
from ausam.lab.config import Config
from ausam.lab.registry.expressions import NO_LABELS, arguments_of, canonical, construct, has_radius, parse
from ausam.lab.registry.lookup import nearest, unknown
from ausam.policies.ausampling import RECOMMENDED


@dataclass(frozen=True)
class Pair:
    """A method and a policy, as text with arguments, with the paper's name for the two and their training length."""

    label: str
    method: str
    policy: str = "Full"
    epochs: float = 1.0  # fraction of a comparison's epochs
    batch: float = 1.0  # fraction of its batch size


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

# Families of pairs: SAM in the last fraction P of training only, its ascent on a fraction P of each batch, groups of M.
FAMILIES = {
    "late-sam-P": (re.compile(r"late-sam-(0?\.\d*[1-9]\d*)"), "Late-SAM-{}", "RST(p={}, schedule='piecewise')"),
    "sam-ascent-P": (re.compile(r"sam-ascent-(0?\.\d*[1-9]\d*)"), "SAM-ascent-{}", "SAM(ascent={})"),
    "M-sam": (re.compile(r"([1-9]\d*)-sam"), "{}-SAM", "SAM(m={})"),
}

BASE_LABELS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}

# The reference of quantised rows: not a separate pair, and not part of "every pair".
FULL = "full"

# SAM with the paper's policy, and with our recommended settings: NAME-ALPHA.
AUSAM: dict[str, tuple[str, dict[str, float]]] = {"ausam": ("AUSAM", {}), "ausam-trim": ("AUSAM-trim", RECOMMENDED)}

# Short names of policies in names of pairs; the others use the name of their class.
SHORT = {"balanced": "ClassBalanced", "info": "InfoBatch"}

NUMBER = r"(?P<alpha>0?\.\d+|1(\.0+)?)"

ALPHA = re.compile(rf"(?P<method>.+)-{NUMBER}")

SUM = re.compile(rf"(?P<method>[^+()]+(\(.*\))?)\+(?P<policy>\w+)(-{NUMBER}|(?P<arguments>\(.*\)))?")

OUTSIDE = re.compile(r"(?P<method>.+)-(?P<alpha>\d+(\.\d+)?)")  # a number that may be no alpha

PARTS = re.compile(r"(?P<name>.+)@(?P<parts>(?P<epochs>\d*\.?\d+)(x(?P<batch>\d*\.?\d+))?)")

# What a name may be besides one of the table.
FORMS = [
    *FAMILIES,
    "METHOD-ALPHA",
    "ausam-trim-ALPHA",
    "METHOD+POLICY-ALPHA",
    "METHOD x POLICY(...)",
    "NAME@F",
    "NAME@FxB",
]


def pair(name: str) -> Pair:
    """The pair of this name: ``NAME``, ``METHOD-ALPHA``, ``METHOD+POLICY-ALPHA`` or ``METHOD x POLICY``, and ``@F``.

    ``ausam-trim-ALPHA`` has our recommended settings. A name may belong to a family, such as ``late-sam-0.3``, which
    takes precedence over ``METHOD-ALPHA``. Both parts of ``METHOD x POLICY`` may have arguments:
    ``sam x AUSampling(alpha=0.5, ema=0.5)``.

    ``@F`` trains for a fraction F of the epochs, ``@FxB`` also with a fraction B of the batch size, at the same
    learning rate. ``sam@0.5x0.5`` takes as many steps as ``ausam-0.5``, with as many samples each.
    """
    name = spelling(name)
    if m := PARTS.fullmatch(name):
        found = pair(m["name"])
        epochs, batch = float(m["epochs"]), float(m["batch"] or 1)
        if not 0 < epochs <= 10:
            raise ValueError(f'"{name}": the number after @ is a fraction of the epochs, above 0 and at most 10.')
        if not 0 < batch <= 10:
            raise ValueError(f'"{name}": the number after x is a fraction of the batch size, above 0 and at most 10.')
        return replace(found, label=f"{found.label}@{m['parts']}", epochs=epochs, batch=batch)
    if name == FULL:
        return Pair("Full prec.", "Plain")
    if named := _named(name):
        return named
    if m := SUM.fullmatch(name):
        alone = _of_method(m["method"])
        if alone is None:
            own = canonical("method", m["method"])
            alone = Pair(own, own)
        return _with_policy(alone, m, name)
    if m := ALPHA.fullmatch(name):
        label, settings = AUSAM.get(m["method"], ("", {}))
        base = _of_method("sam" if label else m["method"])
        if base:
            given = ", ".join(f"{k}={v}" for k, v in {"alpha": float(m["alpha"]), **settings}.items())
            return Pair(f"{label or base.label}-{m['alpha']}", base.method, f"AUSampling({given})")
    raise _refusal(name)


def _refusal(name: str) -> ValueError:
    """The error for a name that is no pair."""
    if why := mistake(name):
        return ValueError(why)
    # A fraction after @ is near to the alpha of another pair, which nobody meant.
    known = [] if "@" in name else [*PAIRS, *(f"{family}-0.5" for family in AUSAM)]
    m = ALPHA.fullmatch(name)
    if begun := [one for one in known if one.startswith(f"{m['method'] if m else name}-")]:
        known = begun
    elif m and (near := nearest(m["method"], _with_alpha())):
        known = [f"{near}-{m['alpha']}"]
    return unknown("pair", name, known, f"the name of a pair, {', '.join(FORMS[:-1])} or {FORMS[-1]}")


def mistake(name: str) -> str:
    """What is wrong with a name that is nearly one of a pair, and the remedy; empty if nothing is known."""
    name = spelling(name)
    parts = [] if "(" in name else name.split(",")
    if len(parts) > 1 and any(map(_exists, parts)):
        return f'"{name}": names are separated by spaces, e.g. ausam compare {" ".join(parts)}.'
    if name in AUSAM:
        return (
            f'"{name}" needs ALPHA, the fraction of each mini-batch to keep. Did you mean {name}-0.5? See ausam list.'
        )
    m = OUTSIDE.fullmatch(name)
    if m is None or m["method"] not in _with_alpha():
        return ""
    percent = float(m["alpha"]) / 100
    meant = f"{m['method']}-{percent if 0.01 <= percent <= 1 and '.' not in m['alpha'] else 0.5:g}"
    return (
        f'"{name}": ALPHA is {m["alpha"]}, but it must be in (0, 1]: the fraction of each mini-batch to keep, e.g. '
        f"{meant}."
    )


def _exists(name: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(pair(name))
    return False


def _with_alpha() -> list[str]:
    """The methods of METHOD-ALPHA. LookSAM is not one of them here: a number after it is a number of steps."""
    alone = [name for name, found in PAIRS.items() if found.policy == "Full"]
    return [*AUSAM, *alone, *(name.lower() for name in METHODS if name != "LookSAM")]


def _named(name: str) -> Pair | None:
    """A pair of the table or of a family."""
    if name in PAIRS:
        return PAIRS[name]
    for pattern, label, method in FAMILIES.values():
        if m := pattern.fullmatch(name):
            return Pair(label.format(m[1]), method.format(m[1]))
    return None


def _of_method(name: str) -> Pair | None:
    """The pair of a method without a policy, by the name of the pair or of the class."""
    if (named := _named(name)) and named.policy == "Full":
        return named
    return {k.lower(): Pair(k, k) for k in METHODS}.get(name)


def spelling(name: str) -> str:
    """A pair's name in its canonical form, which also names a folder: ``sam+ausampling(alpha=0.5,ema=0.5)``."""
    return re.sub(r"[\s'\"]", "", re.sub(r"\s+x\s+|\s*×\s*", "+", name.lower()))


def _with_policy(of: Pair, found: re.Match[str], name: str) -> Pair:
    """The pair of this method with the policy in the name."""
    kind, _ = parse("policy", SHORT.get(found["policy"], found["policy"]))
    if found["arguments"]:
        policy = canonical("policy", kind + found["arguments"])
        return replace(of, label=f"{of.label} × {policy}", policy=policy)
    called = next((short.capitalize() for short, policy in SHORT.items() if policy == kind), kind)
    alpha = found["alpha"]
    if alpha is None:
        return replace(of, label=f"{of.label}+{called}", policy=kind)
    if "alpha" not in {f.name for f in fields(POLICIES[kind])}:
        raise ValueError(f'"{name}": {kind} has no alpha. It takes {arguments_of(POLICIES[kind])}.')
    return replace(of, label=f"{of.label}+{called}-{alpha}", policy=f"{kind}(alpha={float(alpha)})")


def label(name: str, base: str) -> str:
    """The paper's name of a pair; "SGD" is replaced by the base optimizer if that is another."""
    return pair(name).label.replace("SGD", BASE_LABELS[base])


def with_alpha(name: str, alpha: float) -> str:
    """The name of a pair with AUSampling added: ausam-0.5 for sam; empty if the name has a policy or cannot have it."""
    alone, at, parts = spelling(name).partition("@")
    found = pair(alone)
    if found.policy != "Full" or not has_radius(found.method):
        return ""
    whole = f"{'ausam' if alone == 'sam' else alone}-{alpha:g}{at}{parts}"
    return whole if _exists(whole) else ""


def label_of(config: Config) -> str:
    """The label of the pair with the method and the policy of a run; empty if no name is known for the two.

    Other settings do not matter: in a comparison, too, a pair keeps its name whatever the rho or the ramp.
    """
    with contextlib.suppress(ValueError):  # a record may name a method of another version
        mine = _objects(config.method, config.policy, config.alpha)
        alpha = f"{getattr(mine[1], 'alpha', '')}"
        families = _with_alpha() if re.fullmatch(NUMBER, alpha) else []
        for name in (*PAIRS, *(f"{method}-{alpha}" for method in families)):
            found = pair(name)
            if _objects(found.method, found.policy) == mine:
                return label(name, config.base)
    return ""


def _objects(method: str, policy: str, alpha: float | None = None) -> tuple[Any, Any]:
    """Method and policy to compare with others: what the data and the length of a run decide is the same for all."""
    return (
        construct("method", method, total_steps=1),
        construct("policy", policy, alpha=alpha, epochs=1, labels=NO_LABELS),
    )
