"""``ausam list``: methods, policies, pairs, networks and data sets, or everything about one of them."""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import MISSING, Field, fields
from typing import Any

from ausam.common.settings import Range, rules
from ausam.methods import METHODS
from ausam.policies import POLICIES
from ausam.policies.signals import signal_name
from ausam_lab.data.catalogue import DATASETS
from ausam_lab.names.expressions import arguments_of, brief
from ausam_lab.names.from_config import OWN_RHO
from ausam_lab.names.lookup import unknown
from ausam_lab.names.pairs import FORM, PAIRS, Pair, pair
from ausam_lab.networks.build import MODELS, POSE_MODELS, parameter_count
from ausam_lab.report.table import text_table


def everything() -> dict[str, Any]:
    """All tables as plain data."""
    return {
        "methods": [_method(m) for m in METHODS.values()],
        "policies": [_policy(p) for p in POLICIES.values()],
        "pairs": [_pair(name, known) for name, known in PAIRS.items()],
        "models": [{"name": name, "parameters": parameter_count(name, *_answers(name))} for name in MODELS],
        "data": [{"name": k, "about": d.about, "settings": d.settings} for k, d in DATASETS.items()],
    }


def _answers(model: str) -> tuple[int, int]:
    """The size it is built for: classes, joints or steps ahead, and channels."""
    return (16 if model in POSE_MODELS else 10, 3)


def _pair(name: str, known: Pair) -> dict[str, Any]:
    rho = OWN_RHO.get(_class_name(known.method))
    return {"name": name, "label": known.label, "method": known.method, "policy": known.policy, "rho": rho}


def text(tables: dict[str, Any]) -> str:
    """The same for people."""
    methods = [[m["name"], f"{m['forward']:.2f} + {m['backward']:.2f}", m["about"]] for m in tables["methods"]]
    policies = [[p["name"], f"{p['kept']:.2f}", p["signal"], p["about"]] for p in tables["policies"]]
    pairs = [[p["name"], f"{_written(p['method'], p['policy'])}{_own_rho(p['method'])}"] for p in tables["pairs"]]
    models = [[m["name"], f"{m['parameters']:,}"] for m in tables["models"]]
    data = [[d["name"], d["about"]] for d in tables["data"]]
    parts = [
        "Methods (passes: samples through forward + backward, per sample of the batch)",
        text_table(["Method", "Passes", "What it does"], methods, left=(0, 2)),
        "Policies (kept: fraction of the samples that is used)",
        text_table(["Policy", "Kept", "Ranks by", "What it does"], policies, left=(0, 2, 3)),
        f"Pairs (or any two {FORM}, or your own as\n"
        '"mine:MySAM(rho=0.1) + mine.py:MyPolicy"; NAME@F trains for a fraction F of the epochs, NAME@FxB with a\n'
        "fraction B of the batch size too, NAME~ema evaluates averaged weights, NAME~best the best epoch on held-out\n"
        "samples; rho is that of --rho, then the method's own as shown here, then that of the data)",
        text_table(["Pair", "Method + policy"], pairs, left=(0, 1)),
        "Networks (parameters for 10 classes, 16 joints or 96 steps ahead; or your own as module:function)",
        text_table(["Network", "Parameters"], models),
        "Data sets (or your own as module:function)",
        text_table(["Data set", "What it is"], data, left=(0, 1)),
        "ausam list NAME shows everything about one of these.",
    ]
    return "\n\n".join(parts)


def _method(cls: Any) -> dict[str, Any]:
    forward, backward = _example(cls).passes
    about = _about(cls)
    return {"name": cls.__name__, "forward": forward, "backward": backward, "sharpness": cls.sharpness, **about}


def _policy(cls: Any) -> dict[str, Any]:
    example = _example(cls)
    return {"name": cls.__name__, "kept": example.kept, "signal": signal_name(example.signal), **_about(cls)}


def _about(cls: Any) -> dict[str, Any]:
    return {
        "arguments": arguments_of(cls),
        "about": (cls.__doc__ or "").partition("\n")[0],
    }


def _example(cls: Any) -> Any:
    """An instance with default arguments; required ones (a length, labels) do not affect what is shown."""
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    return cls(**{name: [0] if name == "labels" else 100 for name in required})


# -- one of them -------------------------------------------------------------------------------------------------------


def named(name: str) -> list[dict[str, Any]]:
    """Everything with this name, ignoring case (``sam`` is a pair and a method); a ValueError for an unknown name."""
    tables: list[tuple[str, dict[str, Any]]] = [("method", METHODS), ("policy", POLICIES)]
    tables += [("network", MODELS), ("data set", DATASETS)]
    entries = [
        _DETAILS[kind](key, thing)
        for kind, table in tables
        for key, thing in table.items()
        if key.lower() == name.lower()
    ]
    try:
        if name.lower() in PAIRS or not entries:  # a method alone is a pair, too
            entries.insert(0, _pair_details(name))
    except ValueError:
        if not entries:
            known = [key.lower() for table in (METHODS, POLICIES, PAIRS, MODELS, DATASETS) for key in table]
            kind = "method, policy, pair, network or data set"
            raise unknown(kind, name, list(dict.fromkeys(known)), "one of their names") from None
    return entries


