"""Pages, tables and CSV from the runs in a folder, or from a file of results, without training."""

from __future__ import annotations

from pathlib import Path

from ausam_lab.experiments import compare, tune
from ausam_lab.experiments.cells import pair_of
from ausam_lab.names.pairs import PAIRS
from ausam_lab.paper import reproduce, tables
from ausam_lab.records import files, store
from ausam_lab.records.comparison import Comparison
from ausam_lab.records.run import Run
from ausam_lab.report import summary
from ausam_lab.report.pages import comparison as page
from ausam_lab.report.pages import tuning
from ausam_lab.report.text import Screen


def rebuild(results: Path, screen: Screen | None = None, *, verbose: bool = False) -> tuple[str, Path]:
    """Rewrite all reports from the results. Return the table as text, and the page.

    ``results`` is the folder of ``ausam reproduce``, ``compare``, ``tune`` or a single run, or a results.json.
    """
    if results.is_file():
        return _from_file(results, screen, verbose=verbose)
    if (results / tune.DATABASE).exists():
        study = tune.load(results)
        files.write(results / "tuning.html", tuning.render(study))
        return tuning.text(study, screen, verbose=verbose), results / "tuning.html"
    page = results / "report.html"
    if (table := reproduce.rewrite(results)) is not None:
        return tables.text(table, screen), page
    several = any(results.glob("runs/*/seed-*/result.json"))
    if not several and not (results / "result.json").exists():
        raise ValueError(
            f"{results} contains no finished run. Use the folder (--out) of ausam reproduce, ausam compare or ausam "
            "train, or a results.json."
        )
    found = _comparison(results) if several else _single(results)
    return summary.text(compare.write(found, results), screen, verbose=verbose), page


def _from_file(path: Path, screen: Screen | None, *, verbose: bool) -> tuple[str, Path]:
    """The page next to a file of results, under the same name."""
    out = path.with_suffix(".html")
    comparison = store.read_finished(path, Comparison)
    files.write(out, page.render(comparison))
    return summary.text(comparison, screen, verbose=verbose), out


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
    run = store.read_finished(folder / "result.json", Run)
    name = f"{run.method} + {run.policy}"
    named = compare.named_run(name, folder)
    title = f"{run.config.data}: one run"
    labels = [(name, run.config.label or run.pair)]
    return compare.comparison(title, "", [run.seed], run.config, labels, [named] if named else [], 1)
