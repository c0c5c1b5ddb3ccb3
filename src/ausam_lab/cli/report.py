"""``ausam report``: table and pages again, from the runs in a folder, without training."""

from __future__ import annotations

import argparse
from pathlib import Path

from ausam_lab.cli import terminal
from ausam_lab.cli.flags import Command, Parser, add_verbose
from ausam_lab.experiments import compare, tune
from ausam_lab.paper import reproduce, tables
from ausam_lab.records import store
from ausam_lab.records.comparison import Comparison
from ausam_lab.report import summary


def flags(made: Parser, _: bool) -> None:
    """Where the results are."""
    made.add_argument("folder", metavar="FOLDER", help="a folder made by reproduce, compare or tune")
    add_verbose(made)


def run(args: argparse.Namespace) -> int:
    """Write the pages again, and print the table."""
    folder, columns = Path(args.folder), terminal.columns()
    if (folder / tune.DATABASE).exists():
        study = tune.load(folder)
        tune.write_page(study, folder)
        terminal.write(f"{tune.text(study, folder, columns)}\n")
        return 0
    if (table := reproduce.rewrite(folder)) is not None:
        text = tables.text(table, columns)
    elif (old := store.read(folder / "results.json", Comparison)) is not None:
        names = [row.name for row in old.rows]
        results = compare.collect(names, list(old.seeds), old.config, folder, old.command, old.title)
        text = summary.text(compare.write(results, folder), columns, verbose=args.verbose)
    else:
        raise ValueError(f"{folder} has no results. Use the folder (--out) of ausam reproduce, compare or tune.")
    terminal.write(f"{text}\n\n{folder / 'report.html'}\n")
    return 0


COMMAND = Command(run, flags, "FOLDER", ("ausam report runs/compare",))
