"""Weights that are extrapolated from checkpoints, against trajectories that are known in closed form."""

from __future__ import annotations

import math

import pytest
import torch

from mmrl.errors import ConfigError
from mmrl.finetuning.weight_trajectories import (
    PredictorSettings,
    factor_paths,
    linear_extrapolation,
    predicted_extrapolation,
    rank_one_extrapolation,
)


def saturating(checkpoints: int, layers: int = 3, rate: float = 0.75) -> list[dict[str, torch.Tensor]]:
    """Changes of rank one whose factors approach a limit, 1 - rate^t of the way at checkpoint t."""
    chance = torch.Generator().manual_seed(0)
    limits = [(torch.randn(12, generator=chance), torch.randn(9, generator=chance)) for _ in range(layers)]
    return [
        {str(n): (1 - rate**t) ** 2 * torch.outer(left, right) for n, (left, right) in enumerate(limits)}
        for t in range(1, checkpoints + 1)
    ]


def error(found: dict[str, torch.Tensor], truth: dict[str, torch.Tensor]) -> float:
    gap = sum(float((found[name] - truth[name]).square().sum()) for name in truth)
    return math.sqrt(gap / sum(float(each.square().sum()) for each in truth.values()))


def test_a_line_is_continued_exactly():
    step = torch.arange(6.0).view(2, 3)
    path = [{"a": n * step} for n in (1, 2, 3)]
    for window in (1, 2):
        torch.testing.assert_close(linear_extrapolation(path, 2, window)["a"], 5 * step)
    torch.testing.assert_close(linear_extrapolation(path, 0.5)["a"], 3.5 * step)


def test_factors_have_one_norm_and_keep_their_sign():
    path = saturating(5)
    factors = factor_paths(changes.items() for changes in path)
    known = factor_paths((changes.items() for changes in path), rank=2)
    for key, series in factors.items():
        torch.testing.assert_close(known[key].abs(), series.abs(), atol=1e-5, rtol=1e-4)
    for name in path[0]:
        left, right = factors[name, "left"], factors[name, "right"]
        for checkpoint, changes in enumerate(path):
            torch.testing.assert_close(torch.outer(left[checkpoint], right[checkpoint]), changes[name])
            assert left[checkpoint].norm() == pytest.approx(right[checkpoint].norm().item(), rel=1e-5)
        assert bool((torch.cosine_similarity(left[1:], left[:-1]) > 0.999).all())


@pytest.mark.integration
def test_the_predictor_follows_a_bend_that_lines_overshoot():
    whole = saturating(12)
    path, truth = whole[:8], whole[11]
    predicted = error(predicted_extrapolation(path, 4), truth)
    assert predicted < 0.5 * error(rank_one_extrapolation(path, 4), truth)
    assert predicted < 0.5 * error(linear_extrapolation(path, 4), truth)
    assert error(linear_extrapolation(path, 4), truth) > 0.05
    untrained = predicted_extrapolation(path, 4, PredictorSettings(steps=0))
    assert error(untrained, rank_one_extrapolation(path, 4)) < 1e-5  # without learning it is that line


@pytest.mark.integration
def test_what_is_not_of_rank_one_stays():
    chance = torch.Generator().manual_seed(1)
    left, right = torch.zeros(6), torch.zeros(5)
    left[0] = right[0] = 1.0
    rest = torch.randn(6, 5, generator=chance) * 0.01
    rest[0], rest[:, 0] = 0.0, 0.0
    path = [{"a": n * torch.outer(left, right) + rest} for n in (1.0, 4.0, 9.0, 16.0, 25.0)]  # factors n, a line
    found = rank_one_extrapolation(path, 1)["a"]
    torch.testing.assert_close(found, 36.0 * torch.outer(left, right) + rest, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(predicted_extrapolation(path, 1)["a"][1:, 1:], rest[1:, 1:], atol=1e-5, rtol=1e-4)


@pytest.mark.integration
def test_equal_seeds_predict_equally_and_leave_the_generator_alone():
    path = saturating(8)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, other = (predicted_extrapolation(path, 2, PredictorSettings(seed=3))["0"] for _ in range(2))
    assert torch.equal(one, other) and torch.equal(torch.random.get_rng_state(), before)


def test_too_few_checkpoints_are_refused():
    path = saturating(4)
    with pytest.raises(ConfigError, match=r"4 checkpoints does not show 4 moves: keep more of them \(training.keep"):
        predicted_extrapolation(path, 1)
    with pytest.raises(ConfigError, match="1 checkpoints does not show 1 moves"):
        linear_extrapolation(path[:1], 1)
