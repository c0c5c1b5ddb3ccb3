"""What each command does: from its arguments to its output and exit code."""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import logging
import math
import shlex
import sys
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from ausam_lab.cli import config_file, exits, listing, terminal
from ausam_lab.cli.progress import Progress
from ausam_lab.cli.rebuild import comparison_report, rebuild
from ausam_lab.config import PAIR_SETTINGS, TORCHRUN_SETTINGS, Config
from ausam_lab.data.catalogue import defaults_for, problem, resolve
from ausam_lab.experiments import bench
from ausam_lab.experiments.audit import audit_run
from ausam_lab.experiments.bench import split
from ausam_lab.experiments.compare import compare
from ausam_lab.experiments.diagnose import diagnose
from ausam_lab.experiments.run_cells import Launch
from ausam_lab.experiments.tune import HELD_OUT, POLICY, Search, tune, values
from ausam_lab.names.from_config import configured, method_and_policy, refuse_idle, with_own_rho
from ausam_lab.names.pairs import PAIRS, pair
from ausam_lab.networks.build import builder
from ausam_lab.paper import estimate, recipe, tables
from ausam_lab.paper.ray import on_ray
from ausam_lab.paper.reproduce import reproduce
from ausam_lab.records import store
from ausam_lab.records.run import Run
from ausam_lab.records.score import measured_on
from ausam_lab.report.pages import audit as audit_page
from ausam_lab.report.pages import flatness, tuning
from ausam_lab.report.summary import SKIPPED_BECAUSE, skipped_text
from ausam_lab.report.table import to_text
from ausam_lab.selftest import selftest
from ausam_lab.training import ranks, run_folder
from ausam_lab.training.logs import Logs
from ausam_lab.training.loop import train


def train_command(args: argparse.Namespace) -> int:
    """One run."""
    with ranks.same_errors_on_all_ranks():
        given = _settings(args)
        config = _of_method(given) if args.name is None else _of_pair(args.name, given)
    _set_threads(config)
    out = Path(args.out)
    logs = Logs(tuple(args.log), out)
    with ranks.process_group(config.device, args.timeout) as here:
        if here.rank:
            logging.disable(logging.WARNING)
        here.from_rank0(lambda: _prepare(config, [config], given))
        if here.rank:
            collections.deque(train(config, out, resume=args.resume, here=here), maxlen=0)
            return 0
        terminal.write_error(f"{announcement(config, given)}\n")
        if args.resume and run_folder.saved_config(out) is None:
            terminal.write_error(f"{out} has no run to resume, so a new one starts.\n")
        with Progress(config.epochs, f"{config.method} + {config.policy}") as progress:
            for epoch in train(config, out, resume=args.resume, on_step=progress.step, here=here, logs=logs):
                progress.epoch(epoch)
    run = store.read_finished(out / "result.json", Run)
    after = f"after {run.epochs} epoch{'s' * (run.epochs > 1)}"
    score = f"{measured_on(str(run.test))} {after}, {run.train_seconds:.1f} s of training"
    parts = [score, *filter(None, [skipped_text(run)]), str(out / "result.json")]
    terminal.write(f"{config.label or run.pair}: {'; '.join(parts)}\n")
    if run.audit is not None:
        terminal.write(f"{' '.join(run.audit.sentences)} More: ausam audit {shlex.quote(str(out))}\n")
    return _idle([f"the run in {out}"] if run.idle else [])


def compare_command(args: argparse.Namespace) -> int:
    """Several pairs, side by side."""
    ranks.require_one_process("compare")
    _check_seeds(args.seeds, "pair")
    names = [*args.names, *(PAIRS if args.all else ())]
    if not names:
        raise ValueError("Nothing to compare. Name at least one pair, e.g. sgd sam ausam-0.5, or give --all.")
    given = _settings(args, elsewhere={*PAIR_SETTINGS, *TORCHRUN_SETTINGS} - {"seed"})
    config = resolve(**given)
    _set_threads(config)
    runs = {pair(name).name: configured(name, config, rho_given="rho" in given) for name in names}
    _prepare(config, list(runs.values()), given)
    terminal.write_error(f"{announcement(config, given)}\n")
    out = Path(args.out)
    seeds = list(range(config.seed, config.seed + args.seeds))
    with Progress(None, "compare") as progress:
        on_epoch = progress.comparison(runs, seeds)
        results = compare(runs, seeds, config, out, args.command, on_epoch, Logs(tuple(args.log), out))
    terminal.write(f"{comparison_report(results)}\n\n{out / 'report.html'}\n")
    return _idle([f"{named.name} seed {named.run.seed}" for named in results.runs if named.run.idle])


