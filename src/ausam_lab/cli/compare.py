"""``ausam compare``: several pairs of a method and a policy, side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

from ausam_lab.cli import settings, terminal
from ausam_lab.cli.flags import Command, Parser, add_common, add_settings, add_verbose
from ausam_lab.cli.terminal import Progress, count
from ausam_lab.config import PAIR_SETTINGS
from ausam_lab.data.catalogue import resolve
from ausam_lab.experiments.cells import run_folder as folder_of
from ausam_lab.experiments.compare import compare, labels_of, rows
from ausam_lab.names.pairs import PAIRS
from ausam_lab.records.run import Epoch
from ausam_lab.report import summary
from ausam_lab.training import run_folder

SET_ELSEWHERE = {*PAIR_SETTINGS, "sync_perturbation"} - {"seed"}  # by the names; under torchrun alone


def flags(made: Parser, everything: bool) -> None:
    """Those of a run that do not differ between the pairs."""
    made.add_argument("names", nargs="*", metavar="NAME", help="sgd, sam, ausam-0.5, mine:MySAM (see ausam list)")
    made.add_argument("--all", action="store_true", help="every named pair")
    add_common(made, "runs/compare", "comparison", "pair")
    add_verbose(made)
    labels = "labels.csv of ausam audit --apply. Several train every pair with each of them, and given is no file"
    made.add_argument("--labels", dest="label_files", nargs="+", default=(), metavar="FILE", help=labels)
    add_settings(made, everything, {*SET_ELSEWHERE, "labels"})


def run(args: argparse.Namespace) -> int:
    """Train what is missing, print the table and write the pages."""
    names = [*args.names, *(PAIRS if args.all else ())]
    if not names:
        raise ValueError("Nothing to compare. Name at least one pair, e.g. sgd sam ausam-0.5, or give --all.")
    given = settings.given(args, elsewhere=SET_ELSEWHERE)
    if args.label_files:
        given["labels"] = labels_of(args.label_files[0])
    config = resolve(**given)
    settings.use_threads(config.threads)
    runs = rows(names, config, args.label_files, rho_given="rho" in given)
    settings.prepare(config, list(runs.values()), given)
    out = Path(args.out)
    seeds = list(range(config.seed, config.seed + args.seeds))
    total = len(seeds) * sum(run.epochs for run in runs.values())
    done = sum(len(run_folder.epochs(folder_of(out, name, seed))) for name in runs for seed in seeds)
    size = f"{count(len(runs), 'pair')} with {count(len(seeds), 'seed')}: {count(len(runs) * len(seeds), 'run')}"
    terminal.write_error(f"{settings.announcement(config, given)}\n{size}, {count(total - done, 'epoch')} to do\n")
    with Progress("compare") as progress:
        progress.begin(done, total)

        def on_epoch(name: str, seed: int, epoch: Epoch) -> None:
            progress.advance(f"{name} seed {seed}: epoch {epoch.epoch}, {epoch.test}")
            if epoch.epoch == runs[name].epochs:
                progress.say(f"{name} seed {seed}: {epoch.test}, {epoch.seconds:.1f} s of training")

        results = compare(runs, seeds, config, out, args.command, on_epoch)
    text = summary.text(results, terminal.columns(), verbose=args.verbose)
    terminal.write(f"{text}\n\n{out / 'report.html'}\n")
    return terminal.idle([f"{named.name} seed {named.run.seed}" for named in results.runs if named.run.idle])


COMMAND = Command(
    run,
    flags,
    "NAME [NAME ...]",
    (
        "ausam compare sgd sam ausam-0.5",
        "ausam compare sgd sgd@1x0.5 sam+random sam+trusted --label-noise 0.4 --seeds 5",
        "ausam compare sgd sam --data folder:photos --epochs 20 --out runs/photos",
    ),
    "Train named pairs of a method and a policy with several seeds, print a table and write results.json and "
    "report.html. Stop it at any time: the same command continues. NAME@F trains for a fraction F of the epochs, "
    "NAME@FxB with a fraction B of the batch size too: sgd@1x0.5 is SGD with half batches.",
)
