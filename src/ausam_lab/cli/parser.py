"""The flags of every command. Those of a run come from the fields of Config.

``--help`` shows the basics, ``--help-all`` everything. An error is one line, with a hint for a misspelt flag.
"""

from __future__ import annotations

import argparse
import shlex
import textwrap
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, NoReturn

from ausam.common.settings import OneOf, Range, rules
from ausam_lab.cli.main import COMMANDS, MISUSE
from ausam_lab.config import PAIR_SETTINGS, TORCHRUN_SETTINGS, Config
from ausam_lab.data.catalogue import DATASETS
from ausam_lab.experiments.tune import HELD_OUT, POLICY
from ausam_lab.names.from_config import ARGUMENTS
from ausam_lab.names.lookup import nearest
from ausam_lab.paper import recipe

# The settings of a run as --help groups them; only the first group is shown without --help-all.
GROUPS = {
    "Basics": (
        *("data", "model", "method", "policy", "rho", "alpha", "epochs", "batch_size", "lr"),
        *("label_noise", "seed", "device"),
    ),
    "Perturbation": ("rho_schedule", "sync_perturbation", "nonfinite", "replay"),
    "Sampling": ("s_min", "s_max", "ramp"),
    "Training": (
        "base",
        "momentum",
        "weight_decay",
        "lr_steps",
        "label_smoothing",
        "augment",
        "init",
        "quantize",
        "amp",
    ),
    "Data": ("task", "data_dir", "labels", "train_size", "test_size", "imbalance", "data_seed", "workers"),
    "Evaluation": ("validation", "average", "select_epoch"),
    "Machine and files": ("threads", "memory_format", "keep", "tensorboard"),
}
METAVARS = {
    **{"data_dir": "FOLDER", "labels": "FILE", "init": "PATH"},
    **{"lr_steps": "PARTS", "quantize": "BITS", "ramp": "EPOCHS", "momentum": "NUMBER", "average": "NUMBER"},
}

# Settings that a comparison has no flags for, and why.
SET_BY_NAME = "the names of the pairs set it, e.g. ausam-0.5 for SAM with AUSampling and alpha 0.5. Leave it out."


class Parser(argparse.ArgumentParser):
    """Prints an error in one line. No flag may be abbreviated: --seed would become --seeds."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        """One line without the usage, which would hide it."""
        whole = message if message.endswith((".", "?")) else f"{message}."
        self.exit(MISUSE, f"ausam: {whole} See {self.prog} --help.\n")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command line. Flags may stand between the names: compare sgd --epochs 5 sam."""
    made = parser(argv[0], "--help-all" in argv)
    args, rest = made.parse_known_intermixed_args(argv[1:])
    if rest:
        flag = next((text.partition("=")[0] for text in rest if text.startswith("-")), "")
        if not flag:
            made.error(f"{' '.join(rest)}: too many arguments")
        if argv[0] == "compare" and flag in map(_flag, PAIR_SETTINGS):
            made.error(f"{flag}: {SET_BY_NAME}")
        known = [name for name in made._option_string_actions if name.startswith("--")]
        near = nearest(flag.lower().replace("_", "-"), known)
        made.error(f"There is no flag {flag}." + (f" Did you mean {near}?" if near else ""))
    args.command = shlex.join(["ausam", *argv])
    return args


def parser(command: str, everything: bool = False) -> Parser:
    """The parser of a command. With ``everything``, its help shows every flag."""
    add, arguments, description, examples = _COMMANDS[command]
    made = Parser(
        prog=f"ausam {command}",
        usage=" ".join(filter(None, ("ausam", command, arguments, "[FLAGS]"))),
        description=textwrap.fill(description or f"{COMMANDS[command].capitalize()}.", 79),
        epilog="\n  ".join(["Examples:", *examples]),
    )
    add(made, everything)
    short = command in ("train", "compare", "tune") and not everything
    made.add_argument("--help-all", action="help", help="show every flag" if short else argparse.SUPPRESS)
    return made


def _settings(
    made: Parser, everything: bool, skip: Collection[str] = (), own: Mapping[str, object] | None = None
) -> None:
    """A flag for every setting but ``skip``. A missing flag means the data's default, or else Config's.

    ``own`` are the defaults that the command has instead of Config's.
    """
    known, hints, ranges = {f.name: f for f in fields(Config)}, typing.get_type_hints(Config), rules(Config)
    for title, names in GROUPS.items():
        group = made.add_argument_group(title)
        for name in (name for name in names if name not in skip):
            # X | None is a union of types, or of typing if X is annotated
            kind = next((t for t in typing.get_args(hints[name]) if t is not type(None)), hints[name])
            rule = ranges[name][0] if name in ranges else None
            how: dict[str, Any] = {"action": "store_true"}
            if isinstance(rule, OneOf):
                how = {"choices": rule.names}
            elif kind is not bool:
                word = "N" if kind is int else "NAME" if kind is str else "NUMBER"
                word = "PART" if isinstance(rule, Range) and rule.high == 1 else word
                how = {"type": kind, "metavar": METAVARS.get(name, word)}
            about = known[name].metadata["help"]
            about += "" if kind is bool else _default(known[name], own or {})
            shown = everything or title == "Basics"
            how["help"] = about.replace("%", "%%") if shown else argparse.SUPPRESS
            group.add_argument(_flag(name), default=argparse.SUPPRESS, **how)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _default(f: Field[Any], own: Mapping[str, object]) -> str:
    """The text that says what a setting is without its flag."""
    if f.name in own:
        return f" (default: {own[f.name]})"
    data = {name: entry.settings[f.name] for name, entry in DATASETS.items() if f.name in entry.settings}
    suited = ", or the data's" if len(data) > 1 else "".join(f", {name}: {value}" for name, value in data.items())
    if f.name in ARGUMENTS:
        return f" (default: the {ARGUMENTS[f.name]}'s own{suited})"
    return "" if f.default is None else f" (default: {f.default if f.default != '' else 'none'}{suited})"


