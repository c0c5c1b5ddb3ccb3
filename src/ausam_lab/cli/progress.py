"""Progress: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rich import progress as rich
from rich.console import Console

from ausam_lab.cli.terminal import harmless
from ausam_lab.config import Config
from ausam_lab.records.epoch import Epoch
from ausam_lab.report.text import duration
from ausam_lab.training.loop import Batch

WORTH_SAYING = 5.0  # seconds: a shorter measurement is over before one has read how long it takes


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

    def step(self, done: Batch) -> None:
        """One step of a run: the bar moves inside the epoch."""
        text = f"epoch {done.epoch}/{self._epochs} {self._last} {self._rate(done.samples):,.0f} images/s"
        self._bar.update(self._task, completed=done.epoch - 1 + done.batch / done.batches, text=text)

    def epoch(self, epoch: Epoch) -> None:
        """One epoch of a run."""
        self._last = f"loss {epoch.train_loss:.3f} {epoch.test}"
        text = f"epoch {epoch.epoch}/{self._epochs} {self._last} {epoch.images_per_second:,.0f} images/s"
        self._bar.update(self._task, completed=epoch.epoch, text=text)
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, soft_wrap=True)

    def comparison(self, runs: Mapping[str, Config], seeds: list[int]) -> Callable[[str, int, Epoch], None]:
        """A callback for every epoch of every run of a comparison; ``runs`` are the settings of its pairs."""
        self._bar.update(self._task, total=len(seeds) * sum(run.epochs for run in runs.values()))

        def update(name: str, seed: int, epoch: Epoch) -> None:
            text = f"{name} seed {seed}: epoch {epoch.epoch}, {epoch.test}"
            self._bar.update(self._task, advance=1, text=text)
            if epoch.epoch == runs[name].epochs:
                line = f"{name} seed {seed}: {epoch.test}, {epoch.seconds:.1f} s of training"
                self.say(line)

        return update

    def cells(self, epochs: int) -> Callable[[str, Epoch], None]:
        """A callback for every epoch of every cell of a table; ``epochs`` is how many are still to come."""
        before = self._bar.tasks[self._task].total or 0
        self._bar.update(self._task, total=before + epochs)

        def update(cell: str, epoch: Epoch) -> None:
            text = f"{cell}: epoch {epoch.epoch}, {epoch.test}"
            self._bar.update(self._task, advance=1, text=text)

        return update

    def pieces(self) -> Callable[[str, int], None]:
        """A callback before every piece of work, with the number of pieces."""
        before = 0

        def update(name: str, total: int) -> None:
            nonlocal before
            self._bar.update(self._task, total=total, completed=before, text=name)
            before += 1
            if not self._console.is_terminal:
                self._console.print(f"{before}/{total} {name}", highlight=False)

        return update

    def turns(self) -> Callable[[str, int, int], None]:
        """A callback before every turn of a measurement, with its number and how many there are."""
        begun: dict[str, float] = {}

        def update(title: str, done: int, total: int) -> None:
            self._bar.update(self._task, total=total, completed=done, text=title)
            now = time.perf_counter()
            if title not in begun:
                begun[title] = now
            elif done == 1 and (left := (now - begun[title]) * (total - 1)) > WORTH_SAYING:
                self.say(f"{title}: about {duration(left)}")

        return update

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._console.print(harmless(text), highlight=False, markup=False, soft_wrap=True)


class _Rate:
    """Images per second, over about the last second."""

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
