"""What each command does: from its arguments to its output and exit code."""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import logging
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from ausam.lab.cli import exits, listing
from ausam.lab.cli.progress import Progress
from ausam.lab.config import Config
from ausam.lab.experiments import bench, estimate, recipe
from ausam.lab.experiments.compare import compare
from ausam.lab.experiments.ray import on_ray
from ausam.lab.experiments.rebuild import rebuild
from ausam.lab.experiments.reproduce import Launch, reproduce
from ausam.lab.networks.build import builder
from ausam.lab.problems.catalogue import problem, resolve
from ausam.lab.registry.pairs import PAIRS, configured, method_and_policy, refuse_idle
from ausam.lab.report import records, skipped, tables
from ausam.lab.report.records import Run
from ausam.lab.report.summary import comparison_text, headline
from ausam.lab.training import folder, ranks, tensorboard
from ausam.lab.training.loop import train


def train_command(args: argparse.Namespace) -> int:
    """One run."""
    with ranks.alike():
        config = resolve(**_settings(args))
    _set_threads(config)
    out = Path(args.out)
    with ranks.joined(config.device, args.timeout) as here:
        if here.rank:
            logging.disable(logging.WARNING)
        here.told(lambda: _prepare(config, [config], _settings(args)))
        if here.rank:
            collections.deque(train(config, out, resume=args.resume, here=here), maxlen=0)
            return 0
        if args.resume and folder.saved_settings(out) is None:
            sys.stderr.write(f"{out} holds no run yet, so there is nothing to resume: it begins.\n")
        with Progress(config.epochs, f"{config.method} × {config.policy}") as progress:
            epochs = train(config, out, resume=args.resume, on_step=progress.step, here=here)
            for epoch in tensorboard.logged(epochs, out, out / "tensorboard") if args.tensorboard else epochs:
                progress.epoch(epoch)
    run = records.read_finished(out / "result.json", Run)
    score = f"test {run.test} after {run.epochs} epochs, {run.train_seconds:.1f} s of training"
    parts = [score, *filter(None, [skipped.of_run(run)]), str(out / "result.json")]
    sys.stdout.write(f"{run.method} × {run.policy}: {'; '.join(parts)}\n")
    return _idle([f"the run in {out}"] if run.idle else [])


def compare_command(args: argparse.Namespace) -> int:
    """Several pairs, side by side."""
    ranks.require_one_process("compare")
    if args.seeds < 1:
        raise ValueError(f"--seeds is {args.seeds}; give how many seeds each pair is run with, at least 1.")
    names = [*args.names, *(PAIRS if args.all else ())]
    if not names:
        raise ValueError("Nothing to compare. Name at least one pair, e.g. sgd sam ausam-0.5, or give --all.")
    config = resolve(**_settings(args))
    _set_threads(config)
    _prepare(config, [configured(name, config) for name in names], _settings(args))
    command = shlex.join(["ausam", *args.argv])
    out = Path(args.out)
    seeds = list(range(args.seed, args.seed + args.seeds))
    with Progress(None, "compare") as progress:
        on_epoch = progress.comparison(names, seeds, config)
        results = compare(names, seeds, config, out, command, on_epoch, args.tensorboard)
    sys.stdout.write(f"{comparison_text(results)}\n\n{headline(results)}\n\n{out / 'report.html'}\n")
    return _idle([f"{named.name} seed {named.run.seed}" for named in results.runs if named.run.idle])


def reproduce_command(args: argparse.Namespace) -> int:
    """A table of the paper."""
    ranks.require_one_process("reproduce")
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
    left = sum(cell.config.epochs - len(folder.epochs(cell.folder(out))) for cell in cells)
    with _launcher(args, cells[0].config.device) as launch, Progress(None, found.table) as progress:
        told = progress.cells(left)
        table, failed = reproduce(found, cells, seeds, out, command, told, progress.say, args.tensorboard, launch)
    sys.stdout.write(f"{tables.text(table)}\n\n{out / 'report.html'}\n")
    if failed:
        count = f"{len(failed)} cell{'s' if len(failed) > 1 else ''}"
        sys.stderr.write(f"ausam: {count} failed: {', '.join(failed)}. The same command tries again.\n")
    ended = {cell.id: records.read(cell.folder(out) / "result.json", Run) for cell in cells}
    idle = _idle([name for name, run in ended.items() if run is not None and run.idle])
    return exits.FAILED if failed else idle


