"""``ausam report``: pages, tables and CSV from the runs in a folder, or from a file of results, without training."""

from __future__ import annotations

import argparse
from pathlib import Path

from ausam_lab.cli import terminal
from ausam_lab.cli.flags import Command, Parser
from ausam_lab.experiments import compare, tune
from ausam_lab.experiments.cells import pair_of
from ausam_lab.names.pairs import PAIRS
from ausam_lab.paper import reproduce, tables
from ausam_lab.records import files, store
from ausam_lab.records.comparison import Comparison
from ausam_lab.records.run import Run
from ausam_lab.report import summary
from ausam_lab.report.pages import comparison as comparison_page


def flags(made: Parser, _: bool) -> None:
    """Where the results are."""
    about = "a folder made by reproduce, compare, tune or train, or a results.json"
    made.add_argument("folder", metavar="FOLDER", help=about)


def run(args: argparse.Namespace) -> int:
    """Write the pages again, and print the table."""
    text, page = rebuild(Path(args.folder), terminal.columns())
    terminal.write(f"{text}\n\n{page}\n")
    return 0


def rebuild(results: Path, columns: int | None = None) -> tuple[str, Path]:
    """Rewrite all reports from the results. Return the table as text, and the page.

    ``results`` is the folder of ``ausam reproduce``, ``compare``, ``tune`` or a single run, or a results.json.
    """
    if results.is_file():
        out = results.with_suffix(".html")
        comparison = store.read_finished(results, Comparison)
        files.write(out, comparison_page.render(comparison))
        return summary.text(comparison, columns), out
    if (results / tune.DATABASE).exists():
        return tune.text(tune.load(results), results, columns), results / tune.DATABASE
    page = results / "report.html"
    if (table := reproduce.rewrite(results)) is not None:
        return tables.text(table, columns), page
    several = any(results.glob("runs/*/seed-*/result.json"))
    if not several and not (results / "result.json").exists():
        raise ValueError(
            f"{results} contains no finished run. Use the folder (--out) of ausam reproduce, ausam compare or ausam "
            "train, or a results.json."
        )
    found = _comparison(results) if several else _single(results)
    return summary.text(compare.write(found, results), columns), page


def _comparison(folder: Path) -> Comparison:
    """The runs in the folder. Command, title and order come from the old results.json."""
    old = store.read(folder / "results.json", Comparison)
    done = sorted(folder.glob("runs/*/seed-*/result.json"))
    there = {pair_of(path.parent.name) for path in folder.glob("runs/*/seed-*") if path.is_dir()}  # begun counts
    order = [row.name for row in old.rows] if old else []
    order += [name for name in PAIRS if name not in order]
    names = sorted(there, key=lambda name: (order.index(name) if name in order else len(order), name))
    planned = old.seeds if old else ()
    seeds = sorted({int(path.parent.name.removeprefix("seed-")) for path in done}.union(planned))
    config = old.config if old else store.read_finished(done[0], Run).config
    return compare.collect(names, seeds, config, folder, old.command if old else "", old.title if old else "")


def _single(folder: Path) -> Comparison:
    one = store.read_finished(folder / "result.json", Run)
    name = f"{one.method} + {one.policy}"
    named = compare.named_run(name, folder)
    title = f"{one.config.data}: one run"
    labels = [(name, one.config.label or one.pair)]
    return compare.comparison(title, "", [one.seed], one.config, labels, [named] if named else [], 1)


COMMAND = Command(run, flags, "FOLDER", ("ausam report runs/compare",))
