"""What reaches the terminal: text without control characters, warnings, and the progress of a command."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ausam_lab.report.text import BEST, SKIPPED_BECAUSE, duration

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from ausam_lab.records.run import Epoch

# A terminal obeys control characters, which a file from elsewhere may hold. Lines and tabs stay.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
EVERY = 60.0  # seconds between two lines where there is no bar


def write(text: str) -> None:
    """Write to standard output. A terminal shows the row with the best figure of a table in bold."""
    text = harmless(text)
    if sys.stdout.isatty():
        text = re.sub(f".*{BEST}.*", "\x1b[1m\\g<0>\x1b[0m", text)
    sys.stdout.write(text)


def write_error(text: str) -> None:
    """Write to standard error."""
    sys.stderr.write(harmless(text))


def harmless(text: str) -> str:
    """The text with a space in place of every control character."""
    return CONTROL.sub(" ", text)


def columns() -> int:
    """The width of standard output. A file has 80 columns."""
    return shutil.get_terminal_size().columns


def log_warnings() -> None:
    """Show the warnings of all libraries on standard error."""
    import logging

    from rich.console import Console
    from rich.logging import RichHandler

    handler = RichHandler(console=Console(stderr=True), show_path=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    logging.captureWarnings(True)


def count(n: int, what: str) -> str:
    """``2 runs``."""
    return f"{n:,} {what}{'s' * (n != 1)}"


def idle(names: Sequence[str]) -> int:
    """The exit code of a command whose runs have ended, 1 with a message for those (``names``) that took no step."""
    if names:
        write_error(
            f"ausam: {', '.join(names)} learnt nothing: every step was skipped, {SKIPPED_BECAUSE}. Look for NaN or "
            "inf in the data, or use a smaller --lr.\n"
        )
    return int(bool(names))


class Progress:
    """The progress of a command on standard error: a bar on a terminal. Elsewhere a line a minute.

    Arguments:
        title: of the bar.
        total: how much there is to do, e.g. epochs. If None, not known yet.
    """

    def __init__(self, title: str, total: float | None = None) -> None:
        from rich import progress as rich
        from rich.console import Console

        self._console = Console(stderr=True)
        self._bar: Bar = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(bar_width=24),
            rich.TaskProgressColumn(),
            rich.TextColumn("{task.fields[text]}"),
            rich.TimeRemainingColumn(),
            console=self._console,
            speed_estimate_period=3600.0,
            get_time=time.monotonic,
            disable=not self.live,
        )
        self._task = self._bar.add_task(title, total=total, text="")
        self._spoke = time.monotonic()

    @property
    def live(self) -> bool:
        """Whether there is a terminal for the bar."""
        return self._console.is_terminal

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, done: float, total: float) -> None:
        """Say how much there is to do, and how much of it was done before."""
        self._bar.update(self._task, completed=done, total=total)

    def advance(self, text: str, by: float = 1.0) -> None:
        """Some of it is done. ``text`` says what was last."""
        self._bar.update(self._task, advance=by, text=text)
        now = time.monotonic()
        if not self.live and now - self._spoke > EVERY:
            self._spoke = now
            task = self._bar.tasks[0]
            left = task.time_remaining
            rest = "the time left is not known yet" if left is None else f"about {duration(left)} left"
            self.say(f"{text}; {task.percentage:.0f} % done, {rest}")

    def of_cell(self, cell: str, epoch: Epoch) -> None:
        """An epoch of a run of a table or of a search is done."""
        self.advance(f"{cell}: epoch {epoch.epoch}, {epoch.test}")

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._console.print(harmless(text), highlight=False, markup=False, soft_wrap=True)
