"""``ausam reproduce``: a table of the paper."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from ausam_lab.cli import settings, terminal
from ausam_lab.cli.flags import Command, Parser, at_least_1, only
from ausam_lab.cli.main import FAILED
from ausam_lab.cli.terminal import Progress, count
from ausam_lab.experiments.run_cells import Launch
from ausam_lab.paper import estimate, recipe, tables
from ausam_lab.paper.ray import on_ray
from ausam_lab.paper.reproduce import reproduce
from ausam_lab.report.text import wrapped
from ausam_lab.training import run_folder


def flags(made: Parser, _: bool) -> None:
    """Which cells, where they run, and what of a run is not the recipe's."""
    known = ", ".join(recipe.files())
    made.add_argument("table", metavar="TABLE", help=f"{known}, or your own recipe as FILE.toml")
    scale = "the paper's networks (default), smaller ones, or for table2 all of CIFAR-10 on a laptop"
    made.add_argument("--scale", choices=recipe.SCALES, default="", help=scale)
    chosen = "BLOCK, ROW or BLOCK/ROW, with *"
    made.add_argument("--only", action="append", default=[], metavar="PATTERN", help=chosen)
    seeds = "runs per row (default: the recipe's, and the paper uses 3)"
    made.add_argument("--seeds", type=at_least_1, metavar="N", help=seeds)
    made.add_argument("--out", metavar="FOLDER", help="folder of the table (default: runs/TABLE-SCALE)")
    dry = "say about how much time it takes, and what differs from the paper, and run nothing"
    made.add_argument("--dry-run", action="store_true", help=dry)
    where = "run the cells here, or on Ray"
    made.add_argument("--launcher", choices=["local", "ray"], default="local", help=where)
    address = "address of a running Ray cluster, or auto (default: start one on this machine)"
    made.add_argument("--address", metavar="ADDRESS", help=address)
    made.add_argument("--cpus", type=float, metavar="N", help="CPUs per cell on Ray (default: 1)")
    gpus = "GPUs per cell on Ray (default: 1 with --device cuda, otherwise 0)"
    made.add_argument("--gpus", type=float, metavar="N", help=gpus)
    only(made, "data_dir", "init", "threads", "device", "tensorboard")


def run(args: argparse.Namespace) -> int:
    """Train what is missing, print the table and write the pages."""
    wanted = recipe.read(args.table, args.scale, args.seeds)
    cells = recipe.chosen(recipe.cells(wanted, **settings.given(args)), args.only)
    out = Path(args.out or f"runs/{wanted.folder}")
    settings.use_threads(cells[0].config.threads)
    if args.dry_run:
        scale = f", scale {wanted.scale}" if wanted.scale else ""
        plan = estimate.plan(cells, out)
        deviations = "\n".join(wrapped(f"- {text}") for text in wanted.deviations)
        differs = f"\n\nWhat differs from the paper:\n{deviations}" if deviations else ""
        terminal.write(f"{wanted.title}{scale}, in {out}\n\n{plan}{differs}\n")
        return 0
    total = sum(cell.config.epochs for cell in cells)
    done = sum(len(run_folder.epochs(cell.folder(out))) for cell in cells)
    terminal.write_error(f"{count(len(cells), 'run')}, {count(total - done, 'epoch')} to do\n")
    with _launcher(args, cells[0].config.device) as launch, Progress(wanted.table) as progress:
        progress.begin(done, total)
        table, failed = reproduce(wanted, cells, out, args.command, progress.of_cell, progress.say, launch)
    terminal.write(f"{tables.text(table, terminal.columns())}\n\n{out / 'report.html'}\n")
    if failed:
        terminal.write_error(
            f"ausam: {count(len(failed), 'cell')} failed: {', '.join(failed)}. Run the same command to try again.\n"
        )
    ended = {cell.id: run_folder.finished(cell.folder(out)) for cell in cells}
    idle = terminal.idle([name for name, record in ended.items() if record is not None and record.idle])
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


COMMAND = Command(
    run,
    flags,
    "TABLE",
    ("ausam reproduce table1 --scale small --dry-run", "ausam reproduce table1 --scale small --only 'A/sam*'"),
    "Run a table of the paper, one run per cell, and write it next to the paper's figures (report.html). Stop it at "
    "any time: the same command continues. Several processes may work on one folder.",
)
