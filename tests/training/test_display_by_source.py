"""The panel and the line by source, and for text answers."""

from __future__ import annotations

import io
import re

from rich.console import Console

from mmrl.training.run.display import RichDisplay, StepReport, by_source, status_line


def report(**metrics: float) -> StepReport:
    return StepReport(1, 2, 0.5, 0.5, 0.0, 1.0, metrics)


MIXED = {"reward_by_source/[bold]maths": 0.25, "reward_by_source/charts": 0.5, "length": 34.4}


def panel(result: StepReport) -> str:
    display = RichDisplay()
    console = Console(width=120, file=io.StringIO(), force_terminal=True, force_interactive=True, color_system=None)
    display._console = display._live.console = display._progress.live.console = console
    display.start("run", 2)
    display.step(result)
    display._live.refresh()
    display.close()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())


def test_sources_are_on_one_line_in_order():
    assert by_source(MIXED) == "[bold]maths +0.250  charts +0.500"
    assert by_source({"reward_by_source/default": 0.5}) == "" == by_source({"kl": 0.1})
    assert by_source({"x/a": 1.0, "x/b": float("nan")}, "x/") == "a +1.000  b +nan"


def test_panel_has_sources_and_lengths_if_any():
    assert "[bold]maths +0.250  charts +0.500" in panel(report(**MIXED))
    assert "length 34" in panel(report(**MIXED)) and "length 34" in status_line(report(**MIXED))
    alone = panel(report(**{"reward_by_source/default": 0.5}))
    assert "default" not in alone and "length" not in alone
