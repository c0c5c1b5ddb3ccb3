"""The flags of every command; those of a run come from the fields of Config."""

from __future__ import annotations

import argparse
import types
import typing
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any

from ausam import __version__
from ausam.common.settings import OneOf, rules
from ausam_lab.cli import commands
from ausam_lab.cli.flags import Parser
from ausam_lab.config import PAIR_SETTINGS, TORCHRUN_SETTINGS, Config
from ausam_lab.data.catalogue import DATASETS
from ausam_lab.experiments import bench
from ausam_lab.experiments.bench.split import SETTINGS as SPLIT_SETTINGS
from ausam_lab.experiments.tune import HELD_OUT, POLICY
from ausam_lab.names.from_config import ARGUMENTS
from ausam_lab.paper import recipe
from ausam_lab.selftest import ABOUT, add_arguments
from ausam_lab.training.logs import KINDS

# Settings with a default per data set.
SUITED = {name for entry in DATASETS.values() for name in entry.settings}
CHOICES = {name: list(rule.names) for name, (rule, _) in rules(Config).items() if isinstance(rule, OneOf)}


def _add_settings(
    parser: argparse.ArgumentParser, skip: set[str], own: Mapping[str, str] = types.MappingProxyType({})
) -> None:
    """A flag for every field of Config. A missing flag means the data set's default, or else Config's.

    ``own`` are the defaults that the command has instead of Config's.
    """
    hints = typing.get_type_hints(Config)
    for f in fields(Config):
        if f.name in skip or "help" not in f.metadata:
            continue
        hint = hints[f.name]
        # X | None is a union of types, or of typing if X is annotated
        kind = next((t for t in typing.get_args(hint) if t is not type(None)), hint)
        if kind is bool:
            flag = f"--{f.name.replace('_', '-')}"
            parser.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=f.metadata["help"])
            continue
        parser.add_argument(
            f"--{f.name.replace('_', '-')}",
            type=kind,
            choices=CHOICES.get(f.name),
            default=argparse.SUPPRESS,
            metavar=None if f.name in CHOICES else f.name.upper(),
            help=f"{f.metadata['help']}{_default(f, own)}",
        )


def _default(f: Field[Any], of_command: Mapping[str, str]) -> str:
    """The text that says what a setting is without its flag."""
    if f.name in of_command:
        return f" (default: {of_command[f.name]})"
    if f.default is None and f.name not in ARGUMENTS:
        return ""  # the help says what stands in
    own = f"the {ARGUMENTS[f.name]}'s own" if f.name in ARGUMENTS else f"{f.default}" or "none"
    return f" (default: {own}, or chosen for the data)" if f.name in SUITED else f" (default: {own})"


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help=CONFIG_HELP)


