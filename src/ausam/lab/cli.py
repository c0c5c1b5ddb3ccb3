"""The command line: train, compare, reproduce, report, list, bench."""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import logging
import shlex
import signal
import sys
import types
import typing
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.logging import RichHandler

from ausam import __version__
from ausam.lab import bench, checkpoint, estimate, events, faults, listing, ranks, recipe, tables
from ausam.lab.compare import compare
from ausam.lab.config import BASES, Config, resolve
from ausam.lab.data import AUGMENTATIONS, DownloadError
from ausam.lab.headline import headline, text_table
from ausam.lab.launch import on_ray
from ausam.lab.models import builder
from ausam.lab.pairs import PAIRS, configured, method_and_policy
from ausam.lab.progress import Progress
from ausam.lab.rebuild import rebuild
from ausam.lab.reproduce import Launch, reproduce
from ausam.lab.results import finished
from ausam.lab.train import problem, train

CHOICES: dict[str, list[str]] = {"base": list(BASES), "augment": list(AUGMENTATIONS)}
# What a comparison sets for each of its pairs.
NOT_SHARED = {"method", "policy", "alpha", "seed"}


def main(argv: list[str] | None = None) -> int:
    """Parse the arguments and run the command; what goes wrong becomes one line and an exit code (docs/faults.md)."""
    argv = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(argv, argparse.Namespace(argv=argv))
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=Console(stderr=True), show_path=False)],
    )
    logging.captureWarnings(True)
    with faults.signals() as came:
        try:
            if getattr(args, "tensorboard", False):
                events.require()
            code: int = args.run(args)
        except KeyboardInterrupt:
            terminated = signal.SIGTERM in came
            code = faults.TERMINATED if terminated else faults.INTERRUPTED
            sys.stderr.write(f"\nausam: {'terminated' if terminated else 'interrupted'}. {_kept(args)}\n")
        except Exception as error:
            if (known := faults.explained(error)) is None:
                raise
            message, code = known
            complete = code == faults.MISUSE or isinstance(error, DownloadError)  # they say how to go on
            sys.stderr.write(f"ausam: {message}{'' if complete else ' ' + _kept(args)}\n")
    return code


def _kept(args: argparse.Namespace) -> str:
    """What is on disk when a command ends early, and how to go on."""
    if args.run is _train:
        epochs = checkpoint.epochs(Path(args.out))
        kept = f"{args.out} holds the run up to epoch {epochs}" if epochs else "No epoch was finished"
        return f"{kept}; the same command with --resume goes on."
    return "What was done is kept; the same command goes on."


def _train(args: argparse.Namespace) -> int:
    with ranks.alike():
        config = resolve(**_settings(args))
    _set_threads(config)
    out = Path(args.out)
    with ranks.joined(config.device, args.timeout) as here:
        if here.rank:
            logging.disable(logging.WARNING)
        here.told(lambda: _prepare(config, [config]))
        if here.rank:
            collections.deque(train(config, out, resume=args.resume, here=here), maxlen=0)
            return 0
        with Progress(config.epochs, f"{config.method} × {config.policy}") as progress:
            rows = train(config, out, resume=args.resume, on_step=progress.step, here=here)
            for row in events.logged(rows, out, out / "tensorboard") if args.tensorboard else rows:
                progress.epoch(row)
    result = finished(out)
    sys.stdout.write(
        f"{result['method']} × {result['policy']}: test {result.get('metric', 'accuracy')} "
        f"{result['test_accuracy']:.2f} % after {result['epochs']} epochs, {result['train_seconds']:.1f} s of "
        f"training; {out / 'result.json'}\n"
    )
    return 0


def _compare(args: argparse.Namespace) -> int:
    ranks.refuse("compare")
    if args.seeds < 1:
        raise ValueError(f"--seeds is {args.seeds}; give how many seeds each pair is run with, at least 1.")
    names = [*args.names, *(PAIRS if args.all else ())]
    if not names:
        raise ValueError("Nothing to compare. Name at least one pair, e.g. sgd sam ausam-0.5, or give --all.")
    config = resolve(**_settings(args))
    _set_threads(config)
    _prepare(config, [configured(name, config) for name in names])
    command = shlex.join(["ausam", *args.argv])
    out = Path(args.out)
    seeds = list(range(args.seed, args.seed + args.seeds))
    with Progress(None, "compare") as progress:
        on_epoch = progress.comparison(names, seeds, config)
        results = compare(names, seeds, config, out, command, on_epoch, args.tensorboard)
    sys.stdout.write(f"{text_table(results)}\n\n{headline(results)}\n\n{out / 'report.html'}\n")
    return 0


