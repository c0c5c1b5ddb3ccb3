"""The paper's names are pairs: one table for the command line, the configs, the reports and the docs."""

from __future__ import annotations

import ast
import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ausam import METHODS, POLICIES, Method, Policy, check
from ausam.lab.config import Config
from ausam.lab.registry.lookup import find, unknown
from ausam.selection.ausampling import RECOMMENDED


@dataclass(frozen=True)
class Pair:
    """A method and a policy, as text with arguments, how the paper calls the two together, and how long they train."""

    label: str
    method: str
    policy: str = "Full"
    epochs: float = 1.0  # part of a comparison's epochs
    batch: float = 1.0  # part of its batch size


# rho is that of SAM in the same comparison; these methods need one of another size. ASAM: its authors' ratio.
# Momentum-SAM: what did best on the digits; its authors' ratio of 15, on larger networks, is too much there.
RHO_SCALE = {"ASAM": 10.0, "MomentumSAM": 5.0}

# Arguments that the papers count in epochs and the methods, which know none, in steps.
IN_EPOCHS = {"VSAM": {"warmup": 3}, "MESA": {"start": 5}}

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

# Families of pairs: SAM in the last part P of training only, its ascent on the part P of each batch, groups of M.
FAMILIES = {
    "late-sam-P": (re.compile(r"late-sam-(0?\.\d*[1-9]\d*)"), "Late-SAM-{}", "RST(p={}, schedule='piecewise')"),
    "sam-ascent-P": (re.compile(r"sam-ascent-(0?\.\d*[1-9]\d*)"), "SAM-ascent-{}", "SAM(ascent={})"),
    "M-sam": (re.compile(r"([1-9]\d*)-sam"), "{}-SAM", "SAM(m={})"),
}

BASE_LABELS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}

# What quantised rows stand beside: not a pair of its own, and no part of "every pair".
FULL = "full"

# SAM with the paper's policy, and with the settings that we recommend: NAME-ALPHA.
AUSAM: dict[str, tuple[str, dict[str, float]]] = {"ausam": ("AUSAM", {}), "ausam-trim": ("AUSAM-trim", RECOMMENDED)}

# Short names of policies in names of pairs; the others are called by their own.
SHORT = {"balanced": "ClassBalanced", "info": "InfoBatch"}

NUMBER = r"(?P<alpha>0?\.\d+|1(\.0+)?)"
ALPHA = re.compile(rf"(?P<method>.+)-{NUMBER}")
SUM = re.compile(rf"(?P<method>[^+()]+(\(.*\))?)\+(?P<policy>\w+)(-{NUMBER}|(?P<arguments>\(.*\)))?")
PARTS = re.compile(r"(?P<name>.+)@(?P<parts>(?P<epochs>\d*\.?\d+)(x(?P<batch>\d*\.?\d+))?)")


def pair(name: str) -> Pair:
    """The pair of this name: ``NAME``, ``METHOD-ALPHA``, ``METHOD+POLICY-ALPHA`` or ``METHOD x POLICY``, and ``@F``.

    ``ausam-trim-ALPHA`` has the settings that we recommend. A name may be one of a family, such as ``late-sam-0.3``;
    that wins over ``METHOD-ALPHA``. The two of ``METHOD x POLICY`` may have arguments:
    ``sam x AUSampling(alpha=0.5, ema=0.5)``.

    ``@F`` trains for the part F of the epochs, ``@FxB`` also with the part B of the batch size; the learning rate is
    the same. So ``sam@0.5x0.5`` takes as many steps as ``ausam-0.5``, on as many samples each.
    """
    name = spelling(name)
    if m := PARTS.fullmatch(name):
        found = pair(m["name"])
        epochs, batch = float(m["epochs"]), float(m["batch"] or 1)
        if not 0 < epochs <= 10:
            raise ValueError(f'"{name}": the number after @ is the part of the epochs, above 0 and at most 10.')
        if not 0 < batch <= 10:
            raise ValueError(f'"{name}": the number after x is the part of the batch size, above 0 and at most 10.')
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
    forms = [
        *FAMILIES,
        "METHOD-ALPHA",
        "ausam-trim-ALPHA",
        "METHOD+POLICY-ALPHA",
        "METHOD x POLICY(...)",
        "NAME@F",
        "NAME@FxB",
    ]
    raise unknown("pair", name, [*PAIRS, *forms])


def _named(name: str) -> Pair | None:
    """A pair of the table or of a family."""
    if name in PAIRS:
        return PAIRS[name]
    for pattern, label, method in FAMILIES.values():
        if m := pattern.fullmatch(name):
            return Pair(label.format(m[1]), method.format(m[1]))
    return None