def reproduce_command(args: argparse.Namespace) -> int:
    """A table of the paper."""
    ranks.require_one_process("reproduce")
    _check_seeds(args.seeds, "row")
    of_machine = ("data_dir", "init", "threads", "device", "keep")
    here = {name: getattr(args, name) for name in of_machine if hasattr(args, name)}
    wanted = recipe.read(args.table, args.scale, args.seeds)
    cells = recipe.chosen(recipe.cells(wanted, **here), args.only)
    out = Path(args.out or f"runs/{wanted.folder}")
    _set_threads(cells[0].config)
    if args.dry_run:
        scale = f", scale {wanted.scale}" if wanted.scale else ""
        plan = estimate.plan(cells, out)
        deviations = "\n".join(f"- {text}" for text in wanted.deviations)
        differs = f"\n\nWhat differs from the paper:\n{deviations}" if deviations else ""
        terminal.write(f"{wanted.title}{scale}, in {out}\n\n{plan}{differs}\n")
        return 0
    left = sum(cell.config.epochs - len(run_folder.epochs(cell.folder(out))) for cell in cells)
    with _launcher(args, cells[0].config.device) as launch, Progress(None, wanted.table) as progress:
        on_epoch = progress.cells(left)
        logs = Logs(tuple(args.log), out)
        table, failed = reproduce(wanted, cells, out, args.command, on_epoch, progress.say, logs, launch)
    terminal.write(f"{tables.text(table)}\n\n{out / 'report.html'}\n")
    if failed:
        count = f"{len(failed)} cell{'s' if len(failed) > 1 else ''}"
        terminal.write_error(f"ausam: {count} failed: {', '.join(failed)}. Run the same command to try again.\n")
    ended = {cell.id: store.read(cell.folder(out) / "result.json", Run) for cell in cells}
    idle = _idle([name for name, run in ended.items() if run is not None and run.idle])
    return exits.FAILED if failed else idle


def _idle(names: list[str]) -> int:
    """The exit code of a command whose runs have ended; ``names`` are those that took no step."""
    if names:
        terminal.write_error(
            f"ausam: {', '.join(names)} learnt nothing: every step was skipped, {SKIPPED_BECAUSE}. Look for NaN or "
            "inf in the data, or use a smaller --lr.\n"
        )
    return exits.FAILED if names else 0


def _launcher(args: argparse.Namespace, device: str) -> contextlib.AbstractContextManager[Launch | None]:
    if args.launcher == "local":
        if args.address is not None:
            raise ValueError("--address is the address of a Ray cluster. Use --launcher ray with it, or leave it out.")
        for flag in ("cpus", "gpus"):
            if getattr(args, flag) is not None:
                raise ValueError(f"--{flag} is what Ray gives each cell. Use --launcher ray with it, or leave it out.")
        return contextlib.nullcontext()
    if device.startswith("cuda:"):
        raise ValueError(f'device is "{device}", but Ray gives each cell its own GPU. Use --device cuda.')
    return on_ray(
        args.address,
        1.0 if args.cpus is None else args.cpus,
        float(device == "cuda") if args.gpus is None else args.gpus,
    )


def tune_command(args: argparse.Namespace) -> int:
    """A short search for settings."""
    ranks.require_one_process("tune")
    _check_seeds(args.seeds, "trial")
    given = {"policy": POLICY, "validation": HELD_OUT} | _settings(args, elsewhere={*TORCHRUN_SETTINGS})
    config = _of_method(given)
    over = values(args.over, config)
    if twice := sorted(over.keys() & given.keys()):
        flag = f"--{twice[0].replace('_', '-')}"
        raise ValueError(f"{twice[0]} is one of the settings to search, so {flag} has no effect. Leave it out.")
    _set_threads(config)
    _prepare(config, [config], given)
    out = Path(args.out)
    seeds = list(range(config.seed, config.seed + args.seeds))
    search = Search(over, seeds, config, given, out, args.command)
    with Progress(None, "tune") as progress:
        on_epoch = progress.cells(len(seeds) * config.epochs * math.prod(map(len, over.values())))
        study = tune(search, on_epoch, progress.say, Logs(tuple(args.log), out))
    terminal.write(f"{tuning.text(study)}\n\n{out / 'tuning.html'}\n")
    return 0


def report_command(args: argparse.Namespace) -> int:
    """Tables and page from the runs of a folder."""
    text, page = rebuild(Path(args.folder))
    terminal.write(f"{text}\n\n{page}\n")
    return 0


def diagnose_command(args: argparse.Namespace) -> int:
    """How flat the minima of runs are."""
    ranks.require_one_process("diagnose")
    here = {name: getattr(args, name) for name in ("data_dir", "threads", "device") if hasattr(args, name)}
    if here.get("threads"):
        torch.set_num_threads(here["threads"])
    places = [Path(place) for place in args.place]
    with Progress(None, "diagnose") as progress:
        flat = diagnose(places, args.samples, args.command, progress.pieces(), **here)
    left_out = "".join(f"{folder} was not measured: {why}\n" for folder, why in flat.failed.items())
    terminal.write(
        f"{to_text(flatness.table(flat))}\n\n{flatness.note(flat)}\n\n{flatness.verdict(flat)}\n{left_out}\n"
        f"{places[0] / 'flatness.html'}\n"
    )
    return 0


