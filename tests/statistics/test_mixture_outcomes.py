"""A quadratic of mixtures: exact where the outcome is one, penalised, predicted from the others, and maximised."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.errors import EvaluationError
from mmrl.statistics.mixture_outcomes import MixtureFit, best_mixture, fit_mixtures


def lattice(sources: int) -> np.ndarray:
    """Return each source alone, each even pair, and all together: what determines a quadratic."""
    alone = np.eye(sources)
    pairs = [(alone[i] + alone[j]) / 2 for i, j in combinations(range(sources), 2)]
    return np.array([*alone, *pairs, np.full(sources, 1 / sources)])


def predictor(linear, pairs) -> MixtureFit:
    none = np.zeros(0)
    return MixtureFit(0.0, np.array(linear, float), np.array(pairs, float), 0.0, none, 0.0, 0.0)


def test_three_runs_of_two_sources_by_hand():
    """Outcomes 1, 0 and 0.75: the mixture is 0.25 above the mean of both. w + w (1 - w) is highest at w = 1."""
    fit = fit_mixtures([[1, 0], [0, 1], [1, 1]], [1.0, 0.0, 0.75], ridge=0.0)
    assert fit.pairs[0, 1] == pytest.approx(0.25, abs=1e-12)
    assert fit.predict([0.75, 0.25]) == pytest.approx(0.75 + 0.75 * 0.25, abs=1e-12)
    assert best_mixture(fit).tolist() == pytest.approx([1.0, 0.0], abs=1e-9)
    assert np.isnan(fit.left_out).all() and np.isnan(fit.error)  # three runs determine three numbers, and no fewer do


def test_a_mixture_better_than_its_sources_by_hand():
    """With 0.8 + 0.2 w + 1.6 w (1 - w), the derivative 1.8 - 3.2 w is 0 at 9 / 16."""
    shares = np.array([[1, 0], [0, 1], [0.5, 0.5], [0.2, 0.8]])
    w = shares[:, 0]
    fit = fit_mixtures(shares, 0.8 + 0.2 * w + 1.6 * w * (1 - w), ridge=0.0)
    assert best_mixture(fit).tolist() == pytest.approx([9 / 16, 7 / 16], abs=1e-10)
    assert fit.predict(best_mixture(fit)) == pytest.approx(0.8 + 0.2 * 9 / 16 + 1.6 * 63 / 256, abs=1e-12)
    assert fit.error == pytest.approx(0.0, abs=1e-10)
    assert fit.left_out == pytest.approx(0.8 + 0.2 * w + 1.6 * w * (1 - w), abs=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.02, 1), min_size=3, max_size=5), st.integers(0, 99))
def test_a_quadratic_is_recovered_with_its_maximum_inside(raw, seed):
    """1 - |w - p|^2, with squares, is a quadratic of products where weights sum to 1; its maximum is p."""
    place = np.array(raw) / sum(raw)
    shares = np.concatenate([lattice(len(place)), np.random.default_rng(seed).dirichlet(np.ones(len(place)), 3)])
    fit = fit_mixtures(shares, 1 - ((shares - place) ** 2).sum(1), ridge=0.0)
    assert best_mixture(fit) == pytest.approx(place, abs=1e-8)
    assert fit.predict(place) == pytest.approx(1.0, abs=1e-10)


def test_a_maximum_outside_is_its_projection_on_the_simplex():
    """The nearest point of the simplex to (0.9, 0.5, -0.4) is (0.7, 0.3, 0): 0.2 less of the first two."""
    shares = lattice(3)
    fit = fit_mixtures(shares, -((shares - np.array([0.9, 0.5, -0.4])) ** 2).sum(1), ridge=0.0)
    assert best_mixture(fit) == pytest.approx([0.7, 0.3, 0.0], abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 5), st.integers(0, 9999))
def test_no_mixture_of_a_dense_sample_is_better(sources, seed):
    """Random quadratics are mostly neither concave nor convex."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.normal(size=(sources, sources)), k=1)
    fit = predictor(rng.normal(size=sources), upper + upper.T)
    best = best_mixture(fit)
    assert best.min() >= 0 and best.sum() == pytest.approx(1.0)
    tried = np.concatenate([rng.dirichlet(np.full(sources, size), 2000) for size in (0.3, 1, 3)])
    assert fit.predict(tried).max() <= float(fit.predict(best)) + 1e-12


def test_a_convex_quadratic_has_its_maximum_at_a_source():
    """The negative control of a search that stops at the stationary point inside, here the minimum."""
    fit = predictor([0.0, 0.0, 0.0], [[0, -1, -1], [-1, 0, -1], [-1, -1, 0]])
    assert sorted(best_mixture(fit).tolist()) == [0.0, 0.0, 1.0]
    assert fit.predict(np.full(3, 1 / 3)) < fit.predict(best_mixture(fit))


