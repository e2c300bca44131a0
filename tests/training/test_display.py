"""Progress: the same numbers as a line and as a live panel."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mmrl.training.run import display
from mmrl.training.run.display import (
    PlainDisplay,
    QuietDisplay,
    RichDisplay,
    StepReport,
    build_display,
    clock,
    sparkline,
)

REPORT = StepReport(
    index=3,
    total=60,
    reward=0.5,
    best=0.625,
    replay_gap=0.0,
    seconds=2.0,
    metrics={"grad_norm": 0.125, "clip_fraction": 0.25, "kl": 0.01},
)


def test_line_has_reward_gap_and_time_left():
    line = display.status_line(REPORT)
    for part in ("3/60", "+0.500", "best +0.625", "replay gap 0e+00", "clipped 25.0%", "kl 0.01", "1:54 left"):
        assert part in line
    assert "\n" not in line


def test_line_has_the_share_of_uninformative_groups():
    assert "signal" not in display.status_line(REPORT)
    flat = replace(REPORT, metrics={**REPORT.metrics, "zero_variance_share": 0.25})
    assert "groups without signal 25%" in display.status_line(flat)


def test_an_iteration_without_scores_has_its_loss():
    unscored = replace(
        REPORT, reward=math.nan, best=-math.inf, metrics={"loss": 0.6875, "preference_accuracy": 0.5, "grad_norm": 1.0}
    )
    line = display.status_line(unscored)
    assert "loss 0.6875" in line and "pairs in order 50%" in line and "reward" not in line and "nan" not in line
    panel = RichDisplay()
    console = Console(width=120, file=io.StringIO(), force_terminal=True, color_system=None)
    panel._console = panel._live.console = panel._progress.live.console = console
    panel.start("dpo", 60)
    panel.step(unscored)
    panel._live.refresh()
    panel.step(REPORT)
    panel._live.refresh()
    panel.close()
    text = console.file.getvalue()
    assert "0.6875" in text and "+0.500" in text and "nan" not in text and sparkline([math.nan, 0.0, 1.0]) == "▁█"


def test_panel_has_the_same_numbers():
    display = RichDisplay()
    console = Console(width=120, file=io.StringIO(), force_terminal=True, force_interactive=True, color_system=None)
    display._console = display._live.console = display._progress.live.console = console
    display.start("quickstart", 60)
    display.step(REPORT)
    display._live.refresh()
    display.message("[checkpoint] evaluation")
    display.close()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())
    for part in ("quickstart", "3/60", "+0.500", "+0.625", "0e+00", "25.0%", "1:54 left", "[checkpoint] evaluation"):
        assert part in text
    assert "[dim]" not in text and "[/]" not in text


def test_plain_lines_go_to_standard_error(capsys):
    result = PlainDisplay()
    result.start("quickstart", 60)
    result.step(REPORT)
    result.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == ["quickstart: 60 iterations", display.status_line(REPORT)]


@pytest.mark.parametrize("kind, expected", [("plain", PlainDisplay), ("quiet", QuietDisplay), ("rich", RichDisplay)])
def test_display_is_chosen_by_name_and_plain_without_a_terminal(kind, expected):
    assert type(build_display(kind)) is expected
    assert type(build_display("auto")) is PlainDisplay


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=500), st.integers(1, 80))
def test_sparkline_fits_its_width_and_range(values, width):
    line = sparkline(values, width)
    assert 1 <= len(line) <= width
    if len(values) <= width and max(values) > min(values):
        assert line[values.index(min(values))] == "▁" and line[values.index(max(values))] == "█"


def test_durations_are_formatted():
    assert [clock(s) for s in (0, 59.9, 125, 3600)] == ["0:00", "0:59", "2:05", "60:00"]
