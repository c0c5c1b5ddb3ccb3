"""``ausam train``: one run."""

from __future__ import annotations

import argparse
import logging
import shlex
from pathlib import Path

from ausam_lab.cli import settings, terminal
from ausam_lab.cli.flags import Command, Parser, add_common, add_settings
from ausam_lab.cli.terminal import Progress
from ausam_lab.names.user_code import is_code
from ausam_lab.records.run import Epoch, measured_on
from ausam_lab.report.text import skipped_text
from ausam_lab.training import ranks, run_folder
from ausam_lab.training.loop import finish, train


def flags(made: Parser, everything: bool) -> None:
    """Those of a run, and of its folder."""
    about = "a pair, e.g. sgd, sam, ausam-0.5, sam+random, in place of --method and --policy (see ausam list)"
    made.add_argument("name", nargs="?", metavar="NAME", help=about)
    add_common(made, "runs/train", "run")
    made.add_argument("--resume", action="store_true", help="continue the run in that folder, bit for bit")
    add_settings(made, everything)


def run(args: argparse.Namespace) -> int:
    """Train, in one process or in those of torchrun."""
    with ranks.same_errors_on_all_ranks():
        given = settings.given(args)
        config = settings.of_method(given) if args.name is None else settings.of_pair(args.name, given)
    settings.use_threads(config.threads)
    out = Path(args.out)
    with ranks.process_group(config.device) as mine:
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

            record = finish(train(config, out, resume=args.resume, on_step=on_step, ranks=mine), on_epoch)
    after = f"after {record.epochs} epoch{'s' * (record.epochs > 1)}"
    score = f"{measured_on(str(record.test))} {after}, {record.train_seconds:.1f} s of training"
    parts = (score, skipped_text(record.skipped_steps, record.steps), str(out / "result.json"))
    terminal.write(f"{config.label or record.pair}: {'; '.join(filter(None, parts))}\n")
    if record.audit is not None:
        trust = " --trust" if is_code(config.data) else ""
        terminal.write(f"{' '.join(record.audit.sentences)} More: ausam audit {shlex.quote(str(out))}{trust}\n")
    return terminal.idle([f"the run in {out}"] if record.idle else [])


COMMAND = Command(
    run,
    flags,
    "[NAME]",
    (
        "ausam train ausam-0.5",
        "ausam train sam --data folder:photos --epochs 20 --lr 0.01 --out runs/photos",
        "ausam train --config runs/train/config.json --seed 1 --out runs/again",
    ),
    "Train one network and keep everything in a folder. By default it trains a small network on scikit-learn's "
    "digits, 20 % of whose training labels are made wrong (--label-noise 0 leaves them right).",
)
