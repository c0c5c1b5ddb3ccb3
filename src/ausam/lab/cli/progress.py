"""Progress: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich import progress as rich
from rich.console import Console

from ausam.lab.config import Config
from ausam.lab.registry.pairs import configured

Row = dict[str, Any]


class Progress:
    """The progress of one run, or of a comparison, on standard error."""

    def __init__(self, epochs: int | None, title: str) -> None:
        self._console = Console(stderr=True)
        self._title = title
        self._epochs = epochs
        self._bar = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(bar_width=24),
            rich.TaskProgressColumn(),
            rich.TextColumn("{task.fields[text]}"),
            rich.TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=epochs, text="")
        self._rate = _Rate()
        self._last = ""

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def step(self, row: Row) -> None:
        """One step of a run: the bar moves inside the epoch."""
        done = row["epoch"] - 1 + row["batch"] / row["batches"]
        text = f"epoch {row['epoch']}/{self._epochs} {self._last} {self._rate(row['samples']):,.0f} images/s"
        self._bar.update(self._task, completed=done, text=text)

    def epoch(self, row: Row) -> None:
        """One epoch of a run."""
        self._last = f"loss {row['train_loss']:.3f} {_score(row)}"
        text = f"epoch {row['epoch']}/{self._epochs} {self._last} {row['images_per_second']:,.0f} images/s"
        self._bar.update(self._task, completed=row["epoch"], text=text)
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, soft_wrap=True)

    def comparison(self, names: list[str], seeds: list[int], config: Config) -> Callable[[str, int, Row], None]:
        """A function to be told of every epoch of every run of a comparison."""
        epochs = {name.lower(): configured(name, config).epochs for name in names}
        self._bar.update(self._task, total=len(seeds) * sum(epochs.values()))

        def told(name: str, seed: int, row: Row) -> None:
            text = f"{name} seed {seed}: epoch {row['epoch']}, {_score(row)}"
            self._bar.update(self._task, advance=1, text=text)
            if row["epoch"] == epochs[name]:
                line = f"{name} seed {seed}: {_score(row)}, {row['seconds']:.1f} s of training"
                self._console.print(line, highlight=False)

        return told

    def cells(self, epochs: int) -> Callable[[str, Row], None]:
        """A function to be told of every epoch of every cell of a table, of which there will be so many."""
        self._bar.update(self._task, total=epochs)

        def told(cell: str, row: Row) -> None:
            text = f"{cell}: epoch {row['epoch']}, {_score(row)}"
            self._bar.update(self._task, advance=1, text=text)

        return told

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def _score(row: Row) -> str:
    return f"{row['metric']} {row['test_accuracy']:.2f} %"


class _Rate:
    """Images a second, over about the last second."""

    def __init__(self) -> None:
        self._start, self._count, self._rate = time.perf_counter(), 0, 0.0

    def __call__(self, samples: int) -> float:
        self._count += samples
        spent = time.perf_counter() - self._start
        if spent > 1.0 or not self._rate:
            self._rate = self._count / max(spent, 1e-9)
        if spent > 1.0:
            self._start, self._count = time.perf_counter(), 0
        return self._rate