def audit_command(args: argparse.Namespace) -> int:
    """What a run says about its data."""
    ranks.require_one_process("audit")
    here = {name: getattr(args, name) for name in ("data_dir",) if hasattr(args, name)}
    folder = Path(args.folder)
    out = folder / "audit.html" if args.out is None else Path(args.out)
    export = None if args.export is None else Path(args.export)
    audited = audit_run(folder, out, export, args.command, **here)
    terminal.write(f"{audit_page.text(audited)}\n\n{out}\n{'' if export is None else f'{export}{chr(10)}'}")
    return 0


def list_command(args: argparse.Namespace) -> int:
    """List everything, or describe one entry."""
    if args.name is not None:
        about = listing.named(args.name)
        terminal.write((json.dumps(about, indent=1) if args.json else listing.named_text(about)) + "\n")
        return 0
    tables = listing.everything()
    terminal.write((json.dumps(tables, indent=1) if args.json else listing.text(tables)) + "\n")
    return 0


def bench_command(args: argparse.Namespace) -> int:
    """The cost of a step."""
    with Progress(None, "bench") as progress:
        return bench.main(args.repeats, args.only, sys.stdout, progress.turns())


def split_command(args: argparse.Namespace) -> int:
    """The time of a step of SAM, split."""
    ranks.require_one_process("bench")
    config = _of_pair("sam", _settings(args))
    _set_threads(config)
    _prepare(config, [config], {})
    with Progress(None, "bench") as progress:
        measured = split.measure(config, args.repeats, progress.turns())
    terminal.write(split.text(config, measured) + "\n")
    return 0


def selftest_command(args: argparse.Namespace) -> int:
    """What works on a device, and what does not."""
    return selftest(args.device)


def _of_method(given: dict[str, Any]) -> Config:
    """The settings of one run."""
    config = resolve(**given)
    return config if "rho" in given else with_own_rho(config)


def _of_pair(name: str, given: dict[str, Any]) -> Config:
    """The settings of one run of a named pair, the same as in a comparison."""
    if twice := [setting for setting in PAIR_SETTINGS if setting != "seed" and setting in given]:
        also = f"{twice[0]} is {given[twice[0]]!r}"
        raise ValueError(f"{name} names a method and a policy, but {also} too. Leave out one of the two.")
    return configured(name, resolve(**given), rho_given="rho" in given)


def _prepare(config: Config, runs: list[Config], given: dict[str, Any]) -> None:
    """Refuse what cannot work, then fetch the data, before the progress bar: a download shows its own."""
    methods = [method_and_policy(run, steps=1)[0] for run in runs]
    refuse_idle(given, runs)
    if given.get("replay") and all(method.passes[0] <= 1 for method in methods):
        names = " and ".join(dict.fromkeys(type(method).__name__ for method in methods))
        raise ValueError(
            f"--replay affects only later passes, but a step of {names} has one pass only. Leave out --replay."
        )
    builder(config.model)
    problem(config)


def announcement(config: Config, given: Mapping[str, Any]) -> str:
    """Data, wrong labels, network, epochs and batch size, as one line; ``given`` are the settings of the user."""
    tail = f" with long tail {config.imbalance:g}" if config.imbalance not in (0, 1) else ""
    noise = f"{' and' if tail else ' with'} {100 * config.label_noise:g} % wrong labels" if config.label_noise else ""
    if noise and "label_noise" not in given:
        noise += " (the default for this data; --label-noise 0 for none)"
    epochs = f"{config.epochs} epoch{'s' * (config.epochs > 1)}"
    return f"{config.data}{tail}{noise}, {config.model}, {epochs}, batch {config.batch_size}"


def _check_seeds(seeds: int | None, what: str) -> None:
    if seeds is not None and seeds < 1:
        raise ValueError(f"--seeds is {seeds}; give the number of runs per {what}, at least 1.")


def _set_threads(config: Config) -> None:
    if config.threads:
        torch.set_num_threads(config.threads)


def _settings(args: argparse.Namespace, elsewhere: Collection[str] = ()) -> dict[str, Any]:
    """The settings given by flags, which take precedence, and by a --config file."""
    flags = {f.name: getattr(args, f.name) for f in fields(Config) if hasattr(args, f.name)}
    if (path := getattr(args, "config", None)) is None:
        return flags
    in_file = config_file.read(Path(path), elsewhere)
    # A run's config.json also holds its data's defaults. Nobody asked for those, so they may have no effect.
    suiting = defaults_for((in_file | flags).get("data", Config.data))
    return {k: v for k, v in in_file.items() if v != suiting.get(k)} | flags
