"""The ``ausam`` command: its overview, and how a command ends (docs/troubleshooting.md).

Nothing heavy is imported before it is known what to run: the overview appears at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ausam_lab.cli import terminal
from ausam_lab.names.lookup import nearest

FAILED, MISUSE, INTERRUPTED, TERMINATED, UNREAD = 1, 2, 130, 143, 141  # and 0 on success

# Each is a module beside this one, with a flags.Command.
COMMANDS = {
    "compare": "train several methods side by side: a table and a page",
    "audit": "review the labels that look wrong in the data of a run",
    "tune": "search for rho, alpha and other settings on held-out samples",
    "train": "train one network",
    "list": "show methods, policies, pairs, networks and data sets",
    "report": "write tables and page again from finished runs",
    "diagnose": "measure how flat the minima of runs are",
    "reproduce": "run a table of the paper",
    "selftest": "check that everything works on your device",
}

OVERVIEW = """\
Usage: ausam COMMAND [FLAGS]

Sharpness-aware training at the cost of SGD, and the labels that look wrong.

In this order:
{first}

Further commands:
{further}

Examples:
  ausam compare sgd sam ausam-0.5              digits, 3 seeds each
  ausam audit runs/compare/runs/sam/seed-0     labels that look wrong in one run
  ausam train ausam-0.5 --data folder:photos   your own images, in class folders

ausam COMMAND --help explains a command. ausam --version prints the version.
"""

# Commands that leave out finished work when they run again.
RESUMABLE = ("compare", "reproduce", "tune")


def program() -> int:
    """The command. If the reader of its output leaves (``ausam ... | head``), it ends without a word."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    return code


def main(argv: list[str] | None = None) -> int:
    """Run a command. An error becomes one line and an exit code."""
    argv = sys.argv[1:] if argv is None else argv
    name = argv[0] if argv else "--help"
    if name in ("--help", "-h", "help"):
        terminal.write(overview())
        return 0
    if name == "--version":
        from ausam import __version__

        terminal.write(f"ausam {__version__}\n")
        return 0
    if name not in COMMANDS:
        near = nearest(name, COMMANDS)
        hint = f" Did you mean {near}?" if near else ""
        terminal.write_error(f"ausam: There is no command {name}.{hint} See ausam --help.\n")
        return MISUSE
    if name == "selftest":  # which needs torch only
        from ausam_lab import selftest

        return selftest.main(argv[1:])
    if missing := [package for package in ("filelock", "rich", "scipy", "sklearn") if find_spec(package) is None]:
        terminal.write_error(f'ausam {name} needs {", ".join(missing)}. In a clone: pip install ".[lab]"\n')
        return FAILED
    return _run(name, argv[1:])


def overview() -> str:
    """The commands in the order of their use, and examples."""
    lines = [f"  {name:<10} {about}" for name, about in COMMANDS.items()]
    return OVERVIEW.format(first="\n".join(lines[:4]), further="\n".join(lines[4:]))


def _run(name: str, argv: list[str]) -> int:
    from ausam_lab.cli import flags
    from ausam_lab.data.sources import DownloadError
    from ausam_lab.paper import catalogue
    from ausam_lab.training import ranks
    from ausam_lab.training.failures import explain
    from ausam_lab.training.machine import keep_freed_memory

    catalogue.register()
    keep_freed_memory()
    command: flags.Command = import_module(f"ausam_lab.cli.{name}").COMMAND
    args = flags.parse(name, command, argv)
    terminal.log_warnings()
    with signals() as received:
        try:
            if name != "train":
                ranks.require_one_process(name)
            return command.run(args)
        except KeyboardInterrupt:
            terminated = signal.SIGTERM in received
            word = "terminated" if terminated else "interrupted"
            terminal.write_error(f"\nausam: {word}. {_kept(name, args)}".rstrip() + "\n")
            return TERMINATED if terminated else INTERRUPTED
        except Exception as error:
            if (known := explain(error)) is None:
                raise
            complete = known.misuse or isinstance(error, DownloadError)  # they say how to continue
            text = known.text if complete else f"{known.text} {_kept(name, args)}".rstrip()
            terminal.write_error(f"ausam: {text}\n")
            return MISUSE if known.misuse else FAILED


def _kept(name: str, args: argparse.Namespace) -> str:
    """What is on disk when a command ends early, and how to continue. Empty if it keeps nothing."""
    if name == "train":
        from ausam_lab.training import run_folder

        epochs = len(run_folder.epochs(Path(args.out)))
        kept = f"{args.out} holds the run up to epoch {epochs}" if epochs else "No epoch was finished"
        return f"{kept}; run the same command with --resume to continue."
    return "Finished work is kept. Run the same command to continue." if name in RESUMABLE else ""


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """Inside, Ctrl-C and SIGTERM raise KeyboardInterrupt, so files are closed and workers stopped.

    Yields the list of signals received, because Ray, for one, loses which it was. A second signal exits at once.
    """
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> NoReturn:
        if received:
            os._exit(128 + number)
        received.append(number)
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
