"""The ``ausam`` command: parse, run, and turn errors into one line and an exit code (docs/troubleshooting.md)."""

from __future__ import annotations

import argparse
import logging
import shlex
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

from ausam_lab.cli import commands, exits, terminal
from ausam_lab.cli.parser import parser
from ausam_lab.data.download import DownloadError
from ausam_lab.paper import catalogue
from ausam_lab.training import checkpoint, logs
from ausam_lab.training.failures import explain

# Commands that leave out finished work when they run again.
RESUMABLE = (
    commands.compare_command,
    commands.reproduce_command,
    commands.tune_command,
)


def main(argv: list[str] | None = None) -> int:
    """Parse the arguments and run the command; errors become one line and an exit code (docs/troubleshooting.md)."""
    argv = sys.argv[1:] if argv is None else argv
    catalogue.register()
    args = parser().parse_args(argv, argparse.Namespace(command=shlex.join(["ausam", *argv])))
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=Console(stderr=True), show_path=False)],
    )
    logging.captureWarnings(True)
    with exits.signals() as came:
        try:
            logs.require(getattr(args, "log", ()))
            code: int = args.run(args)
        except KeyboardInterrupt:
            terminated = signal.SIGTERM in came
            code = exits.TERMINATED if terminated else exits.INTERRUPTED
            terminal.write_error(
                f"\nausam: {'terminated' if terminated else 'interrupted'}. {_kept(args)}".rstrip() + "\n"
            )
        except Exception as error:
            if (known := explain(error)) is None:
                raise
            code = exits.MISUSE if known.misuse else exits.FAILED
            complete = known.misuse or isinstance(error, DownloadError)  # they say how to continue
            terminal.write_error(f"ausam: {known.text}{'' if complete else ' ' + _kept(args)}".rstrip() + "\n")
    return code


def _kept(args: argparse.Namespace) -> str:
    """What is on disk when a command ends early, and how to continue; empty if it keeps nothing."""
    if args.run is commands.train_command:
        epochs = checkpoint.saved_epochs(Path(args.out))
        kept = f"{args.out} holds the run up to epoch {epochs}" if epochs else "No epoch was finished"
        return f"{kept}; run the same command with --resume to continue."
    if args.run in RESUMABLE:
        return "Finished work is kept; run the same command to continue."
    return ""
