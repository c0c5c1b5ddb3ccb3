"""What each command does: from its arguments to its output and exit code."""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import shlex
from collections.abc import Callable
from pathlib import Path

import torch

from ausam_lab.cli import listing, settings, terminal
from ausam_lab.cli.main import FAILED
from ausam_lab.cli.rebuild import rebuild
from ausam_lab.cli.terminal import Progress
from ausam_lab.config import PAIR_SETTINGS, TORCHRUN_SETTINGS, Config
from ausam_lab.data.catalogue import resolve
from ausam_lab.experiments import audit
from ausam_lab.experiments.cells import run_folder as folder_of
from ausam_lab.experiments.compare import compare, labels_of, rows
from ausam_lab.experiments.diagnose import diagnose
from ausam_lab.experiments.run_cells import Launch
from ausam_lab.experiments.tune import HELD_OUT, POLICY, Search, tune, values
from ausam_lab.names.pairs import PAIRS
from ausam_lab.names.user_code import is_code
from ausam_lab.paper import estimate, recipe, tables
from ausam_lab.paper.ray import on_ray
from ausam_lab.paper.reproduce import reproduce
from ausam_lab.records import store
from ausam_lab.records.run import Epoch, Run, measured_on
from ausam_lab.report import summary
from ausam_lab.report.pages import audit as audit_page
from ausam_lab.report.pages import flatness, tuning
from ausam_lab.report.summary import SKIPPED_BECAUSE, skipped_text
from ausam_lab.report.table import to_text
from ausam_lab.report.text import wrapped
from ausam_lab.training import ranks, run_folder
from ausam_lab.training.loop import finish, train


def train_command(args: argparse.Namespace) -> int:
    """One run."""
    with ranks.same_errors_on_all_ranks():
        given = settings.given(args)
        config = settings.of_method(given) if args.name is None else settings.of_pair(args.name, given)
    _set_threads(config)
    out = Path(args.out)
    with ranks.process_group(config.device, args.timeout) as mine:
        if mine.rank:
            logging.disable(logging.WARNING)
        mine.from_rank0(lambda: settings.prepare(config, [config], given))
        if mine.rank:
            finish(train(config, out, resume=args.resume, ranks=mine))
            return 0
        terminal.write_error(f"{settings.announcement(config, given)}\n")
        if args.resume and run_folder.saved_config(out) is None:
            terminal.write_error(f"{out} has no run to resume, so a new one starts.\n")
        with Progress(f"{config.method} + {config.policy}") as progress:
            progress.begin(len(run_folder.epochs(out)) if args.resume else 0, config.epochs)
            last = ""

            def on_step(part: float) -> None:
                progress.advance(last, by=part)

            def on_epoch(epoch: Epoch) -> None:
                nonlocal last
                figures = f"loss {epoch.train_loss:.3f} {epoch.test} {epoch.images_per_second:,.0f} images/s"
                last = f"epoch {epoch.epoch}/{config.epochs} {figures}"
                if not progress.live:
                    progress.say(last)

            run = finish(train(config, out, resume=args.resume, on_step=on_step, ranks=mine), on_epoch)
    after = f"after {run.epochs} epoch{'s' * (run.epochs > 1)}"
    score = f"{measured_on(str(run.test))} {after}, {run.train_seconds:.1f} s of training"
    parts = [score, *filter(None, [skipped_text(run)]), str(out / "result.json")]
    terminal.write(f"{config.label or run.pair}: {'; '.join(parts)}\n")
    if run.audit is not None:
        trust = " --trust" if is_code(config.data) else ""
        terminal.write(f"{' '.join(run.audit.sentences)} More: ausam audit {shlex.quote(str(out))}{trust}\n")
    return _idle([f"the run in {out}"] if run.idle else [])


def compare_command(args: argparse.Namespace) -> int:
    """Several pairs, side by side."""
    ranks.require_one_process("compare")
    _check_seeds(args.seeds, "pair")
    names = [*args.names, *(PAIRS if args.all else ())]
    if not names:
        raise ValueError("Nothing to compare. Name at least one pair, e.g. sgd sam ausam-0.5, or give --all.")
    given = settings.given(args, elsewhere={*PAIR_SETTINGS, *TORCHRUN_SETTINGS} - {"seed"})
    if args.label_files:
        given["labels"] = labels_of(args.label_files[0])
    config = resolve(**given)
    _set_threads(config)
    runs = rows(names, config, args.label_files, rho_given="rho" in given)
    settings.prepare(config, list(runs.values()), given)
    out = Path(args.out)
    seeds = list(range(config.seed, config.seed + args.seeds))
    total = len(seeds) * sum(run.epochs for run in runs.values())
    done = sum(len(run_folder.epochs(folder_of(out, name, seed))) for name in runs for seed in seeds)
    count = f"{_count(len(runs), 'pair')} with {_count(len(seeds), 'seed')}: {_count(len(runs) * len(seeds), 'run')}"
    terminal.write_error(f"{settings.announcement(config, given)}\n{count}, {_count(total - done, 'epoch')} to do\n")
    with Progress("compare") as progress:
        progress.begin(done, total)

        def on_epoch(name: str, seed: int, epoch: Epoch) -> None:
            progress.advance(f"{name} seed {seed}: epoch {epoch.epoch}, {epoch.test}")
            if epoch.epoch == runs[name].epochs:
                progress.say(f"{name} seed {seed}: {epoch.test}, {epoch.seconds:.1f} s of training")

        results = compare(runs, seeds, config, out, args.command, on_epoch)
    text = summary.text(results, terminal.screen(), verbose=args.verbose)
    terminal.write(f"{text}\n\n{out / 'report.html'}\n")
    return _idle([f"{named.name} seed {named.run.seed}" for named in results.runs if named.run.idle])


