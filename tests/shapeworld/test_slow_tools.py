"""Rollouts with a slow tool: all calls are carried out, whichever way they are made."""

from __future__ import annotations

import pytest

from mmrl_shapeworld import slow_tools


@pytest.mark.parametrize("settings", [{}, {"waves": 2}, {"at_once": False}])
def test_every_turn_but_the_last_is_a_crop(monkeypatch, settings):
    for name in ("BRIEF", "LONG", "TURN_S", "ROW_S"):
        monkeypatch.setattr(slow_tools, name, 0.0)
    monkeypatch.setattr(slow_tools, "ROWS", 2)
    found = slow_tools.cropped_rollouts(0, **settings)
    assert found["calls"] == [slow_tools.CALLS] and found["rows_per_second"][0] > 0


@pytest.mark.integration
def test_calls_wait_as_long_as_their_box_says(monkeypatch):
    waits = []
    monkeypatch.setattr(slow_tools.time, "sleep", waits.append)
    monkeypatch.setattr(slow_tools, "ROWS", 40)
    slow_tools.cropped_rollouts(0, waves=2)
    calls = [seconds for seconds in waits if seconds in (slow_tools.BRIEF, slow_tools.LONG)]
    assert len(calls) == 40 * slow_tools.CALLS
    assert calls.count(slow_tools.LONG) / len(calls) == pytest.approx(slow_tools.LONG_SHARE, abs=0.06)
