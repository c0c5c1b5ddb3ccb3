"""``ausam diagnose``: how flat the minima of runs are."""

from __future__ import annotations

import argparse
from pathlib import Path

from ausam_lab.cli import settings, terminal
from ausam_lab.cli.flags import Command, Parser, add_trust, only
from ausam_lab.cli.terminal import Progress
from ausam_lab.experiments.diagnose import diagnose
from ausam_lab.report.pages import flatness
from ausam_lab.report.table import to_text
from ausam_lab.report.text import wrapped


def flags(made: Parser, _: bool) -> None:
    """Which runs, and where they are measured."""
    made.add_argument("place", nargs="+", metavar="FOLDER", help="folder of a run or of a comparison")
    about = "training samples to measure on (default: 512)"
    made.add_argument("--samples", type=int, default=512, metavar="N", help=about)
    add_trust(made)
    only(made, "data_dir", "threads", "device")


def run(args: argparse.Namespace) -> int:
    """Measure, print the table and write the page."""
    places, here = [Path(place) for place in args.place], settings.given(args)
    settings.use_threads(here.get("threads", 0))
    with Progress("diagnose") as progress:

        def on_run(name: str, number: int, total: int) -> None:
            progress.begin(number - 1, total)
            progress.say(f"{number}/{total} {name}")

        flat = diagnose(places, args.samples, args.command, on_run, trust=args.trust, **here)
    columns = terminal.columns()
    said = [wrapped(flatness.verdict(flat), columns), to_text(flatness.table(flat), columns)]
    said += [wrapped(flatness.note(flat), columns), str(places[0] / "flatness.html")]
    terminal.write("\n\n".join(filter(None, said)) + "\n")
    return 0


COMMAND = Command(
    run,
    flags,
    "FOLDER [FOLDER ...]",
    ("ausam diagnose runs/compare",),
    "Measure how flat the minima of runs are, on the last weights that they have kept: the Hessian, sharpness and "
    "slices of the loss. Writes flatness.html and flatness.json into the first folder.",
)