def _idle(names: list[str]) -> int:
    """The exit code of a command whose runs have ended; these of them took no step."""
    if names:
        sys.stderr.write(
            f"ausam: Nothing was learnt in {', '.join(names)}: every step was skipped, {skipped.WHY}. Look for NaN or "
            "inf in the data, or use a smaller --lr.\n"
        )
    return exits.FAILED if names else 0


def _launcher(args: argparse.Namespace, device: str) -> contextlib.AbstractContextManager[Launch | None]:
    if args.launcher == "local":
        if args.address is not None:
            raise ValueError("--address is that of a Ray cluster. Use --launcher ray with it, or leave it out.")
        for flag in ("cpus", "gpus"):
            if getattr(args, flag) is not None:
                raise ValueError(f"--{flag} is what Ray gives a cell. Use --launcher ray with it, or leave it out.")
        return contextlib.nullcontext()
    if device.startswith("cuda:"):
        raise ValueError(f'device is "{device}", but Ray gives each cell a GPU of its own. Use --device cuda.')
    return on_ray(
        args.address,
        1.0 if args.cpus is None else args.cpus,
        float(device == "cuda") if args.gpus is None else args.gpus,
    )


def report_command(args: argparse.Namespace) -> int:
    """Tables and page from the runs of a folder."""
    text, page = rebuild(Path(args.folder))
    sys.stdout.write(f"{text}\n\n{page}\n")
    return 0


def diagnose_command(args: argparse.Namespace) -> int:
    """The theory and the flatness of a run, or the flatness of several."""
    from ausam.lab.diagnose.compare import diagnose_comparison
    from ausam.lab.diagnose.records import Diagnosis, FlatComparison
    from ausam.lab.diagnose.run import diagnose

    ranks.require_one_process("diagnose")
    first, *rest = args.place
    together = first == "compare" and len(rest) == 1
    if rest and not together:
        raise ValueError("Give the folder of one run, or compare and the folder of a comparison.")
    if together and args.what is not None:
        raise ValueError(
            "--what chooses parts of a run's diagnosis; a comparison measures flatness alone. Leave it out."
        )
    here = {name: getattr(args, name) for name in ("data_dir", "threads", "device") if hasattr(args, name)}
    if here.get("threads"):
        torch.set_num_threads(here["threads"])
    command = shlex.join(["ausam", *args.argv])
    found: Diagnosis | FlatComparison
    with Progress(None, "diagnose") as progress:
        if together:
            found = diagnose_comparison(Path(rest[0]), args.samples, command, progress.pieces(), **here)
        else:
            found = diagnose(Path(first), args.what, args.samples, command, progress.pieces(), **here)
    for finding in found.findings:
        mark = {True: "holds: ", False: "does not hold: ", None: ""}[finding.holds]
        sys.stdout.write(f"{finding.part}: {mark}{finding.text}\n")
    for part in found.left:
        sys.stdout.write(f"{part.part}: not measured. {part.why}\n")
    sys.stdout.write(f"\n{Path(rest[0]) / 'flatness.html' if together else Path(first) / 'diagnosis.html'}\n")
    return 0


def list_command(args: argparse.Namespace) -> int:
    """What there is."""
    found = listing.everything()
    sys.stdout.write((json.dumps(found, indent=1) if args.json else listing.text(found)) + "\n")
    return 0


def bench_command(args: argparse.Namespace) -> int:
    """What a step costs."""
    return bench.main(args.repeats, args.only, sys.stdout)


def _prepare(config: Config, runs: list[Config], given: dict[str, Any]) -> None:
    """Refuse what cannot work, then get the data, before a bar is shown: a download shows one of its own."""
    for run in runs:
        method_and_policy(run, steps=1)
    refuse_idle(given, runs)
    builder(config.model)
    problem(config)


def _set_threads(config: Config) -> None:
    if config.threads:
        torch.set_num_threads(config.threads)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    return {f.name: getattr(args, f.name) for f in fields(Config) if hasattr(args, f.name)}