def reproduce_command(args: argparse.Namespace) -> int:
    """A table of the paper."""
    ranks.require_one_process("reproduce")
    _check_seeds(args.seeds, "row")
    wanted = recipe.read(args.table, args.scale, args.seeds)
    cells = recipe.chosen(recipe.cells(wanted, **settings.given(args)), args.only)
    out = Path(args.out or f"runs/{wanted.folder}")
    _set_threads(cells[0].config)
    if args.dry_run:
        scale = f", scale {wanted.scale}" if wanted.scale else ""
        plan = estimate.plan(cells, out)
        deviations = "\n".join(wrapped(f"- {text}") for text in wanted.deviations)
        differs = f"\n\nWhat differs from the paper:\n{deviations}" if deviations else ""
        terminal.write(f"{wanted.title}{scale}, in {out}\n\n{plan}{differs}\n")
        return 0
    total = sum(cell.config.epochs for cell in cells)
    done = sum(len(run_folder.epochs(cell.folder(out))) for cell in cells)
    terminal.write_error(f"{_count(len(cells), 'run')}, {_count(total - done, 'epoch')} to do\n")
    with _launcher(args, cells[0].config.device) as launch, Progress(wanted.table) as progress:
        progress.begin(done, total)
        table, failed = reproduce(wanted, cells, out, args.command, _cells(progress), progress.say, launch)
    terminal.write(f"{tables.text(table, terminal.screen())}\n\n{out / 'report.html'}\n")
    if failed:
        terminal.write_error(
            f"ausam: {_count(len(failed), 'cell')} failed: {', '.join(failed)}. Run the same command to try again.\n"
        )
    ended = {cell.id: store.read(cell.folder(out) / "result.json", Run) for cell in cells}
    idle = _idle([name for name, run in ended.items() if run is not None and run.idle])
    return FAILED if failed else idle


def _launcher(args: argparse.Namespace, device: str) -> contextlib.AbstractContextManager[Launch | None]:
    if args.launcher == "local":
        if idle := [name for name in ("address", "cpus", "gpus") if getattr(args, name) is not None]:
            raise ValueError(f"--{idle[0]} is for Ray. Use --launcher ray with it, or leave it out.")
        return contextlib.nullcontext()
    if device.startswith("cuda:"):
        raise ValueError(f'device is "{device}", but Ray gives each cell its own GPU. Use --device cuda.')
    gpus = float(device == "cuda") if args.gpus is None else args.gpus
    return on_ray(args.address, 1.0 if args.cpus is None else args.cpus, gpus)


def tune_command(args: argparse.Namespace) -> int:
    """A short search for settings."""
    ranks.require_one_process("tune")
    _check_seeds(args.seeds, "trial")
    given = {"policy": POLICY, "validation": HELD_OUT} | settings.given(args, elsewhere={*TORCHRUN_SETTINGS})
    config = settings.of_method(given)
    over = values(args.over, config)
    if twice := sorted(over.keys() & given.keys()):
        flag = f"--{twice[0].replace('_', '-')}"
        raise ValueError(f"{twice[0]} is one of the settings to search, so {flag} has no effect. Leave it out.")
    _set_threads(config)
    settings.prepare(config, [config], given)
    out = Path(args.out)
    seeds = list(range(config.seed, config.seed + args.seeds))
    trials = math.prod(map(len, over.values()))
    count = f"{_count(trials, 'trial')} with {_count(len(seeds), 'seed')}: {_count(trials * len(seeds), 'run')} at most"
    terminal.write_error(f"{settings.announcement(config, given)}\n{count}\n")
    search = Search(over, seeds, config, given, out, args.command)
    with Progress("tune", total=trials * len(seeds) * config.epochs) as progress:
        study = tune(search, _cells(progress), progress.say)
    terminal.write(f"{tuning.text(study, terminal.screen(), verbose=args.verbose)}\n\n{out / 'tuning.html'}\n")
    return 0


