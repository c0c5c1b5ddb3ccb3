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
from ausam.lab.cli import commands
from ausam.lab.cli.flags import Parser
from ausam.lab.config import PAIR_SETTINGS, TORCHRUN_SETTINGS, Config
from ausam.lab.experiments import bench
from ausam.lab.experiments.diagnose.measures import MEASUREMENTS
from ausam.lab.experiments.tune import HELD_OUT, POLICY
from ausam.lab.problems.catalogue import DATASETS
from ausam.lab.registry.from_config import ARGUMENTS
from ausam.lab.training.logs import KINDS
from ausam.paper import recipe
from ausam.paper.theory.on_a_run import MEASUREMENTS as THEORY

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
        if f.name in skip:
            continue
        hint = hints[f.name]
        kind = (
            next(t for t in typing.get_args(hint) if t is not type(None)) if isinstance(hint, types.UnionType) else hint
        )
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
    own = f"the {ARGUMENTS[f.name]}'s own" if f.name in ARGUMENTS else f"{f.default}" or "none"
    return f" (default: {own}, or chosen for the data)" if f.name in SUITED else f" (default: {own})"


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", help=_config_help())


def _add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log", action="append", default=[], choices=list(KINDS), help=_log_help())
    alias = "the same as --log tensorboard"
    parser.add_argument("--tensorboard", dest="log", action="append_const", const="tensorboard", help=alias)


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; ``args.run`` is the command."""
    whole = Parser(
        prog="ausam", description="Sharpness-aware minimisation at the price of SGD: train, compare, measure."
    )
    whole.add_argument("--version", action="version", version=f"ausam {__version__}")
    subcommands = whole.add_subparsers(required=True, metavar="COMMAND")

    one = subcommands.add_parser(
        "train", help="one run", description="Train one network and keep everything in a folder."
    )
    one.add_argument("name", nargs="?", metavar="NAME", help=_name_help())
    _add_settings(one, set())
    one.add_argument("--out", default="runs/train", help="folder of the run (default: runs/train)")
    one.add_argument("--resume", action="store_true", help="continue the run in that folder, bit for bit")
    one.add_argument("--timeout", type=float, metavar="SECONDS", help=_timeout_help())
    _add_config(one)
    _add_logs(one)
    one.set_defaults(run=commands.train_command)

    many = subcommands.add_parser("compare", help="several pairs, side by side", description=_compare_help())
    many.add_argument("names", nargs="*", metavar="NAME", help="sgd, sam, ausam-0.5, sam+random, ...; see ausam list")
    many.add_argument("--all", action="store_true", help="every named pair")
    many.add_argument("--seeds", type=int, default=3, help="runs per pair (default: 3)")
    many.add_argument("--seed", type=int, default=argparse.SUPPRESS, help="the first seed (default: 0)")
    many.add_argument("--out", default="runs/compare", help="folder of the comparison (default: runs/compare)")
    _add_settings(many, {*PAIR_SETTINGS, *TORCHRUN_SETTINGS})
    _add_config(many)
    _add_logs(many)
    many.elsewhere = {f"--{name}": _of_name() for name in PAIR_SETTINGS if name != "seed"}
    many.set_defaults(run=commands.compare_command)

    again = subcommands.add_parser(
        "reproduce", help="a table of the paper, or equal-cost", description=_reproduce_help()
    )
    again.add_argument("table", help=", ".join(recipe.files()))
    again.add_argument(
        "--scale",
        choices=recipe.SCALES,
        default="",
        help="the paper's networks (default), or smaller ones; equal-cost has one scale",
    )
    again.add_argument("--only", action="append", default=[], metavar="PATTERN", help="BLOCK, ROW or BLOCK/ROW, with *")
    again.add_argument("--seeds", type=int, help="runs per row (default: the recipe's; the paper uses 3)")
    again.add_argument("--out", help="folder of the table (default: runs/TABLE-SCALE, runs/equal-cost)")
    again.add_argument(
        "--dry-run", action="store_true", help="show the cells and about how long they take; run nothing"
    )
    again.add_argument("--launcher", choices=["local", "ray"], default="local", help="run the cells here, or on Ray")
    again.add_argument(
        "--address", help="address of a running Ray cluster, or auto (default: start one on this machine)"
    )
    again.add_argument("--cpus", type=float, help="CPUs per cell on Ray (default: 1)")
    again.add_argument("--gpus", type=float, help="GPUs per cell on Ray (default: 1 with --device cuda, otherwise 0)")
    _add_settings(again, {f.name for f in fields(Config)} - {"data_dir", "init", "threads", "device"})
    _add_logs(again)
    again.set_defaults(run=commands.reproduce_command)

    search = subcommands.add_parser("tune", help="a short search for rho, alpha, ...", description=_tune_help())
    search.add_argument("--over", action="append", default=[], metavar="NAME=VALUES", help=_over_help())
    search.add_argument("--seeds", type=int, default=3, help="runs per trial in each round (default: 3)")
    search.add_argument("--out", default="runs/tune", help="folder of the search (default: runs/tune)")
    _add_settings(search, {*TORCHRUN_SETTINGS, "validation"}, {"policy": POLICY})
    held_out = f"fraction of the training samples held out to judge the trials (default: {HELD_OUT})"
    search.add_argument("--validation", type=float, default=argparse.SUPPRESS, metavar="VALIDATION", help=held_out)
    _add_config(search)
    _add_logs(search)
    search.set_defaults(run=commands.tune_command)

    page = subcommands.add_parser("report", help="rebuild tables and page from the runs in a folder, without training")
    page.add_argument("folder", help="a folder made by reproduce, compare or train, or a results.json")
    page.set_defaults(run=commands.report_command)

    look = subcommands.add_parser("diagnose", help="how flat the minimum of a run is", description=_diagnose_help())
    look.add_argument("place", nargs="+", metavar="RUN | compare DIR", help="folder of a run, or of a comparison")
    look.add_argument(
        "--what",
        metavar="PARTS",
        help=f"what to measure, separated by commas: {', '.join(MEASUREMENTS)} (default: all of these); or of the "
        f"paper's theory: {', '.join(THEORY)}",
    )
    look.add_argument("--theory", action="store_true", help="test the paper's lemma and theorems too: theory.html")
    look.add_argument("--samples", type=int, default=512, help="training samples to measure on (default: 512)")
    _add_settings(look, {f.name for f in fields(Config)} - {"data_dir", "threads", "device"})
    look.set_defaults(run=commands.diagnose_command)

    show = subcommands.add_parser("list", help="methods, policies, pairs, networks and data sets")
    show.add_argument("name", nargs="?", metavar="NAME", help="everything about one of them: arguments, ranges, cost")
    show.add_argument("--json", action="store_true", help="as JSON")
    show.set_defaults(run=commands.list_command)

    speed = subcommands.add_parser("bench", help="speed as ratios, measured side by side")
    speed.add_argument("what", choices=["step"], help="step: the cost of a step")
    speed.add_argument("--repeats", type=int, default=30, help="repeats of each measurement (default: 30)")
    speed.add_argument("--only", default="", help=f"one of {', '.join(bench.PARTS)}")
    speed.set_defaults(run=commands.bench_command)
    return whole


def _diagnose_help() -> str:
    return (
        "Measure the flatness of the minimum and the selection on the weights that a run has kept (ausam train "
        "--every N keeps every N-th epoch), and write diagnosis.html and diagnosis.json into its folder. With "
        "--theory: the paper's lemma and theorems too, in theory.html and theory.json. With compare DIR: the flatness "
        "of all runs of a comparison, side by side. You can stop it at any time; run the same command to continue."
    )


def _name_help() -> str:
    return "a pair in place of --method and --policy: sgd, sam, ausam-0.5, sam+random, ...; see ausam list"


def _of_name() -> str:
    return "the names of the pairs set it, e.g. ausam-0.5 for SAM with AUSampling and alpha 0.5. Leave it out."


def _config_help() -> str:
    return "settings from a .toml or .json file, such as the config.json of a run; flags take precedence"


def _log_help() -> str:
    return (
        "also write the figures of every epoch to metrics.csv, OUT/tensorboard or Weights & Biases; repeat it "
        "for several"
    )


def _timeout_help() -> str:
    return "under torchrun: seconds that a rank waits for the others before it gives up (default: torch's 30 minutes)"


def _compare_help() -> str:
    return (
        "Run named pairs of a method and a policy with several seeds, print a table like the paper's and write "
        "results.json and report.html. NAME@F trains for a fraction F of the epochs: sam@0.5 costs as much as "
        "ausam-0.5. NAME@FxB also multiplies the batch size by B, at the same learning rate: sam@0.5x0.5 takes as many "
        "steps as ausam-0.5, on as many samples."
    )


def _tune_help() -> str:
    return (
        "Search for settings on held-out training samples; the test samples are never used. All combinations of the "
        "values are trained briefly, and the best third advances to a round three times as long. Each round is a "
        "complete training with its own schedule. The policy is AUSampling unless --policy says otherwise. You can "
        "stop it at any time; run the same command to resume."
    )


def _over_help() -> str:
    return (
        "a numeric setting and its values, e.g. --over rho=0.05,0.1,0.2 --over alpha=0.25,0.5; may be repeated "
        "(default: half, once and twice the rho, and alpha 0.25 and 0.5)"
    )


def _reproduce_help() -> str:
    return (
        "Run a table of the paper, one run per cell, and write it next to the paper's figures (table.md, table.tex, "
        "results.csv, report.html); or equal-cost, the benchmark of what each budget buys on several problems. You can "
        "stop it at any time; run the same command to resume. Several processes may work on one folder."
    )
