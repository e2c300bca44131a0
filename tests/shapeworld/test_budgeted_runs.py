"""The spread of a series about its course, and a short run that is measured."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mmrl_shapeworld.budgeted_runs import relative_spread, trained_with


def test_the_spread_of_noise_is_that_of_its_logarithm_whatever_the_trend():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.3, 4000)
    trend = np.linspace(0, 5, 4000)
    assert relative_spread(np.exp(noise).tolist()) == pytest.approx(0.3, rel=0.05)
    assert relative_spread(np.exp(noise + trend).tolist()) == pytest.approx(0.3, rel=0.05)
    assert relative_spread(np.exp(trend).tolist()) < 0.002
    assert relative_spread([2.0, 2.0, 2.0]) == 0.0
    assert relative_spread([1.0, math.e**2]) == pytest.approx(math.sqrt(2))


@pytest.mark.slow
def test_a_run_is_measured():
    common = {
        "policy.model": "shapeworld:vlm-worlds",
        "data.path": "shapeworld:clip+letters-train",
        "data.validation": "shapeworld:clip+letters-development",
        "data.groups": 2,
        "data.group_size": 4,
        "sampling.max_new_tokens": 16,
        "algorithm": {"name": "grpo", "aggregate": "token"},
        "training.iterations": 3,
        "evaluation": {"prompts": 4, "batch": 4, "greedy": False},
    }
    whole, budget = (trained_with(3, changes, common) for changes in ({}, {"data.token_budget": 4}))
    assert len(whole["total"]) == len(budget["total"]) == 4
    assert whole["norm_spread"] != budget["norm_spread"] and whole["norm_peak"][0] >= 1.0
