"""The flags of every command; those of a run come from the fields of Config."""

from __future__ import annotations

import argparse
import types
import typing
from dataclasses import fields

from ausam import __version__
from ausam.lab.cli import commands
from ausam.lab.config import OF_ONE_PAIR, Config
from ausam.lab.diagnose import PARTS
from ausam.lab.experiments import bench, recipe
from ausam.settings import OneOf, rules

CHOICES = {name: list(rule.names) for name, (rule, _) in rules(Config).items() if isinstance(rule, OneOf)}


def _add_settings(parser: argparse.ArgumentParser, skip: set[str]) -> None:
    """A flag for every field of Config; one that is not given takes the data set's setting, then Config's default."""
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
        default = "" if f.default is None else f" (default: {f.default}, or what suits the data)"
        parser.add_argument(
            f"--{f.name.replace('_', '-')}",
            type=kind,
            choices=CHOICES.get(f.name),
            default=argparse.SUPPRESS,
            metavar=None if f.name in CHOICES else f.name.upper(),
            help=f.metadata["help"] + default,
        )


def parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; ``args.run`` is the command."""
    whole = argparse.ArgumentParser(
        prog="ausam", description="Sharpness-aware minimisation at the price of SGD: train, compare, measure."
    )
    whole.add_argument("--version", action="version", version=f"ausam {__version__}")
    subcommands = whole.add_subparsers(required=True, metavar="COMMAND")

    one = subcommands.add_parser(
        "train", help="one run", description="Train one network and keep everything in a folder."
    )
    _add_settings(one, set())
    one.add_argument("--out", default="runs/train", help="folder of the run (default: runs/train)")
    one.add_argument("--resume", action="store_true", help="go on with the run in that folder, bit for bit")
    one.add_argument("--timeout", type=float, metavar="SECONDS", help=_timeout_help())
    one.set_defaults(run=commands.train_command)

    many = subcommands.add_parser("compare", help="several pairs, side by side", description=_compare_help())
    many.add_argument("names", nargs="*", metavar="NAME", help="sgd, sam, ausam-0.5, sam+random, ...; see ausam list")
    many.add_argument("--all", action="store_true", help="every named pair")
    many.add_argument("--seeds", type=int, default=3, help="runs of each pair (default: 3)")
    many.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    many.add_argument("--out", default="runs/compare", help="folder of the comparison (default: runs/compare)")
    _add_settings(many, {*OF_ONE_PAIR, "sync_perturbation"})
    many.set_defaults(run=commands.compare_command)

    again = subcommands.add_parser("reproduce", help="a table of the paper", description=_reproduce_help())
    again.add_argument("table", help=", ".join(recipe.files()))
    again.add_argument(
        "--scale", choices=recipe.SCALES, default="paper", help="the paper's networks, or small siblings"
    )
    again.add_argument("--only", action="append", default=[], metavar="PATTERN", help="BLOCK, ROW or BLOCK/ROW, with *")
    again.add_argument("--seeds", type=int, help="runs of each row (default: the paper's 3)")
    again.add_argument("--out", help="folder of the table (default: runs/TABLE-SCALE)")
    again.add_argument(
        "--dry-run", action="store_true", help="show the cells and about how long they take; run nothing"
    )
    again.add_argument("--launcher", choices=["local", "ray"], default="local", help="run the cells here, or on Ray")
    again.add_argument("--address", help="of a running Ray cluster, or auto (default: start one on this machine)")
    again.add_argument("--cpus", type=float, help="CPUs that Ray gives a cell (default: 1)")
    again.add_argument("--gpus", type=float, help="GPUs that Ray gives a cell (default: 1 with --device cuda, else 0)")
    _add_settings(again, {f.name for f in fields(Config)} - {"data_dir", "init", "threads", "device"})
    again.set_defaults(run=commands.reproduce_command)

    page = subcommands.add_parser("report", help="tables and page again from the runs in a folder, without training")
    page.add_argument("folder", help="a folder of reproduce, compare or train, or a results.json")
    page.set_defaults(run=commands.report_command)

    look = subcommands.add_parser("diagnose", help="the theory and the flatness of a run", description=_diagnose_help())
    look.add_argument("place", nargs="+", metavar="RUN | compare DIR", help="folder of a run, or of a comparison")
    look.add_argument("--what", metavar="PARTS", help=f"parts of a run's diagnosis, with commas: {', '.join(PARTS)}")
    look.add_argument("--samples", type=int, default=512, help="training samples to measure on (default: 512)")
    _add_settings(look, {f.name for f in fields(Config)} - {"data_dir", "threads", "device"})
    look.set_defaults(run=commands.diagnose_command)

    for command in (one, many, again):
        command.add_argument("--tensorboard", action="store_true", help="curves for TensorBoard in OUT/tensorboard")

    show = subcommands.add_parser("list", help="methods, policies, pairs, networks and data sets")
    show.add_argument("--json", action="store_true", help="as JSON")
    show.set_defaults(run=commands.list_command)

    speed = subcommands.add_parser("bench", help="speed as ratios, measured side by side")
    speed.add_argument("what", choices=["step"], help="step: what a step costs")
    speed.add_argument("--repeats", type=int, default=30, help="repeats of each measurement (default: 30)")
    speed.add_argument("--only", default="", help=f"one of {', '.join(bench.PARTS)}")
    speed.set_defaults(run=commands.bench_command)
    return whole


def _diagnose_help() -> str:
    return (
        "Measure the paper's lemma and theorems, the flatness of the minimum and the selection on the weights that a "
        "run has kept (ausam train --every N keeps those of every N-th epoch), and write diagnosis.html and "
        "diagnosis.json into its folder; with compare DIR the flatness of all runs of a comparison side by side. Stop "
        "it at any time; the same command continues."
    )


def _timeout_help() -> str:
    return "under torchrun: how long a rank waits for the others before it gives up (default: torch's 30 minutes)"


def _compare_help() -> str:
    return (
        "Run named pairs of a method and a policy times several seeds, print the paper's kind of table and write "
        "results.json and report.html. NAME@F trains for a fraction F of the epochs: sam@0.5 costs what ausam-0.5 does."
    )


def _reproduce_help() -> str:
    return (
        "Run a table of the paper, every cell a run of its own, and write it beside the paper's figures (table.md, "
        "table.tex, results.csv, report.html). Stop it at any time; the same command goes on. Several processes may "
        "work on one folder."
    )
