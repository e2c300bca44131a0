"""Progress displays: one report per iteration, as a plain line or in a live panel."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class StepReport:
    """The numbers of one iteration."""

    index: int  # from 1
    total: int
    reward: float
    best: float
    replay_gap: float
    seconds: float
    metrics: Mapping[str, float]


class Display(Protocol):
    """A display of reports and messages."""

    def start(self, name: str, total: int) -> None:
        """Begin the display of a run of `total` iterations."""

    def step(self, report: StepReport) -> None:
        """Display the report of a finished iteration."""

    def message(self, text: str) -> None:
        """Display a message that stays."""

    def close(self) -> None:
        """End the display."""


def status_line(report: StepReport) -> str:
    """Return one line for `grep`, the same in a terminal, a log file and a notebook."""
    left = (report.total - report.index) * report.seconds
    return (
        f"step {report.index:>4}/{report.total}  {_outcome(report)}  replay gap {report.replay_gap:.0e}"
        f"  grad {report.metrics.get('grad_norm', 0):.2g}"
        f"{_optional(report.metrics)}  {report.seconds:.1f} s/step  {clock(left)} left"
    )


def _outcome(report: StepReport) -> str:
    """Return the reward, or the loss of an iteration that scores no answers, as of DPO on stored pairs."""
    if math.isfinite(report.reward):
        return f"reward {report.reward:+.3f} (best {report.best:+.3f})"
    return f"loss {report.metrics.get('loss', math.nan):.4g}"


def _optional(metrics: Mapping[str, float]) -> str:
    parts = []
    if "clip_fraction" in metrics:
        parts.append(f"  clipped {metrics['clip_fraction']:.1%}")
    if "preference_accuracy" in metrics:
        parts.append(f"  pairs in order {metrics['preference_accuracy']:.0%}")
    if "kl" in metrics:
        parts.append(f"  kl {metrics['kl']:.2g}")
    if metrics.get("zero_variance_share"):
        parts.append(f"  groups without signal {metrics['zero_variance_share']:.0%}")
    if "length" in metrics:
        parts.append(f"  length {metrics['length']:.0f}")
    return "".join(parts)


def by_source(metrics: Mapping[str, float], prefix: str = "reward_by_source/") -> str:
    """Return the metrics with a prefix, source by source on one line; "" for fewer than two sources.

    >>> by_source({"reward_by_source/maths": 0.25, "reward_by_source/charts": 0.5, "kl": 0.1})
    'charts +0.500  maths +0.250'
    """
    found = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
    return "  ".join(f"{source} {found[source]:+.3f}" for source in sorted(found)) if len(found) > 1 else ""


def clock(seconds: float) -> str:
    """Format seconds as minutes and seconds.

    >>> clock(125)
    '2:05'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def sparkline(values: list[float], width: int = 60) -> str:
    """Draw values as a row of blocks; neighbours are averaged where there are more than `width`. NaN is left out.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▄█'
    """
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return ""
    per = max(1, -(-len(values) // width))
    means = [sum(values[i : i + per]) / len(values[i : i + per]) for i in range(0, len(values), per)]
    low, spread = min(means), (max(means) - min(means)) or 1.0
    return "".join(BLOCKS[int((value - low) / spread * (len(BLOCKS) - 1))] for value in means)


class QuietDisplay:
    """A display that prints nothing."""

    def start(self, name: str, total: int) -> None: ...

    def step(self, report: StepReport) -> None: ...

    def message(self, text: str) -> None: ...

    def close(self) -> None: ...


class PlainDisplay(QuietDisplay):
    """A display with one line per iteration, on standard error."""

    def start(self, name: str, total: int) -> None:
        """Print the name and length of the run."""
        self.message(f"{name}: {total} iterations")

    def step(self, report: StepReport) -> None:
        """Print the status line."""
        self.message(status_line(report))

    def message(self, text: str) -> None:
        """Print a line. A line that cannot be written is dropped: training does not depend on its reader."""
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


class RichDisplay:
    """A live panel: a progress bar, the curve of the reward, and the numbers of the last iteration."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]} left"),
            console=self._console,
        )
        self._live = Live(console=self._console, refresh_per_second=4)
        self._rewards: list[float] = []

    def start(self, name: str, total: int) -> None:
        """Open the panel."""
        self._task = self._progress.add_task(name, total=total, left="?")
        self._live.update(Panel(self._progress))
        self._live.start()

    def step(self, report: StepReport) -> None:
        """Redraw the panel."""
        self._rewards.append(report.reward)
        left = clock((report.total - report.index) * report.seconds)
        self._progress.update(self._task, completed=report.index, left=left)
        numbers = Table.grid(padding=(0, 3))
        scored = math.isfinite(report.reward)
        fields = {"reward": f"{report.reward:+.3f}", "best": f"{report.best:+.3f}"} if scored else {}
        fields |= {name: f"{report.metrics[name]:.4g}" for name in ("loss",) if not scored and name in report.metrics}
        fields |= {
            "replay gap": f"{report.replay_gap:.0e}",
            "grad norm": f"{report.metrics.get('grad_norm', 0):.2g}",
            "clipped": f"{report.metrics['clip_fraction']:.1%}" if "clip_fraction" in report.metrics else "-",
            "s/step": f"{report.seconds:.1f}",
        }
        if "length" in report.metrics:
            fields["length"] = f"{report.metrics['length']:.0f}"
        # Text, not markup: `message` prints without markup, and that applies to the panel too
        numbers.add_row(*(Text.assemble((name, "dim"), " ", value) for name, value in fields.items()))
        curve = Text(sparkline(self._rewards), style="green")
        parts: list[RenderableType] = [self._progress, Text(), curve, Text(), numbers]
        if sources := by_source(report.metrics):
            parts += [Text(), Text(sources, style="dim")]
        self._live.update(Panel(Group(*parts)))

    def message(self, text: str) -> None:
        """Print above the panel."""
        self._console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        """Stop updating; the last state stays on the screen."""
        self._live.stop()


def build_display(kind: Literal["auto", "rich", "plain", "quiet"]) -> Display:
    """Return a display; `auto` is the panel in a terminal and plain lines elsewhere."""
    if kind == "quiet":
        return QuietDisplay()
    if kind == "rich" or (kind == "auto" and sys.stderr.isatty()):
        return RichDisplay()
    return PlainDisplay()
