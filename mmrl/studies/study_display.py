"""Progress of a study: a bar for each running arm in a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

EVERY_S = 20.0
"""The least seconds between plain lines about an arm, each of which has another iteration."""
TAIL_BYTES = 100_000
"""Bytes at the end of a run's metrics that are read for its last iteration."""


class StudyDisplay(Protocol):
    """A display of the arms that run."""

    def log(self, text: str) -> None:
        """Print a message that stays."""
        ...

    def found(self, name: str) -> None:
        """Tell that an arm is there already."""
        ...

    def start(self, name: str, iterations: int) -> None:
        """Begin an arm."""
        ...

    def update(self, name: str, run: Path) -> None:
        """Show how far the arm's run is."""
        ...

    def finish(self, name: str, cpu_seconds: float | None) -> None:
        """End an arm."""
        ...

    def close(self) -> None:
        """End the display."""
        ...


class PlainStudyDisplay:
    """A display that prints lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._iterations: dict[str, int] = {}
        self._printed: dict[str, tuple[float, int]] = {}  # when an arm's last line was printed, and its iteration

    def log(self, text: str) -> None:
        """See `StudyDisplay`."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def found(self, name: str) -> None:
        """See `StudyDisplay`."""
        self.log(f"{name}: trained already")

    def start(self, name: str, iterations: int) -> None:
        """See `StudyDisplay`."""
        self._iterations[name], self._printed[name] = iterations, (time.monotonic(), 0)
        self.log(f"{name}: started, {iterations} iterations")

    def update(self, name: str, run: Path) -> None:
        """See `StudyDisplay`."""
        at, before = self._printed[name]
        if time.monotonic() - at < EVERY_S:
            return
        step, reward = last_iteration(run)
        self._printed[name] = time.monotonic(), step
        if step == before:  # it evaluates, or has just begun
            return
        self.log(f"{name}: iteration {step} of {self._iterations[name]}, reward {reward:+.3f}")

    def finish(self, name: str, cpu_seconds: float | None) -> None:
        """See `StudyDisplay`."""
        self.log(f"{name}: done, {cpu_seconds or 0:.0f} CPU-seconds")

    def close(self) -> None:
        """See `StudyDisplay`."""


class BarStudyDisplay(PlainStudyDisplay):
    """A display with a bar for each arm that runs."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[reward]}"),
            TimeElapsedColumn(),
        )
        self._bars = Progress(*columns, console=console)
        self._bars.start()
        self._tasks: dict[str, TaskID] = {}

    def start(self, name: str, iterations: int) -> None:
        """See `StudyDisplay`."""
        self._tasks[name] = self._bars.add_task(name, total=iterations, reward="")

    def update(self, name: str, run: Path) -> None:
        """See `StudyDisplay`."""
        step, reward = last_iteration(run)
        self._bars.update(self._tasks[name], completed=step, reward=f"reward {reward:+.3f}" if step else "")

    def finish(self, name: str, cpu_seconds: float | None) -> None:
        """See `StudyDisplay`."""
        self._bars.remove_task(self._tasks.pop(name))
        super().finish(name, cpu_seconds)

    def close(self) -> None:
        """See `StudyDisplay`."""
        self._bars.stop()


def study_display(console: Console) -> StudyDisplay:
    """Return the display that fits the console."""
    return BarStudyDisplay(console) if console.is_terminal else PlainStudyDisplay(console)


def last_iteration(run: Path) -> tuple[int, float]:
    """Return the number and the mean reward of a run's last logged iteration; (0, 0) before the first."""
    try:
        with (run / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return 0, 0.0
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:
            continue  # cut off at either end
        if row.get("kind") == "train":
            return int(row["step"]), float(row.get("reward/total") or 0.0)
    return 0, 0.0