def named_text(entries: list[dict[str, Any]]) -> str:
    """The same for people."""
    return "\n\n\n".join(_named_text(one) for one in entries)


def _named_text(one: dict[str, Any]) -> str:
    parts = [f"{one['name']}: {one['kind']}", one["about"]]
    if one.get("arguments"):
        parts.append("\n".join(_argument_text(argument) for argument in one["arguments"]))
    if "settings" in one:
        rows = [[k, str(v)] for k, v in one["settings"].items()]
        parts.append(text_table(["Recommended setting", "Value"], rows, left=(0, 1)))
    parts += [one[key] for key in ("use", "see") if one.get(key)]
    return "\n\n".join(part for part in parts if part)


def _argument_text(argument: dict[str, str]) -> str:
    default = f" = {argument['default']}" if argument["default"] else ""
    allowed = f"  ({argument['range']})" if argument["range"] else ""
    about = textwrap.fill(argument["about"], 100, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return f"    {argument['name']}{default}{allowed}\n{about}".rstrip()


def _class_details(kind: str, cls: Any) -> dict[str, Any]:
    about, arguments, use = _docstring(cls)
    allowed = rules(cls)
    return {
        "name": cls.__name__,
        "kind": kind,
        "about": about,
        "arguments": [
            {
                "name": f.name,
                "default": _default(f),
                "range": _range(allowed.get(f.name)),
                "about": arguments.get(f.name, ""),
            }
            for f in fields(cls)
        ],
        "use": use,
    }


def _pair_details(name: str) -> dict[str, Any]:
    chosen = pair(name)
    own = _own_rho(chosen.method)
    return {
        "name": name.lower(),
        "kind": "pair",
        "about": f"{chosen.label} is {_written(chosen.method, chosen.policy)}{own}{_fractions(chosen)}.",
        "see": f"See ausam list {_class_name(chosen.method)} and ausam list {_class_name(chosen.policy)}.",
    }


def _written(method: str, policy: str) -> str:
    return method if policy == "Full" else f"{method} + {policy}"


def _own_rho(method: str) -> str:
    rho = OWN_RHO.get(_class_name(method))
    return "" if rho is None else f", rho {rho:g} unless --rho says otherwise"


def _fractions(chosen: Pair) -> str:
    parts = ((chosen.epochs, "epochs"), (chosen.batch, "batch size"))
    said = [f"{part:g} of the {what}" for part, what in parts if part != 1]
    said += [f"averaged weights (decay {chosen.average:g})"] if chosen.average else []
    said += [f"the best epoch on {chosen.select_epoch:g} of the samples, held out"] if chosen.select_epoch else []
    return f", with {' and '.join(said)}" if said else ""


def _class_name(text: str) -> str:
    return text.partition("(")[0]


def _network_details(name: str, _: Any) -> dict[str, Any]:
    answers, channels = _answers(name)
    what = "joints" if name in POSE_MODELS else "classes"
    count = f"{parameter_count(name, answers, channels):,} parameters for {channels} channels and {answers} {what}."
    make: Any = MODELS[name]
    return {"name": name, "kind": "network", "about": f"{_docstring(getattr(make, 'func', make))[0]}\n\n{count}"}


def _data_details(name: str, entry: Any) -> dict[str, Any]:
    return {"name": name, "kind": "data set", "about": f"{entry.about}.", "settings": entry.settings}


_DETAILS: dict[str, Any] = {
    "method": lambda _, cls: _class_details("method", cls),
    "policy": lambda _, cls: _class_details("policy", cls),
    "network": _network_details,
    "data set": _data_details,
}


def _docstring(cls: Any) -> tuple[str, dict[str, str], str]:
    """The description, the arguments one by one, and when to use it; without the doctest."""
    text = inspect.cleandoc(cls.__doc__ or "")
    text = re.sub(r"(?m)^>>>.*\n(?:^(?!>>>|$).*\n?)*", "", text)  # with its output
    before, _, after = text.partition("Arguments:\n")
    inside, _, use = after.partition("\n\n")
    arguments: dict[str, str] = {}
    for line in inspect.cleandoc(inside).splitlines():
        name, colon, about = line.partition(": ")
        if colon and name.isidentifier():
            arguments[name] = about
        elif arguments:
            arguments[list(arguments)[-1]] += f" {line.strip()}"
    return re.sub(r"\n{3,}", "\n\n", before).strip(), arguments, use.strip()


def _default(f: Field[Any]) -> str:
    if f.default_factory is not MISSING:
        return brief(f.default_factory())
    return "" if f.default is MISSING else repr(f.default)


def _range(rule: Any) -> str:
    """An argument's allowed values; empty if only its description states them."""
    if rule is None:
        return ""
    allowed, optional = rule
    kind = ("whole number " if allowed.whole else "number ") if isinstance(allowed, Range) else ""
    return f"{kind}{allowed}".strip() + (", or None" if optional else "")
