"""``ausam list``: methods, policies, pairs, networks and data sets, or everything about one of them."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

from ausam.methods import METHODS
from ausam.policies import POLICIES
from ausam.policies.signals import signal_name
from ausam_lab.data.catalogue import DATASETS
from ausam_lab.names.expressions import arguments_of
from ausam_lab.names.from_config import OWN_RHO
from ausam_lab.names.lookup import unknown
from ausam_lab.names.pairs import PAIRS, Pair, pair
from ausam_lab.networks.build import MODELS, POSE_MODELS, parameter_count
from ausam_lab.report.table import Table, to_text
from ausam_lab.report.text import WIDTH, Screen

Entry = dict[str, Any]

OTHER_PAIRS = (
    ('"SAM(m=16) + Random(0.25)"', "any method and policy, as in Python"),
    ('"mine.py:MySAM + Random"', "your own class, from a file or a module"),
    ("sam@0.5", "half of the epochs"),
    ("sgd@1x0.5", "half of the batch size"),
    ("sgd~ema, sgd~best", "averaged weights; the best epoch on held-out samples"),
)


def everything() -> dict[str, list[Entry]]:
    """All tables as plain data."""
    return {
        "methods": [_method(name, cls) for name, cls in METHODS.items()],
        "policies": [_policy(name, cls) for name, cls in POLICIES.items()],
        "pairs": [_pair(name, known) for name, known in PAIRS.items()],
        "models": [{"name": name, "parameters": parameter_count(name, *_sizes(name))} for name in MODELS],
        "data": [{"name": name, "about": d.about, "settings": d.settings} for name, d in DATASETS.items()],
    }


def text(tables: dict[str, list[Entry]]) -> str:
    """The same for people."""
    methods = [(m["name"], f"{m['forward']:.2f} + {m['backward']:.2f}", m["about"]) for m in tables["methods"]]
    policies = [(p["name"], f"{p['kept']:.2f}", p["about"]) for p in tables["policies"]]
    parts = [
        "Methods. Passes: samples through forward + backward, per sample of the batch.",
        _table(("Method", "Passes", "What it does"), methods),
        "Policies. Kept: the fraction of the samples that is used.",
        _table(("Policy", "Kept", "What it does"), policies),
        "Pairs. --rho sets the rho of all; else it is the method's own or the data's.",
        _table(("Pair", "Method + policy"), [(p["name"], _both(p)) for p in tables["pairs"]]),
        _table(("Or write", "for"), OTHER_PAIRS),
        "Networks. Parameters for 10 classes or 16 joints. Your own: module:function.",
        _table(("Network", "Parameters"), [(m["name"], f"{m['parameters']:,}") for m in tables["models"]]),
        "Data sets. Your own: folder:PATH, hf:NAME, module:function or file.py:function.",
        _table(("Data set", "What it is"), [(d["name"], d["about"]) for d in tables["data"]]),
        "ausam list NAME shows everything about one of these.",
    ]
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose last column is wrapped, so that no line is wider than the others allow."""
    before = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head) - 1)]
    room = WIDTH - sum(before) - 2 * len(before)
    lines = []
    for row in rows:
        first, *rest = textwrap.wrap(row[-1], room)
        lines += [(*row[:-1], first), *((*[""] * len(before), more) for more in rest)]
    numbers = {i for i, name in enumerate(head) if name in ("Passes", "Kept", "Parameters")}
    return to_text(Table.of(head, lines, left=[i for i in range(len(head)) if i not in numbers]), Screen())