def _reproduce(args: argparse.Namespace) -> int:
    ranks.refuse("reproduce")
    found = recipe.read(args.table, args.scale)
    seeds = list(range(found.seeds if args.seeds is None else args.seeds))
    if not seeds:
        raise ValueError(f"--seeds is {args.seeds}; give how many seeds each row is run with, at least 1.")
    here = {name: getattr(args, name) for name in ("data_dir", "init", "threads", "device") if hasattr(args, name)}
    cells = recipe.chosen(recipe.cells(found, seeds, **here), args.only)
    out = Path(args.out or f"runs/{found.table}-{found.scale}")
    _set_threads(cells[0].config)
    if args.dry_run:
        sys.stdout.write(f"{found.title}, scale {found.scale}, in {out}\n\n{estimate.plan(cells, out)}\n")
        return 0
    command = shlex.join(["ausam", *args.argv])
    left = sum(cell.config.epochs - estimate.epochs_done(cell.folder(out)) for cell in cells)
    with _launcher(args, cells[0].config.device) as launch, Progress(None, found.table) as progress:
        told = progress.cells(left)
        summary, failed = reproduce(found, cells, seeds, out, command, told, progress.say, args.tensorboard, launch)
    sys.stdout.write(f"{tables.text(summary)}\n\n{out / 'report.html'}\n")
    if failed:
        count = f"{len(failed)} cell{'s' if len(failed) > 1 else ''}"
        sys.stderr.write(f"ausam: {count} failed: {', '.join(failed)}. The same command tries again.\n")
    return 1 if failed else 0


def _launcher(args: argparse.Namespace, device: str) -> contextlib.AbstractContextManager[Launch | None]:
    if args.launcher == "local":
        if args.address is not None:
            raise ValueError("--address is that of a Ray cluster. Use --launcher ray with it, or leave it out.")
        return contextlib.nullcontext()
    if device.startswith("cuda:"):
        raise ValueError(f'device is "{device}", but Ray gives each cell a GPU of its own. Use --device cuda.')
    return on_ray(args.address, args.cpus, float(device == "cuda") if args.gpus is None else args.gpus)


def _report(args: argparse.Namespace) -> int:
    out = Path(args.folder)
    sys.stdout.write(f"{rebuild(out)}\n\n{out / 'report.html'}\n")
    return 0


def _list(args: argparse.Namespace) -> int:
    found = listing.everything()
    sys.stdout.write((json.dumps(found, indent=1) if args.json else listing.text(found)) + "\n")
    return 0


def _bench(args: argparse.Namespace) -> int:
    return bench.main(args.repeats, args.only, sys.stdout)


def _prepare(config: Config, runs: list[Config]) -> None:
    """Refuse what cannot work, then get the data, before a bar is shown: a download shows one of its own."""
    for run in runs:
        method_and_policy(run, steps=1)
    builder(config.model)
    problem(config)


def _set_threads(config: Config) -> None:
    if config.threads:
        torch.set_num_threads(config.threads)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    return {f.name: getattr(args, f.name) for f in fields(Config) if hasattr(args, f.name)}


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ausam", description="Sharpness-aware minimisation at the price of SGD: train, compare, measure."
    )
    parser.add_argument("--version", action="version", version=f"ausam {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    one = commands.add_parser("train", help="one run", description="Train one network and keep everything in a folder.")
    _add_settings(one, set())
    one.add_argument("--out", default="runs/train", help="folder of the run (default: runs/train)")
    one.add_argument("--resume", action="store_true", help="go on with the run in that folder, bit for bit")
    one.add_argument("--timeout", type=float, metavar="SECONDS", help=_timeout_help())
    one.set_defaults(run=_train)

    many = commands.add_parser("compare", help="several pairs, side by side", description=_compare_help())
    many.add_argument("names", nargs="*", metavar="NAME", help="sgd, sam, ausam-0.5, sam+random, ...; see ausam list")
    many.add_argument("--all", action="store_true", help="every named pair")
    many.add_argument("--seeds", type=int, default=3, help="runs of each pair (default: 3)")
    many.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    many.add_argument("--out", default="runs/compare", help="folder of the comparison (default: runs/compare)")
    _add_settings(many, NOT_SHARED | {"sync_perturbation"})
    many.set_defaults(run=_compare)

    again = commands.add_parser("reproduce", help="a table of the paper", description=_reproduce_help())
    again.add_argument("table", help=", ".join(recipe.tables()))
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
    again.add_argument("--cpus", type=float, default=1, help="CPUs that Ray gives a cell (default: 1)")
    again.add_argument("--gpus", type=float, help="GPUs that Ray gives a cell (default: 1 with --device cuda, else 0)")
    _add_settings(again, {f.name for f in fields(Config)} - {"data_dir", "init", "threads", "device"})
    again.set_defaults(run=_reproduce)

    page = commands.add_parser("report", help="tables and page anew from the runs in a folder, without training")
    page.add_argument("folder", help="a folder of reproduce, compare or train")
    page.set_defaults(run=_report)

    for command in (one, many, again):
        command.add_argument("--tensorboard", action="store_true", help="curves for TensorBoard in OUT/tensorboard")

    show = commands.add_parser("list", help="methods, policies, pairs, networks and data sets")
    show.add_argument("--json", action="store_true", help="as JSON")
    show.set_defaults(run=_list)

    speed = commands.add_parser("bench", help="speed as ratios, measured side by side")
    speed.add_argument("what", choices=["step"], help="step: what a step costs")
    speed.add_argument("--repeats", type=int, default=30, help="repeats of each measurement (default: 30)")
    speed.add_argument("--only", default="", help=f"one of {', '.join(bench.PARTS)}")
    speed.set_defaults(run=_bench)
    return parser


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