def _of_method(name: str) -> Pair | None:
    """The pair that is a method alone: one that has a name without a policy, or the class's own name."""
    if (named := _named(name)) and named.policy == "Full":
        return named
    return {k.lower(): Pair(k, k) for k in METHODS}.get(name)


def spelling(name: str) -> str:
    """A pair's name in one way of writing, in which it also names a folder: ``sam+ausampling(alpha=0.5,ema=0.5)``."""
    return re.sub(r"[\s'\"]", "", re.sub(r"\s+x\s+|\s*×\s*", "+", name.lower()))


def _with_policy(of: Pair, found: re.Match[str], name: str) -> Pair:
    """The pair of this method with the policy that the name has."""
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
    """What the paper calls a pair; where the base optimizer is not SGD, that is what "SGD" stands for."""
    return pair(name).label.replace("SGD", BASE_LABELS[base])


def configured(name: str, config: Config) -> Config:
    """The settings of a comparison turned into those of one of its pairs."""
    found = pair(name)
    kind = parse("method", found.method)[0]
    rho = None if config.rho is None else config.rho * RHO_SCALE.get(kind, 1.0)
    full = spelling(name).partition("@")[0] == FULL
    return replace(
        config,
        method=found.method,
        policy=found.policy,
        rho=rho,
        rho_schedule=config.rho_schedule if has_radius(found.method) else "constant",
        alpha=None,
        quantize=0 if full else config.quantize,
        init="" if full else config.init,
        epochs=max(1, round(found.epochs * config.epochs)),
        batch_size=max(1, round(found.batch * config.batch_size)),
    )


def parse(kind: str, text: str, **settings: Any) -> tuple[str, dict[str, Any]]:
    """``"LookSAM(k=5)"`` as a class name and its arguments; literals and nested methods only, nothing is executed."""
    match = re.fullmatch(r"\s*([A-Za-z0-9_]+)\s*(\((.*)\))?\s*", text, re.DOTALL)
    if match is None:
        raise ValueError(f'"{text}" is not a {kind}: write a name, or a name with arguments such as SAM(rho=0.1).')
    table: dict[str, Any] = METHODS if kind == "method" else POLICIES
    cls = find(kind, match[1], table)
    try:
        call = ast.parse(f"f({match[3] or ''})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
            raise ValueError("every argument needs its name")
        values = {str(k.arg): k.value for k in call.keywords}
        nested = {k: construct("method", ast.unparse(v), **settings) for k, v in values.items() if k == "inner"}
        arguments = {k: nested[k] if k in nested else _value(v) for k, v in values.items()}
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f'The arguments of "{text}" cannot be read ({error}). Write e.g. SAM(rho=0.1).') from None
    wrong = set(arguments) - {f.name for f in fields(cls)}
    if wrong:
        raise ValueError(f"{cls.__name__} has no argument {sorted(wrong)[0]}. It takes {arguments_of(cls)}.")
    return cls.__name__, arguments


def _value(node: ast.expr) -> Any:
    """A literal; a bare word is text, or True, False or None in any case."""
    if isinstance(node, ast.Name):
        return {"true": True, "false": False, "none": None}.get(node.id.lower(), node.id)
    return ast.literal_eval(node)


def canonical(kind: str, text: str) -> str:
    """The text in one way of writing: the class's own name, then its arguments in their order. ``full`` is ``Full``."""
    name, arguments = parse(kind, text)
    cls: Any = (METHODS if kind == "method" else POLICIES)[name]
    given = [f"{f.name}={_text(arguments[f.name])}" for f in fields(cls) if f.name in arguments]
    return f"{name}({', '.join(given)})" if given else name


def _text(value: Any) -> str:
    if value in (math.inf, -math.inf):
        return "1e999" if value > 0 else "-1e999"  # their own names are no literals
    return f"{type(value).__name__}({', '.join(_given(value))})" if type(value).__name__ in METHODS else repr(value)


def _given(thing: Any) -> list[str]:
    """The arguments that differ from their defaults, as text."""
    return [
        f"{f.name}={_text(value)}"
        for f in fields(thing)
        if (value := getattr(thing, f.name)) != (f.default if f.default_factory is MISSING else f.default_factory())
    ]


def with_canonical(settings: dict[str, Any]) -> dict[str, Any]:
    """Saved settings with method and policy in one way of writing; what names none stays as it is."""
    out = dict(settings)
    for kind in ("method", "policy"):
        with contextlib.suppress(ValueError, TypeError):
            out[kind] = canonical(kind, out[kind])
    return out


# Which flag is an argument of which axis.
ARGUMENTS = {"rho": "method", "alpha": "policy", "s_min": "policy", "s_max": "policy", "ramp": "policy"}


