"""The flags of the commands. Those of a run come from the fields of Config.

``--help`` shows the basics, ``--help-all`` everything. An error is one line, with a hint for a misspelt flag.
"""

from __future__ import annotations

import argparse
import shlex
import textwrap
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, NoReturn

from ausam.common.settings import OneOf, Range, rules
from ausam_lab.cli.main import COMMANDS, MISUSE
from ausam_lab.config import GROUPS, PAIR_SETTINGS, Config, flag_of
from ausam_lab.data.catalogue import DATASETS
from ausam_lab.names.from_config import ARGUMENTS
from ausam_lab.names.lookup import nearest


class Parser(argparse.ArgumentParser):
    """Prints an error in one line. No flag may be abbreviated: --seed would become --seeds."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        """One line without the usage, which would hide it."""
        whole = message if message.endswith((".", "?")) else f"{message}."
        self.exit(MISUSE, f"ausam: {whole} See {self.prog} --help.\n")


@dataclass(frozen=True)
class Command:
    """A command: what it does with its arguments, its flags, and what its help says."""

    run: Callable[[argparse.Namespace], int]
    flags: Callable[[Parser, bool], None]  # adds them; all of those of a run if the second is True
    arguments: str
    examples: Sequence[str]
    about: str = ""  # if the overview does not say it all


def parse(name: str, command: Command, argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command. Flags may stand between the names: compare sgd --epochs 5 sam."""
    made = parser(name, command, "--help-all" in argv)
    args, rest = made.parse_known_intermixed_args(argv)
    if rest:
        flag = next((text.partition("=")[0] for text in rest if text.startswith("-")), "")
        if not flag:
            made.error(f"{' '.join(rest)}: too many arguments")
        if name == "compare" and flag in map(flag_of, PAIR_SETTINGS):
            made.error(f"{flag}: the names of the pairs set it, e.g. ausam-0.5 for SAM with AUSampling. Leave it out.")
        known = [text for text in made._option_string_actions if text.startswith("--")]
        near = nearest(flag.lower().replace("_", "-"), known)
        made.error(f"There is no flag {flag}." + (f" Did you mean {near}?" if near else ""))
    args.command = shlex.join(["ausam", name, *argv])
    return args


def parser(name: str, command: Command, everything: bool = False) -> Parser:
    """The parser of a command. With ``everything``, its help shows every flag."""
    made = Parser(
        prog=f"ausam {name}",
        usage=" ".join(filter(None, ("ausam", name, command.arguments, "[FLAGS]"))),
        description=textwrap.fill(command.about or f"{COMMANDS[name].capitalize()}.", 79),
        epilog="\n  ".join(["Examples:", *command.examples]),
    )
    command.flags(made, everything)
    short = name in ("train", "compare", "tune") and not everything
    made.add_argument("--help-all", action="help", help="show every flag" if short else argparse.SUPPRESS)
    return made


def add_settings(
    made: Parser, everything: bool, skip: Collection[str] = (), own: Mapping[str, object] | None = None
) -> None:
    """A flag for every setting but ``skip``. A missing flag means the data's default, or else Config's.

    ``own`` are the defaults that the command has instead of Config's.
    """
    hints, ranges = typing.get_type_hints(Config), rules(Config)
    title = group = None
    for f in (f for f in fields(Config) if f.metadata):
        title = GROUPS.get(f.name, title)
        if f.name in GROUPS or group is None:
            group = made.add_argument_group(title)
        if f.name in skip:
            continue
        # X | None is a union of types, or of typing if X is annotated
        kind = next((t for t in typing.get_args(hints[f.name]) if t is not type(None)), hints[f.name])
        rule = ranges[f.name][0] if f.name in ranges else None
        how: dict[str, Any] = {"action": "store_true"}
        if isinstance(rule, OneOf):
            how = {"choices": rule.names}
        elif kind is not bool:
            word = "N" if kind is int else "NAME" if kind is str else "NUMBER"
            word = "PART" if isinstance(rule, Range) and rule.high == 1 else word
            how = {"type": kind, "metavar": f.metadata["metavar"] or word}
        about = f.metadata["help"] + ("" if kind is bool else _default(f, own or {}))
        how["help"] = about.replace("%", "%%") if everything or title == "Basics" else argparse.SUPPRESS
        group.add_argument(flag_of(f.name), default=argparse.SUPPRESS, **how)


def only(made: Parser, *names: str, own: Mapping[str, object] | None = None) -> None:
    """Only these of the settings of a run, all of them shown."""
    add_settings(made, True, [f.name for f in fields(Config) if f.name not in names], own)


def _default(f: Field[Any], own: Mapping[str, object]) -> str:
    """The text that says what a setting is without its flag."""
    if f.name in own:
        return f" (default: {own[f.name]})"
    data = {name: entry.settings[f.name] for name, entry in DATASETS.items() if f.name in entry.settings}
    suited = ", or the data's" if len(data) > 1 else "".join(f", {name}: {value}" for name, value in data.items())
    if f.name in ARGUMENTS:
        return f" (default: the {ARGUMENTS[f.name]}'s own{suited})"
    return "" if f.default is None else f" (default: {f.default if f.default != '' else 'none'}{suited})"


def add_common(made: Parser, folder: str, what: str, seeds: str = "") -> None:
    """The flags of the commands that train: --out, --seeds, --config."""
    made.add_argument("--out", default=folder, metavar="FOLDER", help=f"folder of the {what} (default: {folder})")
    if seeds:
        made.add_argument("--seeds", type=at_least_1, default=3, metavar="N", help=f"runs per {seeds} (default: 3)")
    file = "settings from a .toml or .json file, e.g. the config.json of a run. Flags come first"
    made.add_argument("--config", metavar="FILE", help=file)


def add_verbose(made: Parser) -> None:
    """The flag of the commands that print the table of a comparison."""
    made.add_argument("--verbose", action="store_true", help="explain the table")


def add_trust(made: Parser) -> None:
    """The flag of the commands that read the folder of somebody else's run."""
    about = "run the code (data, network, method ...) that the folder's settings name. Without it, none of it runs"
    made.add_argument("--trust", action="store_true", help=about)


def at_least_1(text: str) -> int:
    """A number of runs."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is too few, give at least 1")
    return number
