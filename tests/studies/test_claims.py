"""Claims about arms: what they state, and the verdict on values that are known."""

from __future__ import annotations

import numpy as np
import pytest

from mmrl.errors import ConfigError
from mmrl.statistics.crossed import crossed_interval
from mmrl.studies.claims import judge, overall, parse_claim

ARMS = ("both", "one", "none", "w=0", "w=1", "w=2")
SWEPT = {"w": ("w=0", "w=1", "w=2")}


def arms_with_means(**means: float) -> dict[str, np.ndarray]:
    """Return [40, 4] values of each arm, with independent noise of deviation 0.05."""
    random = np.random.default_rng(0)
    return {arm.replace("_", "="): mean + random.normal(0, 0.05, (40, 4)) for arm, mean in means.items()}


def verdict(test: str, **means: float) -> str:
    comparison = parse_claim(test, ARMS, SWEPT, "study.yaml")
    return judge(comparison, arms_with_means(**means), crossed_interval).verdict


@pytest.mark.parametrize(
    ("test", "means", "expected"),
    [
        ("both > none", {"both": 0.7, "none": 0.5}, "holds"),
        ("both > none", {"both": 0.5, "none": 0.7}, "opposite"),
        ("both > none", {"both": 0.5, "none": 0.5}, "not told apart"),
        ("none < both", {"both": 0.7, "none": 0.5}, "holds"),
        ("both > one > none", {"both": 0.7, "one": 0.6, "none": 0.5}, "holds"),
        ("both > one > none", {"both": 0.7, "one": 0.5, "none": 0.5}, "not told apart"),
        ("both > one > none", {"both": 0.7, "one": 0.4, "none": 0.5}, "opposite"),
        ("none < one < both", {"both": 0.7, "one": 0.6, "none": 0.5}, "holds"),
        ("both = one within 0.05", {"both": 0.5, "one": 0.5}, "holds"),
        ("both = one within 0.001", {"both": 0.5, "one": 0.5}, "not told apart"),
        ("both = one within 0.05", {"both": 0.7, "one": 0.5}, "opposite"),
        ("increasing in w", {"w_0": 0.1, "w_1": 0.3, "w_2": 0.5}, "holds"),
        ("increasing in w", {"w_0": 0.1, "w_1": 0.1, "w_2": 0.5}, "holds"),
        ("increasing in w", {"w_0": 0.3, "w_1": 0.1, "w_2": 0.5}, "opposite"),
        ("decreasing in w", {"w_0": 0.5, "w_1": 0.3, "w_2": 0.1}, "holds"),
        ("increasing in w", {"w_0": 0.3, "w_1": 0.3, "w_2": 0.3}, "not told apart"),
    ],
)
def test_verdict_on_known_means(test, means, expected):
    assert verdict(test, **means) == expected


def test_slope_is_the_least_squares_slope():
    comparison = parse_claim("increasing in w", ARMS, SWEPT, "study.yaml")
    values = arms_with_means(w_0=0.1, w_1=0.5, w_2=0.2)
    slope = comparison.contrasts[0].differences(values).mean()
    expected = np.polyfit([0, 1, 2], [values[arm].mean() for arm in SWEPT["w"]], 1)[0]
    assert slope == pytest.approx(expected, rel=1e-9)


def test_arms_of_a_sweep_can_be_named():
    comparison = parse_claim("w=0 = base within 0.02", ARMS, SWEPT, "study.yaml")
    assert comparison.arms == ("w=0", "base")


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("both >> none", "is no test"),
        ("both > other", "there is no arm other"),
        ("increasing in beta", "there is no sweep called beta"),
        ("both = one", "is no test"),
    ],
)
def test_a_wrong_claim_is_refused(test, message):
    with pytest.raises(ConfigError, match=message):
        parse_claim(test, ARMS, SWEPT, "study.yaml")


def test_overall_verdict():
    assert overall(["holds", "holds"]) == "holds"
    assert overall(["holds", "not told apart"]) == "not told apart"
    assert overall(["holds", "opposite", "not told apart"]) == "opposite"
