"""``ausam list``: methods, policies, pairs, networks and data sets, or everything about one of them."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

from ausam.methods import METHODS
from ausam.policies import POLICIES
from ausam_lab.cli import terminal
from ausam_lab.cli.flags import Command, Parser
from ausam_lab.data.catalogue import DATASETS
from ausam_lab.names.expressions import arguments_of, parse
from ausam_lab.names.from_config import own_rho
from ausam_lab.names.lookup import unknown
from ausam_lab.names.pairs import PAIRS, Pair, pair
from ausam_lab.networks.build import MODELS, POSE_MODELS, parameter_count
from ausam_lab.report.text import WIDTH

OTHER_PAIRS = (
    ('"SAM(m=16) + Random(0.25)"', "any method and policy, as in Python"),
    ('"mine.py:MySAM + Random"', "your own class, from a file or a module"),
    ("sam@0.5", "half of the epochs"),
    ("sgd@1x0.5", "half of the batch size"),
    ("sgd~ema, sgd~best", "averaged weights, or the best epoch on held-out samples"),
)


def flags(made: Parser, _: bool) -> None:
    """What is shown."""
    made.add_argument("name", nargs="?", metavar="NAME", help="one of them: arguments, when to use it, cost")


def run(args: argparse.Namespace) -> int:
    """Print all names, or everything about one."""
    terminal.write((everything() if args.name is None else named(args.name)) + "\n")
    return 0


def everything() -> str:
    """All names, in tables."""
    methods = [(name, "{:.2f} + {:.2f}".format(*_example(cls).passes), _about(cls)) for name, cls in METHODS.items()]
    policies = [(name, f"{_example(cls).kept:.2f}", _about(cls)) for name, cls in POLICIES.items()]
    networks = [(name, f"{parameter_count(name, *_sizes(name)):,}") for name in MODELS]
    parts = [
        "Methods. Passes: samples through forward + backward, per sample of the batch.",
        _table(("Method", "Passes", "What it does"), methods),
        "Policies. Kept: the fraction of the samples that is used.",
        _table(("Policy", "Kept", "What it does"), policies),
        "Pairs. --rho sets the rho of all. By default it is the method's or the data's.",
        _table(("Pair", "Method + policy"), [(name, _written(row)) for name, row in PAIRS.items()]),
        _table(("Or write", "for"), OTHER_PAIRS),
        "Networks. Parameters for 10 classes or 16 joints. Your own: module:function.",
        _table(("Network", "Parameters"), networks),
        "Data sets. Your own: folder:PATH, hf:NAME, module:function or file.py:function.",
        _table(("Data set", "What it is"), [(name, data.about) for name, data in DATASETS.items()]),
        "ausam list NAME shows everything about one of these.",
    ]
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of at most 80 columns, whose last one is wrapped."""
    widths = [max(map(len, column)) + 2 for column in list(zip(head, *rows, strict=True))[:-1]]
    lines = ["".join(cell.ljust(n) for cell, n in zip(row, widths, strict=False)) + row[-1] for row in (head, *rows)]
    wrapped = [textwrap.fill(line, WIDTH, subsequent_indent=" " * sum(widths)) for line in lines]
    return "\n".join([wrapped[0], "─" * (WIDTH - 1), *wrapped[1:]])


def named(name: str) -> str:
    """Everything with this name, ignoring case (``sam`` is a pair and a method). A ValueError for an unknown name."""
    found: list[str] = []
    classes: dict[str, Any] = METHODS | POLICIES
    for key, cls in classes.items():
        if key.lower() == name.lower():
            kind = "method" if key in METHODS else "policy"
            head = textwrap.fill(f"{key}({arguments_of(cls)}): {kind}", WIDTH, subsequent_indent="    ")
            found.append(f"{head}\n\n{_plain(inspect.getdoc(cls) or '')}")
    for key, make in MODELS.items():
        if key.lower() == name.lower():
            (outputs, channels), what = _sizes(key), "joints" if key in POSE_MODELS else "classes"
            count = f"{parameter_count(key, outputs, channels):,} parameters for {channels} channels"
            doc = _plain(inspect.getdoc(getattr(make, "func", make)) or "")
            found.append(f"{key}: network\n\n{doc}\n\n{count} and {outputs} {what}.")
    for key, data in DATASETS.items():
        if key.lower() == name.lower():
            settings = "".join(f"\n  {setting} {value}" for setting, value in data.settings.items())
            found.append(f"{key}: data set\n\n{data.about}\n\nThe settings that suit it:{settings}")
    try:
        row = pair(name) if name.lower() in PAIRS or not found else None  # a method alone is a pair, too
    except ValueError:
        known = [key.lower() for table in (METHODS, POLICIES, PAIRS, MODELS, DATASETS) for key in table]
        kind = "method, policy, pair, network or data set"
        raise unknown(kind, name, list(dict.fromkeys(known)), "one of their names") from None
    if row is not None:
        for kind in ("method", "policy"):
            parse(kind, getattr(row, kind))  # raises an error if the user has no such class
        found.insert(0, f"{name.lower()}: pair\n\n{row.label} is {_written(row)}.")
    return "\n\n\n".join(found)


def _about(cls: Any) -> str:
    """The first line of a docstring."""
    return _plain((cls.__doc__ or "").partition("\n")[0])


def _plain(text: str) -> str:
    """The text of a docstring without its markup and its example, in lines that fit a terminal."""
    text = re.sub(r":\w+:`[~!]?([^`]*)`", r"\1", text).replace("``", "")
    parts = [part for part in text.split("\n\n") if not part.startswith(">>>")]
    text = "\n\n".join(re.sub(r"\n {8,}", " ", part) if part.startswith("Arguments:") else part for part in parts)
    lines = []
    for line in re.sub(r"(?<=\S)\n(?=\S)", " ", text).splitlines():  # a paragraph is one line
        indent = " " * (len(line) - len(line.lstrip()))
        lines += textwrap.wrap(line, WIDTH, subsequent_indent=indent and f"{indent}    ") or [""]
    return "\n".join(lines)


def _example(cls: Any) -> Any:
    """An instance with default arguments. Required ones (a length, labels) do not affect what is shown."""
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    return cls(**{name: [0] if name == "labels" else 100 for name in required})


def _written(row: Pair) -> str:
    """The method and the policy of a pair, with what else it changes."""
    parts = [row.method if row.policy == "Full" else f"{row.method} + {row.policy}"]
    if rho := own_rho(row.method):
        parts.append(f"rho {rho:g}")
    changed = ((row.epochs, "epochs"), (row.batch, "batch size"))
    return ", ".join(parts + [f"{part:g} of the {what}" for part, what in changed if part != 1])


def _sizes(model: str) -> tuple[int, int]:
    """The outputs (classes or joints) and the channels that it is built for."""
    return (16 if model in POSE_MODELS else 10, 3)


COMMAND = Command(run, flags, "[NAME]", ("ausam list", "ausam list looksam"))