def _add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log", action="append", default=[], choices=list(KINDS), help=LOG_HELP)
    alias = "the same as --log tensorboard"
    parser.add_argument("--tensorboard", dest="log", action="append_const", const="tensorboard", help=alias)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; ``args.run`` is the command."""
    whole = Parser(
        prog="ausam", description="Sharpness-aware minimisation at the price of SGD: train, compare, measure."
    )
    whole.add_argument("--version", action="version", version=f"ausam {__version__}")
    subcommands = whole.add_subparsers(required=True, metavar="COMMAND")
    for add in (
        _add_train,
        _add_compare,
        _add_tune,
        _add_reproduce,
        _add_report,
        _add_diagnose,
        _add_audit,
        _add_list,
        _add_bench,
        _add_selftest,
    ):
        add(subcommands)
    return whole


def _add_train(subcommands: Any) -> None:
    train = subcommands.add_parser(
        "train", help="one run", description="Train one network and keep everything in a folder."
    )
    train.add_argument("name", nargs="?", metavar="NAME", help=NAME_HELP)
    _add_settings(train, set())
    train.add_argument("--out", default="runs/train", help="folder of the run (default: runs/train)")
    train.add_argument("--resume", action="store_true", help="continue the run in that folder, bit for bit")
    train.add_argument("--timeout", type=float, metavar="SECONDS", help=TIMEOUT_HELP)
    _add_config(train)
    _add_logs(train)
    train.set_defaults(run=commands.train_command)


def _add_compare(subcommands: Any) -> None:
    compare = subcommands.add_parser("compare", help="several pairs, side by side", description=COMPARE_HELP)
    compare.add_argument(
        "names", nargs="*", metavar="NAME", help="sgd, sam, ausam-0.5, mine:MySAM, ...; see ausam list"
    )
    compare.add_argument("--all", action="store_true", help="every named pair")
    compare.add_argument("--seeds", type=int, default=3, help="runs per pair (default: 3)")
    compare.add_argument("--seed", type=int, default=argparse.SUPPRESS, help="the first seed (default: 0)")
    compare.add_argument("--out", default="runs/compare", help="folder of the comparison (default: runs/compare)")
    _add_settings(compare, {*PAIR_SETTINGS, *TORCHRUN_SETTINGS})
    _add_config(compare)
    _add_logs(compare)
    compare.elsewhere = {f"--{name}": OF_NAME for name in PAIR_SETTINGS if name != "seed"}
    compare.set_defaults(run=commands.compare_command)


def _add_tune(subcommands: Any) -> None:
    tune = subcommands.add_parser("tune", help="a short search for rho, alpha, ...", description=TUNE_HELP)
    tune.add_argument("--over", action="append", default=[], metavar="NAME=VALUES", help=OVER_HELP)
    tune.add_argument("--seeds", type=int, default=3, help="runs per trial (default: 3)")
    tune.add_argument("--out", default="runs/tune", help="folder of the search (default: runs/tune)")
    _add_settings(tune, {*TORCHRUN_SETTINGS, "validation"}, {"policy": POLICY})
    held_out = f"fraction of the training samples held out to judge the trials (default: {HELD_OUT})"
    tune.add_argument("--validation", type=float, default=argparse.SUPPRESS, metavar="VALIDATION", help=held_out)
    _add_config(tune)
    _add_logs(tune)
    tune.set_defaults(run=commands.tune_command)


def _add_reproduce(subcommands: Any) -> None:
    reproduce = subcommands.add_parser("reproduce", help="a table of the paper", description=REPRODUCE_HELP)
    tables = ", ".join(recipe.files())
    reproduce.add_argument("table", metavar="TABLE", help=f"{tables}, or your own recipe as FILE.toml")
    reproduce.add_argument(
        "--scale",
        choices=recipe.SCALES,
        default="",
        help="the paper's networks (default), or smaller ones",
    )
    only = "BLOCK, ROW or BLOCK/ROW, with *"
    reproduce.add_argument("--only", action="append", default=[], metavar="PATTERN", help=only)
    reproduce.add_argument("--seeds", type=int, help="runs per row (default: the recipe's; the paper uses 3)")
    reproduce.add_argument("--out", help="folder of the table (default: runs/TABLE-SCALE)")
    dry = "say about how much time it takes, and what differs from the paper; run nothing"
    reproduce.add_argument("--dry-run", action="store_true", help=dry)
    _add_launcher(reproduce)
    _add_settings(
        reproduce,
        {f.name for f in fields(Config)} - {"data_dir", "init", "threads", "device", "keep"},
        {"keep": "weights"},
    )
    _add_logs(reproduce)
    reproduce.set_defaults(run=commands.reproduce_command)


def _add_launcher(reproduce: argparse.ArgumentParser) -> None:
    where = "run the cells here, or on Ray"
    reproduce.add_argument("--launcher", choices=["local", "ray"], default="local", help=where)
    address = "address of a running Ray cluster, or auto (default: start one on this machine)"
    reproduce.add_argument("--address", help=address)
    reproduce.add_argument("--cpus", type=float, help="CPUs per cell on Ray (default: 1)")
    gpus = "GPUs per cell on Ray (default: 1 with --device cuda, otherwise 0)"
    reproduce.add_argument("--gpus", type=float, help=gpus)


def _add_report(subcommands: Any) -> None:
    about = "rebuild tables and page from the runs in a folder, without training"
    report = subcommands.add_parser("report", help=about)
    report.add_argument("folder", help="a folder made by reproduce, compare or train, or a results.json")
    report.set_defaults(run=commands.report_command)


def _add_diagnose(subcommands: Any) -> None:
    about = "how flat the minima of runs are"
    diagnose = subcommands.add_parser("diagnose", help=about, description=DIAGNOSE_HELP)
    diagnose.add_argument("place", nargs="+", metavar="FOLDER", help="folder of a run or of a comparison")
    diagnose.add_argument("--samples", type=int, default=512, help="training samples to measure on (default: 512)")
    _add_settings(diagnose, {f.name for f in fields(Config)} - {"data_dir", "threads", "device"})
    diagnose.set_defaults(run=commands.diagnose_command)


def _add_audit(subcommands: Any) -> None:
    about = "what a run says about its data: labels that are probably wrong, rare and redundant samples"
    audit = subcommands.add_parser("audit", help=about, description=AUDIT_HELP)
    audit.add_argument("folder", metavar="RUN", help="folder of a finished run")
    audit.add_argument("--out", help="the page (default: RUN/audit.html)")
    export = "write all suspects to this CSV file: index, given, suggested, score"
    audit.add_argument("--export", metavar="FILE", help=export)
    _add_settings(audit, {f.name for f in fields(Config)} - {"data_dir"})
    audit.set_defaults(run=commands.audit_command)


def _add_list(subcommands: Any) -> None:
    listing = subcommands.add_parser("list", help="methods, policies, pairs, networks and data sets")
    about = "everything about one of them: arguments, ranges, cost"
    listing.add_argument("name", nargs="?", metavar="NAME", help=about)
    listing.add_argument("--json", action="store_true", help="as JSON")
    listing.set_defaults(run=commands.list_command)


def _add_bench(subcommands: Any) -> None:
    speed = subcommands.add_parser("bench", help="what a step costs on this machine", description=BENCH_HELP)
    parts = speed.add_subparsers(required=True, metavar="WHAT")
    step = parts.add_parser(
        "step", help="SAM and AUSAM-0.5 against SGD, memory, planning, exchange", description=BENCH_HELP
    )
    step.add_argument("--repeats", type=int, default=30, help="repeats of each measurement (default: 30)")
    step.add_argument("--only", default="", metavar="PART", help=f"one of {', '.join(bench.PARTS)}")
    step.set_defaults(run=commands.bench_command)
    split = parts.add_parser("split", help="forward-backward and the rest, of your network", description=SPLIT_HELP)
    split.add_argument("--repeats", type=int, default=30, help="repeats of each measurement (default: 30)")
    _add_settings(split, {f.name for f in fields(Config)} - SPLIT_SETTINGS)
    split.set_defaults(run=commands.split_command)


def _add_selftest(subcommands: Any) -> None:
    about = "does everything work on your device? A table to paste into an issue"
    selftest = subcommands.add_parser("selftest", help=about, description=ABOUT)
    add_arguments(selftest)
    selftest.set_defaults(run=commands.selftest_command)


# -- help texts --------------------------------------------------------------------------------------------------------

DIAGNOSE_HELP = (
    "Measure how flat the minima of runs are, on the last weights that they have kept: the Hessian, sharpness and "
    "slices of the loss. Give the folders of runs, or of a comparison. Writes flatness.html and flatness.json into the "
    "first folder."
)

AUDIT_HELP = (
    "Say what a finished run found out about its data: the labels that are probably wrong, with their likely "
    "class, the samples that were learnt late and those that were learnt at once; and write a page with the "
    "suspects as pictures. Every run keeps what this needs, so nothing is trained."
)

BENCH_HELP = (
    "Measure SAM and AUSAM-0.5 against SGD on this machine, the memory of a SAM step, and the cost of planning an "
    "epoch and of exchanging its scores between two processes. Each measurement says how long it takes, and each "
    "figure is printed as soon as it is there. Nothing is kept; fewer --repeats are faster and noisier."
)

SPLIT_HELP = (
    "Split the time of a step of SAM on your network and data (--model and --data take module:function too) into "
    "forward-backward and the rest, the paper's T_f and T_b: choosing samples shortens the former only."
)

NAME_HELP = "a pair in place of --method and --policy: sgd, sam, ausam-0.5, sam+random, ...; see ausam list"

OF_NAME = "the names of the pairs set it, e.g. ausam-0.5 for SAM with AUSampling and alpha 0.5. Leave it out."

CONFIG_HELP = "settings from a .toml or .json file, such as the config.json of a run; flags take precedence"

LOG_HELP = (
    "also write the figures of every epoch to metrics.csv, OUT/tensorboard or Weights & Biases; repeat it for several"
)

TIMEOUT_HELP = (
    "under torchrun: seconds that a rank waits for the others before it gives up (default: torch's 30 minutes)"
)

COMPARE_HELP = (
    "Run named pairs of a method and a policy with several seeds, print a table like the paper's and write "
    "results.json and report.html. NAME@F trains for a fraction F of the epochs: sam@0.5 costs as much as "
    "ausam-0.5. NAME@FxB also multiplies the batch size by B, at the same learning rate: sam@0.5x0.5 takes as many "
    "steps as ausam-0.5, on as many samples."
)

TUNE_HELP = (
    "Search for settings on held-out training samples; the test samples are never used. All combinations of the "
    "values are tried with Optuna. After half of the epochs, a trial that is worse than half of the earlier ones is "
    "stopped. The policy is AUSampling unless --policy says otherwise. You can stop it at any time; run the same "
    "command to resume."
)

OVER_HELP = (
    "a numeric setting and its values, e.g. --over rho=0.05,0.1,0.2 --over alpha=0.25,0.5; may be repeated "
    "(default: half, once and twice the rho, and alpha 0.25 and 0.5)"
)

REPRODUCE_HELP = (
    "Run a table of the paper, one run per cell, and write it next to the paper's figures (table.md, table.tex, "
    "results.csv, report.html). You can stop it at any time; run the same command to resume. Several processes may "
    "work on one folder."
)
