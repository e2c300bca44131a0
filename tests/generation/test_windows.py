"""The window of stochastic steps."""

from __future__ import annotations

import pytest

from mmrl.config.sampling import SamplingConfig, WindowConfig, decisions_per_trajectory
from mmrl.errors import ConfigError
from mmrl.generation.diffusion.decisions import draw_window


def test_window_defaults_to_all_steps_but_the_last():
    assert draw_window(WindowConfig(), steps=10, seed=0) == range(9)
    assert draw_window(WindowConfig(), steps=1, seed=0) == range(0)


WINDOWS = [{"size": 2}, {"size": 3, "low": 2}, {"size": 1, "high": 5}, {"low": 4}, {"size": 9}]


@pytest.mark.parametrize("window", WINDOWS)
def test_windows_fit_move_and_match_the_config(window):
    steps, window = 10, WindowConfig(**window)
    drawn = [draw_window(window, steps, seed) for seed in range(200)]
    high = window.high or steps - 1
    assert all(window.low <= each.start and each.stop <= high for each in drawn)
    expected = decisions_per_trajectory(SamplingConfig(steps=steps, window=window, transition={"name": "flow_sde"}))
    assert {len(each) for each in drawn} == {expected}
    assert len({each.start for each in drawn}) == high - window.low - expected + 1  # every place is drawn
    assert drawn == [draw_window(window, steps, seed) for seed in range(200)]


@pytest.mark.parametrize("window", [{"size": 10}, {"low": 9}, {"size": 3, "low": 4, "high": 6}])
def test_windows_out_of_range_raise(window):
    with pytest.raises(ConfigError, match="do not fit"):
        draw_window(WindowConfig(**window), steps=10, seed=0)


def test_sliding_window_moves_by_its_stride_and_wraps():
    """MixGRPO: 4 wide, one step further every 25 iterations, from the noisiest step on."""
    window = WindowConfig(size=4, move="slide")
    starts = [draw_window(window, steps=9, seed=seed, iteration=seed).start for seed in range(300)]
    assert starts == [(iteration // 25) % 5 for iteration in range(300)]
    assert {len(draw_window(window, 9, 0, iteration)) for iteration in range(300)} == {4}


def test_sliding_window_reaches_the_last_position_for_any_stride():
    window = WindowConfig(size=2, move="slide", every=1, stride=3)
    assert [draw_window(window, steps=9, seed=0, iteration=i).start for i in range(4)] == [0, 3, 6, 0]
    shorter = WindowConfig(size=2, move="slide", every=1, stride=4, low=1)
    assert [draw_window(shorter, steps=9, seed=0, iteration=i).start for i in range(4)] == [1, 5, 6, 1]


def test_decaying_windows_spend_fewer_iterations_on_late_steps():
    """ceil(every exp(-k max(0, start - from))), as the authors' code has it."""
    window = WindowConfig(size=1, move="slide", every=5, decay=0.5, decay_from=2)
    starts = [draw_window(window, steps=7, seed=0, iteration=i).start for i in range(5 * 3 + 4 + 2 + 2)]
    assert [starts.count(place) for place in range(6)] == [5, 5, 5, 4, 2, 2]  # 5 e^-0.5 = 3.03, 5 e^-1 = 1.84, 1.12
    assert starts == sorted(starts)


def test_growing_window_extends_backwards_from_the_last_step():
    """B2-DiffuRL: the last two steps first, then ever earlier ones."""
    window = WindowConfig(size=2, move="grow", every=10, stride=2, low=1)
    drawn = [draw_window(window, steps=8, seed=0, iteration=i) for i in (0, 9, 10, 20, 1000)]
    assert drawn == [range(5, 7), range(5, 7), range(3, 7), range(1, 7), range(1, 7)]
    sampling = SamplingConfig(steps=8, window=window, transition={"name": "flow_sde"})
    assert decisions_per_trajectory(sampling) == 6  # the most it comes to