def _common(made: Parser, folder: str, what: str, seeds: str = "") -> None:
    """The flags of several commands: --out, --seeds, --config."""
    made.add_argument("--out", default=folder, metavar="FOLDER", help=f"folder of the {what} (default: {folder})")
    if seeds:
        made.add_argument("--seeds", type=int, default=3, metavar="N", help=f"runs per {seeds} (default: 3)")
    file = "settings from a .toml or .json file, e.g. the config.json of a run; flags come first"
    made.add_argument("--config", metavar="FILE", help=file)


def _verbose(made: Parser) -> None:
    made.add_argument("--verbose", action="store_true", help="explain the table, and show the figures behind it")


def _train(made: Parser, everything: bool) -> None:
    about = "a pair, e.g. sgd, sam, ausam-0.5, sam+random, in place of --method and --policy; see ausam list"
    made.add_argument("name", nargs="?", metavar="NAME", help=about)
    _common(made, "runs/train", "run")
    made.add_argument("--resume", action="store_true", help="continue the run in that folder, bit for bit")
    timeout = "under torchrun: how long a rank waits for the others before it gives up (default: torch's 30 minutes)"
    made.add_argument("--timeout", type=float, metavar="SECONDS", help=timeout if everything else argparse.SUPPRESS)
    _settings(made, everything)


def _compare(made: Parser, everything: bool) -> None:
    made.add_argument("names", nargs="*", metavar="NAME", help="sgd, sam, ausam-0.5, mine:MySAM; see ausam list")
    made.add_argument("--all", action="store_true", help="every named pair")
    _common(made, "runs/compare", "comparison", "pair")
    _verbose(made)
    labels = "labels.csv of ausam audit --apply; several train every pair with each of them, and given is no file"
    made.add_argument("--labels", dest="label_files", nargs="+", default=(), metavar="FILE", help=labels)
    _settings(made, everything, {*PAIR_SETTINGS, *TORCHRUN_SETTINGS, "labels"} - {"seed"})


def _tune(made: Parser, everything: bool) -> None:
    over = (
        "a numeric setting and its values, e.g. --over rho=0.05,0.1,0.2; may be repeated "
        "(default: half, once and twice the rho, and alpha 0.25 and 0.5)"
    )
    made.add_argument("--over", action="append", default=[], metavar="NAME=VALUES", help=over)
    _common(made, "runs/tune", "search", "trial")
    _verbose(made)
    _settings(made, everything, TORCHRUN_SETTINGS, {"policy": POLICY, "validation": HELD_OUT})


def _reproduce(made: Parser, _: bool) -> None:
    known = ", ".join(recipe.files())
    made.add_argument("table", metavar="TABLE", help=f"{known}, or your own recipe as FILE.toml")
    scale = "the paper's networks (default), smaller ones, or for table2 all of CIFAR-10 on a laptop"
    made.add_argument("--scale", choices=recipe.SCALES, default="", help=scale)
    only = "BLOCK, ROW or BLOCK/ROW, with *"
    made.add_argument("--only", action="append", default=[], metavar="PATTERN", help=only)
    made.add_argument("--seeds", type=int, metavar="N", help="runs per row (default: the recipe's; the paper uses 3)")
    made.add_argument("--out", metavar="FOLDER", help="folder of the table (default: runs/TABLE-SCALE)")
    dry = "say about how much time it takes, and what differs from the paper; run nothing"
    made.add_argument("--dry-run", action="store_true", help=dry)
    where = "run the cells here, or on Ray"
    made.add_argument("--launcher", choices=["local", "ray"], default="local", help=where)
    address = "address of a running Ray cluster, or auto (default: start one on this machine)"
    made.add_argument("--address", metavar="ADDRESS", help=address)
    made.add_argument("--cpus", type=float, metavar="N", help="CPUs per cell on Ray (default: 1)")
    gpus = "GPUs per cell on Ray (default: 1 with --device cuda, otherwise 0)"
    made.add_argument("--gpus", type=float, metavar="N", help=gpus)
    _machine(made, "data_dir", "init", "threads", "device", "keep", "tensorboard", own={"keep": "weights"})


def _machine(made: Parser, *names: str, own: Mapping[str, object] | None = None) -> None:
    """Only these of the settings of a run, all of them shown."""
    _settings(made, True, [f.name for f in fields(Config) if f.name not in names], own)