def named(name: str) -> list[Entry]:
    """Everything with this name, ignoring case (``sam`` is a pair and a method); a ValueError for an unknown name."""
    entries: list[Entry] = []
    classes: dict[str, Any] = METHODS | POLICIES
    for key, cls in classes.items():
        if key.lower() == name.lower():
            entries.append(_method(key, cls) if key in METHODS else _policy(key, cls))
            entries[-1] |= {"arguments": arguments_of(cls), "about": plain(inspect.getdoc(cls) or "")}
    for key, make in MODELS.items():
        if key.lower() == name.lower():
            outputs, channels = _sizes(key)
            size = f"{parameter_count(key, outputs, channels):,} parameters for {channels} channels"
            what = "joints" if key in POSE_MODELS else "classes"
            doc = plain(inspect.getdoc(getattr(make, "func", make)) or "")
            entries.append({"name": key, "kind": "network", "about": f"{doc}\n\n{size} and {outputs} {what}."})
    for key, data in DATASETS.items():
        if key.lower() == name.lower():
            entries.append({"name": key, "kind": "data set", "about": data.about, "settings": data.settings})
    try:
        if name.lower() in PAIRS or not entries:  # a method alone is a pair, too
            entries.insert(0, _pair(name.lower(), pair(name)))
    except ValueError:
        known = [key.lower() for table in (METHODS, POLICIES, PAIRS, MODELS, DATASETS) for key in table]
        kind = "method, policy, pair, network or data set"
        raise unknown(kind, name, list(dict.fromkeys(known)), "one of their names") from None
    return entries


def named_text(entries: Sequence[Entry]) -> str:
    """The same for people."""
    return "\n\n\n".join("\n\n".join(filter(None, _parts(entry))) for entry in entries)


def _parts(entry: Entry) -> list[str]:
    arguments = f"({entry['arguments']})" if entry.get("arguments") else ""
    head = textwrap.fill(f"{entry['name']}{arguments}: {entry['kind']}", WIDTH, subsequent_indent="    ")
    settings = "\n".join(f"  {key} {value}" for key, value in entry.get("settings", {}).items())
    if entry["kind"] == "pair":
        return [head, f"{entry['label']} is {_both(entry)}."]
    return [head, entry["about"], settings and f"The settings that suit it:\n{settings}"]


def plain(text: str) -> str:
    """The text of a docstring without its markup."""
    return re.sub(r":\w+:`[~!]?([^`]*)`", r"\1", text).replace("``", "")


def _method(name: str, cls: Any) -> Entry:
    forward, backward = _example(cls).passes
    about = plain((cls.__doc__ or "").partition("\n")[0])
    cost = {"forward": forward, "backward": backward, "sharpness": cls.sharpness}
    return {"name": name, "kind": "method", "arguments": arguments_of(cls), "about": about, **cost}


def _policy(name: str, cls: Any) -> Entry:
    example = _example(cls)
    about = plain((cls.__doc__ or "").partition("\n")[0])
    use = {"kept": example.kept, "signal": signal_name(example.signal)}
    return {"name": name, "kind": "policy", "arguments": arguments_of(cls), "about": about, **use}


def _example(cls: Any) -> Any:
    """An instance with default arguments; required ones (a length, labels) do not affect what is shown."""
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    return cls(**{name: [0] if name == "labels" else 100 for name in required})


def _pair(name: str, known: Pair) -> Entry:
    rho = OWN_RHO.get(known.method.partition("(")[0])
    entry = {"name": name, "kind": "pair", "label": known.label, "method": known.method, "policy": known.policy}
    return entry | {"rho": rho, "epochs": known.epochs, "batch": known.batch}


def _both(entry: Entry) -> str:
    """The method and the policy of a pair, with what else it changes."""
    rho = "" if entry["rho"] is None else f", rho {entry['rho']:g}"
    parts = [f"{entry[key]:g} of the {what}" for key, what in (("epochs", "epochs"), ("batch", "batch size"))]
    changed = [part for part in parts if not part.startswith("1 ")]
    policy = "" if entry["policy"] == "Full" else f" + {entry['policy']}"
    return f"{entry['method']}{policy}{rho}{''.join(f', {part}' for part in changed)}"


def _sizes(model: str) -> tuple[int, int]:
    """The outputs (classes or joints) and the channels that it is built for."""
    return (16 if model in POSE_MODELS else 10, 3)
