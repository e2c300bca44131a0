"""Intervals over prompts and seeds: coverage by simulation, and limits that have a closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from mmrl.errors import EvaluationError
from mmrl.statistics.crossed import EFFECT, confidence_half_width, crossed_interval, sequential_interval
from mmrl.statistics.intervals import paired_difference

NULLS = {  # standard deviations over prompts, over seeds, and of the rest
    "seeds differ": (0.0, 0.03, 0.4),
    "prompts differ": (0.4, 0.0, 0.4),
    "both differ": (0.4, 0.02, 0.4),
    "both alike": (0.4, 0.01, 0.1),
}


def draw(random: np.random.Generator, kind: str, seeds: int, prompts: int = 128) -> np.ndarray:
    """Return [prompts, seeds] differences of mean 0."""
    of_prompts, of_seeds, of_rest = NULLS[kind]
    return (
        random.normal(0, of_prompts, (prompts, 1))
        + random.normal(0, of_seeds, (1, seeds))
        + random.normal(0, of_rest, (prompts, seeds))
    )


@pytest.mark.integration
@pytest.mark.parametrize("kind", NULLS)
def test_sequential_false_positives_at_most_five_percent(kind):
    random, studies, most = np.random.default_rng(0), 2000, 8
    wrong = 0
    for _ in range(studies):
        values = draw(random, kind, most)
        looks = (sequential_interval(values[:, :seeds]) for seeds in range(3, most + 1))
        wrong += any(look.low > 0 or look.high < 0 for look in looks)
    assert wrong <= 0.05 * studies


@pytest.mark.parametrize("kind", NULLS)
@pytest.mark.parametrize("seeds", [3, 6])
def test_crossed_interval_covers_the_mean(kind, seeds):
    random, studies = np.random.default_rng(1), 2000
    found = (crossed_interval(draw(random, kind, seeds)) for _ in range(studies))
    covered = sum(each.low <= 0 <= each.high for each in found)
    assert covered >= 0.91 * studies  # 0.95 is aimed at; three seeds estimate a variance roughly


@pytest.mark.integration
def test_a_repeated_look_at_a_fixed_interval_is_wrong_too_often():
    """The reason for the sequential interval: looking at an interval for fixed seeds after every seed."""
    random, studies = np.random.default_rng(2), 2000
    wrong = 0
    for _ in range(studies):
        values = draw(random, "seeds differ", 8)
        looks = (crossed_interval(values[:, :seeds]) for seeds in range(3, 9))
        wrong += any(look.low > 0 or look.high < 0 for look in looks)
    assert wrong > 0.10 * studies


def test_crossed_interval_of_one_seed_is_the_paired_interval_over_prompts():
    values = np.random.default_rng(3).normal(0.1, 1.0, (50, 1))
    expected = paired_difference(np.zeros(50), values[:, 0])
    found = crossed_interval(values)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-12)


def test_crossed_interval_of_rows_that_are_no_sample_is_over_seeds():
    values = np.random.default_rng(4).normal(0.1, 1.0, (20, 5))
    low, high = stats.t.interval(0.95, 4, values.mean(), stats.sem(values.mean(0)))
    found = crossed_interval(values, independent=False)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)


def test_crossed_interval_against_the_analysis_of_variance():
    """Mean squares from sums over the table, in another order than the code's."""
    values = np.random.default_rng(5).normal(0, 1, (7, 4)) + np.arange(7)[:, None] + 2 * np.arange(4)[None, :]
    p, s = values.shape
    correction = values.sum() ** 2 / values.size
    ss_p = (values.sum(1) ** 2).sum() / s - correction
    ss_s = (values.sum(0) ** 2).sum() / p - correction
    ss_e = (values**2).sum() - correction - ss_p - ss_s
    a, b, e = ss_p / (p - 1), ss_s / (s - 1), ss_e / ((p - 1) * (s - 1))
    degrees = (a + b - e) ** 2 / (a**2 / (p - 1) + b**2 / (s - 1) + e**2 / ((p - 1) * (s - 1)))
    half = stats.t.ppf(0.975, degrees) * math.sqrt((a + b - e) / values.size)
    found = crossed_interval(values)
    assert found.high - found.mean == pytest.approx(half, rel=1e-9)


@pytest.mark.parametrize("n", [3, 4, 6, 12])
def test_confidence_sequence_ends_where_the_bayes_factor_is_twenty(n):
    """The factor by numerical integration: scale-free t likelihoods, with the effect drawn from N(0, EFFECT^2)."""
    values = np.random.default_rng(n).normal(0, 1, n)
    half = confidence_half_width(values)
    t = half / (np.std(values, ddof=1) / math.sqrt(n))

    def density(effect: float) -> float:
        return float(stats.nct.pdf(t, n - 1, effect * math.sqrt(n)) * stats.norm.pdf(effect, scale=EFFECT))

    mixed = sum(integrate.quad(density, a, b, limit=200)[0] for a, b in ((-20, 0), (0, 5), (5, 20)))
    assert mixed / stats.t.pdf(t, n - 1) == pytest.approx(20, rel=1e-3)


def test_two_seeds_decide_nothing():
    found = sequential_interval(np.ones((10, 2)) + np.random.default_rng(0).normal(0, 1e-6, (10, 2)))
    assert found.low == -math.inf and found.high == math.inf


def test_a_missing_value_is_refused():
    with pytest.raises(EvaluationError, match="1 of the differences"):
        crossed_interval([[0.1, math.nan], [0.2, 0.3]])


def test_equal_differences_have_an_interval_without_width():
    assert crossed_interval(np.full((4, 3), 0.2)).low == pytest.approx(0.2)
