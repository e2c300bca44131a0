"""Which steps explore."""

from __future__ import annotations

import pytest

from mmrl.config.misfits import decisions_per_trajectory
from mmrl.config.sampling import SamplingConfig, WindowConfig
from mmrl.config.section import ConfigError
from mmrl.generation.windows import draw_window


def test_all_steps_but_the_last_by_default():
    assert draw_window(WindowConfig(), steps=10, seed=0) == range(9)
    assert draw_window(WindowConfig(), steps=1, seed=0) == range(0)


WINDOWS = [{"size": 2}, {"size": 3, "low": 2}, {"size": 1, "high": 5}, {"low": 4}, {"size": 9}]


@pytest.mark.parametrize("window", WINDOWS)
def test_windows_fit_move_and_match_the_config(window):
    steps, window = 10, WindowConfig(**window)
    drawn = [draw_window(window, steps, seed) for seed in range(200)]
    high = window.high or steps - 1
    assert all(window.low <= each.start and each.stop <= high for each in drawn)
    due = decisions_per_trajectory(SamplingConfig(steps=steps, window=window, transition={"name": "flow_sde"}))
    assert {len(each) for each in drawn} == {due}
    assert len({each.start for each in drawn}) == high - window.low - due + 1  # every place is drawn
    assert drawn == [draw_window(window, steps, seed) for seed in range(200)]


@pytest.mark.parametrize("window", [{"size": 10}, {"low": 9}, {"size": 3, "low": 4, "high": 6}])
def test_windows_that_do_not_fit_are_refused(window):
    with pytest.raises(ConfigError, match="do not fit"):
        draw_window(WindowConfig(**window), steps=10, seed=0)
