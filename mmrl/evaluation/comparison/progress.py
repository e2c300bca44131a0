"""Progress of a comparison: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text


class ComparisonDisplay:
    """A display of the rows that are done, with one line per batch."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._subject, self._done, self._total = "", 0, 0
        self._begun, self._rows = 0.0, 0  # rows of this process

    def start(self, subject: str, done: int, total: int) -> None:
        """Begin a subject with `done` of its `total` rows finished."""
        self._subject, self._done, self._total = subject, done, total
        self._begun, self._rows = self._clock(), 0
        if done:
            self._write(f"{subject}  {done}/{total} rows are there already")

    def advance(self, rows: int, label: str, mean: float) -> None:
        """Count `rows` more as scored; `mean` is the running mean of the metric `label`."""
        self._done, self._rows = self._done + rows, self._rows + rows
        left = (self._total - self._done) * (self._clock() - self._begun) / self._rows
        self._write(f"{self._subject}  {self._done}/{self._total} rows  mean {label} {mean:.4f}  {left:.0f} s left")

    def log(self, text: str) -> None:
        """Print a message that stays."""
        self._write(text)

    def close(self) -> None:
        """End the display."""


class BarComparisonDisplay(ComparisonDisplay):
    """A display with a progress bar per subject."""

    def __init__(self, console: Console) -> None:
        super().__init__(lambda text: console.print(Text(text)))
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[mean]}", markup=False),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console)
        self._progress.start()

    def start(self, subject: str, done: int, total: int) -> None:
        """See `ComparisonDisplay`."""
        self._task = self._progress.add_task(subject, completed=done, total=total, mean="")

    def advance(self, rows: int, label: str, mean: float) -> None:
        """See `ComparisonDisplay`."""
        self._progress.update(self._task, advance=rows, mean=f"mean {label} {mean:.4f}")

    def close(self) -> None:
        """See `ComparisonDisplay`."""
        self._progress.stop()


def comparison_display(console: Console) -> ComparisonDisplay:
    """Return a bar if the console is a terminal, else plain lines."""
    if console.is_terminal:
        return BarComparisonDisplay(console)
    return ComparisonDisplay(lambda line: console.print(Text(line), soft_wrap=True))