def _report(made: Parser, _: bool) -> None:
    about = "a folder made by reproduce, compare, tune or train, or a results.json"
    made.add_argument("folder", metavar="FOLDER", help=about)
    _verbose(made)


def _trust(made: Parser) -> None:
    about = "run the code (data, network, method ...) that the folder's settings name; without it, none of it runs"
    made.add_argument("--trust", action="store_true", help=about)


def _diagnose(made: Parser, _: bool) -> None:
    made.add_argument("place", nargs="+", metavar="FOLDER", help="folder of a run or of a comparison")
    about = "training samples to measure on (default: 512)"
    made.add_argument("--samples", type=int, default=512, metavar="N", help=about)
    _trust(made)
    _machine(made, "data_dir", "threads", "device")


def _audit(made: Parser, _: bool) -> None:
    run = "folder of a finished run, or of ausam compare; with --data, of a new run (default: runs/audit-DATA)"
    made.add_argument("folder", nargs="?", metavar="RUN", help=run)
    made.add_argument("--out", metavar="FILE", help="the page (default: RUN/audit.html)")
    export = "write the ranking to this CSV file: index, path, given, likely, loss, flagged"
    made.add_argument("--export", metavar="FILE", help=export)
    decisions = "the decisions.csv that the page exports: print the share of wrong labels that follows"
    made.add_argument("--decisions", metavar="FILE", help=decisions)
    made.add_argument("--apply", metavar="FILE", help="write the labels after --decisions, for ausam train --labels")
    _trust(made)
    of_training = ("data", "label_noise", "model", "epochs", "batch_size", "lr", "seed", "device", "workers")
    own = {"data": "none, RUN is audited", "epochs": "15, or the data's", "batch_size": "64, or the data's"}
    _machine(made, "data_dir", *of_training, own=own)


def _list(made: Parser, _: bool) -> None:
    made.add_argument("name", nargs="?", metavar="NAME", help="one of them: arguments, when to use it, cost")


# By name: its flags, its arguments, what it does if the overview does not say it all, and examples.
_COMMANDS: dict[str, tuple[Callable[[Parser, bool], None], str, str, Sequence[str]]] = {
    "compare": (
        _compare,
        "NAME [NAME ...]",
        "Train named pairs of a method and a policy with several seeds, print a table and write results.json and "
        "report.html. Stop it at any time: the same command continues. NAME@F trains for a fraction F of the epochs, "
        "NAME@FxB with a fraction B of the batch size too: sgd@1x0.5 is SGD with half batches.",
        (
            "ausam compare sgd sam ausam-0.5",
            "ausam compare sgd sgd@1x0.5 sam+random sam+trusted --label-noise 0.4 --seeds 5",
            "ausam compare sgd sam --data folder:photos --epochs 20 --out runs/photos",
        ),
    ),
    "audit": (
        _audit,
        "[RUN]",
        "Rank the labels of a finished run by how wrong they look, and write audit.html, a page to review them. With "
        "--data, a small network is trained first. Then give the decisions of the page to --decisions and --apply.",
        (
            "ausam audit --data folder:PATH   (images in PATH/CLASS/)",
            "ausam audit runs/train --decisions decisions.csv --apply labels.csv",
        ),
    ),
    "tune": (
        _tune,
        "",
        "Search for settings on held-out training samples. The test samples are never used. All combinations of the "
        "values are tried with Optuna. After half of the epochs, a trial that is worse than half of the earlier ones "
        "is stopped. Stop it at any time: the same command continues.",
        ("ausam tune --over rho=0.05,0.1,0.2,0.4 --seeds 2", "ausam tune --over lr=0.01,0.03,0.1 --policy full"),
    ),
    "train": (
        _train,
        "[NAME]",
        "Train one network and keep everything in a folder. By default it trains a small network on scikit-learn's "
        "digits, 20 % of whose training labels are made wrong (--label-noise 0 leaves them right).",
        (
            "ausam train ausam-0.5",
            "ausam train sam --data folder:photos --epochs 20 --lr 0.01 --out runs/photos",
            "ausam train --config runs/train/config.json --seed 1 --out runs/again",
        ),
    ),
    "list": (_list, "[NAME]", "", ("ausam list", "ausam list looksam")),
    "report": (_report, "FOLDER", "", ("ausam report runs/compare",)),
    "diagnose": (
        _diagnose,
        "FOLDER [FOLDER ...]",
        "Measure how flat the minima of runs are, on the last weights that they have kept: the Hessian, sharpness and "
        "slices of the loss. Writes flatness.html and flatness.json into the first folder.",
        ("ausam diagnose runs/compare",),
    ),
    "reproduce": (
        _reproduce,
        "TABLE",
        "Run a table of the paper, one run per cell, and write it next to the paper's figures (report.html, "
        "results.csv). Stop it at any time: the same command continues. Several processes may work on one folder.",
        ("ausam reproduce table1 --scale small --dry-run", "ausam reproduce table1 --scale small --only 'A/sam*'"),
    ),
}