def report_command(args: argparse.Namespace) -> int:
    """Tables and page from the runs of a folder."""
    text, page = rebuild(Path(args.folder), terminal.screen(), verbose=args.verbose)
    terminal.write(f"{text}\n\n{page}\n")
    return 0


def diagnose_command(args: argparse.Namespace) -> int:
    """How flat the minima of runs are."""
    ranks.require_one_process("diagnose")
    here = settings.given(args)
    if here.get("threads"):
        torch.set_num_threads(here["threads"])
    places = [Path(place) for place in args.place]
    with Progress("diagnose") as progress:
        begun = 0

        def on_run(name: str, total: int) -> None:
            nonlocal begun
            progress.begin(begun, total)
            begun += 1
            progress.say(f"{begun}/{total} {name}")

        flat = diagnose(places, args.samples, args.command, on_run, trust=args.trust, **here)
    screen = terminal.screen()
    left_out = [f"{folder} was not measured: {why}" for folder, why in flat.failed.items()]
    said = [wrapped(flatness.verdict(flat), screen), to_text(flatness.table(flat), screen)]
    said += [wrapped(flatness.note(flat), screen), *left_out, str(places[0] / "flatness.html")]
    terminal.write("\n\n".join(said) + "\n")
    return 0


def audit_command(args: argparse.Namespace) -> int:
    """What a run says about its data. With --data it is trained first."""
    ranks.require_one_process("audit")
    given = settings.given(args)
    if "data" not in given and (idle := sorted(given.keys() - {"data_dir"})):
        raise ValueError(f"--{idle[0].replace('_', '-')} is for a new training. Give --data, too, or leave it out.")
    if args.folder is None and "data" not in given:
        raise ValueError("Nothing to audit. Give the folder of a run, or --data, e.g. --data folder:PATH.")
    if args.apply is not None and args.decisions is None:
        raise ValueError("--apply writes the labels after your decisions. Give --decisions decisions.csv, too.")
    folder = Path(args.folder or audit.folder_for(given["data"]))
    if "data" in given:
        how = {"name": "sgd", "out": folder, "resume": folder.exists(), "timeout": None}
        if code := train_command(argparse.Namespace(**audit.settings_to_train(given), **how)):
            return code
    here = {name: value for name, value in given.items() if name == "data_dir"}
    if (folder / "runs").is_dir():
        return _audit_rows(folder, args, here)
    out = folder / "audit.html" if args.out is None else Path(args.out)
    export = None if args.export is None else Path(args.export)
    audited = audit.audit_run(folder, out, export, args.command, trust=args.trust, typed=given.get("data", ""), **here)
    if args.decisions is None:
        written, said = [out, export], audit_page.text(audited)
    else:
        labels = None if args.apply is None else Path(args.apply)
        written, said = [out, export, labels], audit.review(audited, folder, Path(args.decisions), labels)
    terminal.write("\n".join([said, "", *(str(path) for path in written if path is not None), ""]))
    return 0


def _audit_rows(folder: Path, args: argparse.Namespace, here: dict[str, str]) -> int:
    """The audits of a comparison, one for each row."""
    for name in ("out", "export", "decisions"):
        if getattr(args, name) is not None:
            raise ValueError(
                f"--{name} is about one run, but {folder} is a comparison. Give a folder inside its runs/."
            )
    audits = audit.audit_rows(folder, args.command, trust=args.trust, **here)
    table = audit_page.rows_table([(name, audited) for name, _, audited in audits])
    terminal.write("\n".join([to_text(table), "", *(str(page) for _, page, _ in audits), ""]))
    return 0


def list_command(args: argparse.Namespace) -> int:
    """List everything, or describe one entry."""
    terminal.write((listing.everything() if args.name is None else listing.named(args.name)) + "\n")
    return 0


def _cells(progress: Progress) -> Callable[[str, Epoch], None]:
    """What a table or a search calls after every epoch of a cell."""
    return lambda cell, epoch: progress.advance(f"{cell}: epoch {epoch.epoch}, {epoch.test}")


def _idle(names: list[str]) -> int:
    """The exit code of a command whose runs have ended. ``names`` are those that took no step."""
    if names:
        terminal.write_error(
            f"ausam: {', '.join(names)} learnt nothing: every step was skipped, {SKIPPED_BECAUSE}. Look for NaN or "
            "inf in the data, or use a smaller --lr.\n"
        )
    return FAILED if names else 0


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"


def _check_seeds(seeds: int | None, what: str) -> None:
    if seeds is not None and seeds < 1:
        raise ValueError(f"--seeds is {seeds}; give the number of runs per {what}, at least 1.")


def _set_threads(config: Config) -> None:
    if config.threads:
        torch.set_num_threads(config.threads)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "compare": compare_command,
    "audit": audit_command,
    "tune": tune_command,
    "train": train_command,
    "list": list_command,
    "report": report_command,
    "diagnose": diagnose_command,
    "reproduce": reproduce_command,
}