def test_a_run_that_is_left_out_is_predicted_as_by_a_fit_without_it():
    """The constant, which has no penalty, follows the mean of the others: so the leverages are tried against refits."""
    rng = np.random.default_rng(5)
    shares, outcomes = np.concatenate([lattice(4), rng.dirichlet(np.ones(4), 4)]), rng.normal(size=15)
    for ridge in (0.0, 0.1, 3.0):
        fit = fit_mixtures(shares, outcomes, ridge)
        others = [
            fit_mixtures(np.delete(shares, n, 0), np.delete(outcomes, n), ridge).predict(shares[n]) for n in range(15)
        ]
        known = np.isfinite(fit.left_out)
        assert fit.left_out[known] == pytest.approx(np.array(others)[known], abs=1e-9)
        assert known.all() or ridge == 0
    means = [outcomes[n] - np.delete(outcomes, n).mean() for n in range(15)]
    assert fit.spread == pytest.approx(np.sqrt(np.mean(np.square(means))))


def test_ridge_agrees_with_its_normal_equations():
    """Solved with the constant as an unpenalised column, as no centring would."""
    rng = np.random.default_rng(2)
    shares, outcomes = rng.dirichlet(np.ones(3), 9), rng.normal(size=9)
    first, second = np.triu_indices(3, k=1)
    columns = np.column_stack([np.ones(9), shares, 4 * shares[:, first] * shares[:, second]])
    solved = np.linalg.solve(columns.T @ columns + np.diag([0.0] + [0.3] * 6), columns.T @ outcomes)
    fit = fit_mixtures(shares, outcomes, ridge=0.3)
    assert fit.constant == pytest.approx(solved[0], abs=1e-10)
    assert fit.linear == pytest.approx(solved[1:4], abs=1e-10)
    assert fit.pairs[first, second] == pytest.approx(solved[4:], abs=1e-10)


def test_the_penalty_is_chosen_by_what_is_left_out():
    """Noise alone is predicted best by the mean, so by a large penalty; a clean quadratic by a small one."""
    rng = np.random.default_rng(0)
    shares = np.concatenate([lattice(4), rng.dirichlet(np.ones(4), 20)])
    clean = fit_mixtures(shares, 1 - ((shares - 0.25) ** 2).sum(1))
    noise = fit_mixtures(shares, rng.normal(size=len(shares)))
    assert clean.ridge == 1e-4 and clean.error < 0.1 * clean.spread
    assert noise.ridge >= 1 and noise.error > 0.9 * noise.spread


def test_only_the_ratio_of_weights_and_differences_of_outcomes_count():
    rng = np.random.default_rng(1)
    shares, outcomes = rng.dirichlet(np.ones(3), 9), rng.normal(size=9)
    fit = fit_mixtures(shares, outcomes, ridge=0.1)
    moved = fit_mixtures(shares * rng.uniform(1, 9, size=(9, 1)), outcomes + 5, ridge=0.1)
    order = [2, 0, 1]
    assert moved.predict(shares) == pytest.approx(fit.predict(shares) + 5)
    assert best_mixture(moved) == pytest.approx(best_mixture(fit), abs=1e-8)
    assert best_mixture(fit_mixtures(shares[:, order], outcomes, 0.1)) == pytest.approx(
        best_mixture(fit)[order], abs=1e-8
    )


@pytest.mark.parametrize(
    ("weights", "outcomes", "ridge", "message"),
    [
        ([[1, 0], [0, 1]], [1, 2], None, "there are 2 runs with 2 sources"),
        ([[1], [1], [1]], [1, 2, 3], None, "there are 3 runs with 1 sources"),
        ([[1, 0], [0, 1], [1, 1]], [1, 2], None, "have the shape"),
        ([[1, 0], [0, 1], [-1, 1]], [1, 2, 3], None, "0 or more"),
        ([[1, 0], [0, 1], [0, 0]], [1, 2, 3], None, "one is above 0"),
        ([[1, 0], [0, 1], [1, 1]], [1, 2, np.nan], None, "no outcome"),
        ([[1, 0], [0, 1], [1, 1]], [1, 1, 1], None, "nothing to choose by"),
        ([[1, 1], [2, 2], [3, 3]], [1, 2, 3], None, "the same weights"),
        ([[1, 0], [0, 1], [1, 1]], [1, 2, 3], -1.0, "is -1: choose 0 or more"),
    ],
)
def test_what_cannot_be_fitted_is_refused(weights, outcomes, ridge, message):
    with pytest.raises(EvaluationError, match=message):
        fit_mixtures(weights, outcomes, ridge)


def test_too_many_sources_are_refused():
    with pytest.raises(EvaluationError, match="there are 13 sources"):
        best_mixture(predictor(np.zeros(13), np.zeros((13, 13))))
