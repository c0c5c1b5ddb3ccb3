"""``ausam tune``: a short search for settings."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from ausam_lab.cli import settings, terminal
from ausam_lab.cli.flags import Command, Parser, add_common, add_settings
from ausam_lab.cli.terminal import Progress, count
from ausam_lab.config import flag_of
from ausam_lab.experiments.tune import HELD_OUT, POLICY, text, tune, values

OWN = {"policy": POLICY, "validation": HELD_OUT}  # defaults of a search


def flags(made: Parser, everything: bool) -> None:
    """Those of a run, and what is searched."""
    over = (
        "a numeric setting and its values, e.g. --over rho=0.05,0.1,0.2; may be repeated "
        "(default: half, once and twice the rho, and alpha 0.25 and 0.5)"
    )
    made.add_argument("--over", action="append", default=[], metavar="NAME=VALUES", help=over)
    add_common(made, "runs/tune", "search", "trial")
    add_settings(made, everything, {"sync_perturbation"}, OWN)


def run(args: argparse.Namespace) -> int:
    """Train what is missing, and print the trials."""
    given = OWN | settings.given(args, elsewhere={"sync_perturbation"})
    config = settings.of_method(given)
    over = values(args.over, config)
    if twice := sorted(over.keys() & given.keys()):
        flag, tried = flag_of(twice[0]), ", ".join(f"{value:g}" for value in over[twice[0]])
        raise ValueError(f"{flag} is one value, but the search tries {tried}. Leave out {flag}, or give --over others.")
    settings.use_threads(config.threads)
    settings.prepare(config, [config], given)
    out, seeds = Path(args.out), list(range(config.seed, config.seed + args.seeds))
    runs = math.prod(map(len, over.values())) * len(seeds)
    terminal.write_error(f"{settings.announcement(config, given)}\n{count(runs, 'run')} at most\n")
    with Progress("tune", total=runs * config.epochs) as progress:
        study = tune(over, seeds, config, out, progress.of_cell, progress.say)
    terminal.write(f"{text(study, out, terminal.columns())}\n")
    return 0


COMMAND = Command(
    run,
    flags,
    "",
    ("ausam tune --over rho=0.05,0.1,0.2,0.4 --seeds 2", "ausam tune --over lr=0.01,0.03,0.1 --policy full"),
    "Search for settings on held-out training samples. The test samples are never used. All combinations of the "
    "values are tried with Optuna. After half of the epochs, a trial that is worse than half of the earlier ones "
    "is stopped. Stop it at any time: the same command continues. tuning.html shows all trials.",
)