def refuse_idle(given: Mapping[str, Any], runs: Sequence[Config]) -> None:
    """Raise a ValueError for a setting that was given and that none of the runs uses."""
    for name, kind in ARGUMENTS.items():
        if given.get(name) is None:
            continue
        texts = list(dict.fromkeys(getattr(run, kind) for run in runs))
        if not any(_uses(kind, text, name) for text in texts):
            flag = f"--{name.replace('_', '-')}"
            own = [text for text in texts if name in parse(kind, text)[1]]
            why = (
                f"{own[0]} says it itself"
                if own
                else f"{' and '.join(texts)} {'takes' if len(texts) == 1 else 'take'} none"
            )
            raise ValueError(f"{flag} is {given[name]}, but {why}, so that it has no effect. Leave {flag} out.")
    shape = given.get("rho_schedule") or "constant"
    if shape != "constant" and not any(has_radius(run.method) for run in runs):
        methods = " and ".join(dict.fromkeys(run.method for run in runs))
        raise ValueError(f"--rho-schedule is {shape}, but {methods} has no rho to change. Leave --rho-schedule out.")


def has_radius(text: str) -> bool:
    """Whether the method that the text names has a rho, itself or inside."""
    names = {f.name for f in fields(METHODS[parse("method", text)[0]])}
    return "rho" in names or ("inner" in names and has_radius(_inner(text)))


def _uses(kind: str, text: str, name: str) -> bool:
    """Whether what the text names has this argument, itself or inside, and leaves it open."""
    cls, arguments = parse(kind, text)
    names = {f.name for f in fields((METHODS if kind == "method" else POLICIES)[cls])}
    if name in arguments:
        return False
    return name in names or ("inner" in names and _uses(kind, _inner(text), name))


def _inner(text: str) -> str:
    """The text of the inner method; SAM where none is given."""
    call = ast.parse(text.strip(), mode="eval").body
    found = [ast.unparse(k.value) for k in call.keywords if k.arg == "inner"] if isinstance(call, ast.Call) else []
    return found[0] if found else "SAM"


def arguments_of(cls: Any) -> str:
    """The arguments of a method or policy with their defaults: ``rho=0.05, k=5``; a required one stands alone."""
    return ", ".join(f.name + _default(f) for f in fields(cls))


def _default(f: Field[Any]) -> str:
    if f.default_factory is not MISSING:
        return f"={brief(f.default_factory())}"
    return "" if f.default is MISSING else f"={f.default!r}"


def construct(kind: str, text: str, **settings: Any) -> Any:
    """The object that the text names; ``settings`` fill the arguments it has and the text leaves open."""
    settings = {k: v for k, v in settings.items() if v is not None}
    name, arguments = parse(kind, text, **settings)
    cls: Any = (METHODS if kind == "method" else POLICIES)[name]
    takes = {f.name for f in fields(cls)}
    if "inner" in takes and "inner" not in arguments:
        arguments["inner"] = construct("method", "SAM", **settings)
    try:
        return cls(**{k: v for k, v in settings.items() if k in takes} | arguments)
    except TypeError as error:
        raise ValueError(f'An argument of "{text}" is of a wrong kind: {error}.') from None


def brief(thing: object) -> str:
    """A method or policy as text: its first argument, and what differs from the defaults."""
    shown = [f for f in fields(thing) if f.repr]  # type: ignore[arg-type]
    given = [
        f"{f.name}={brief(value) if f.name == 'inner' else repr(value)}"
        for i, f in enumerate(shown)
        if (value := getattr(thing, f.name)) != f.default or i == 0
    ]
    return f"{type(thing).__name__}({', '.join(given)})"


def method_and_policy(config: Config, steps: int, labels: Tensor | None = None) -> tuple[Method, Policy]:
    """The two objects of a run, checked against each other; ``steps`` for methods that plan over all of them.

    ``labels`` are the training labels, for a policy that needs them; without them the pair is only to be looked at.
    """
    name, arguments = parse("method", config.method)
    if name == "SAF" and isinstance(gap := arguments.get("gap"), int) and gap > config.epochs:
        raise ValueError(
            f"SAF: gap is {gap}, but a sample is visited at most {config.epochs} times (--epochs), so that none has an "
            f"answer so old. Use a gap of at most {config.epochs}."
        )
    counted = {k: max(1, epochs * steps // config.epochs) for k, epochs in IN_EPOCHS.get(name, {}).items()}
    method: Method = construct("method", config.method, rho=config.rho, total_steps=steps, **counted)
    policy: Policy = construct(
        "policy",
        config.policy,
        alpha=config.alpha,
        s_min=config.s_min,
        s_max=config.s_max,
        ramp=config.ramp,
        epochs=config.epochs,
        labels=torch.zeros(1, dtype=torch.int64) if labels is None else labels,
    )
    check(method, policy)
    return method, policy
