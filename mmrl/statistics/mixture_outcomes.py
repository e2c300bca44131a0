"""The outcome of training as a quadratic of the weights of the sources that were trained on, and its maximum.

    fit = fit_mixtures(weights, outcomes)   # [N, m] of N runs, [N]
    best = best_mixture(fit)                # [m], 0 or more, sum 1

MoDoMoDo (arXiv:2505.24871) predicts the outcome of reinforcement learning by a + b w + w C w from runs with other
weights w, and trains with the weights of the highest prediction. Weights sum to 1, so the square of one is itself less
its products with the others: products of two different sources are all that C adds (Scheffé, J. R. Statist. Soc. B 20,
1958). A coefficient of 4 w_i w_j is how much the even mixture of two sources is better than the mean of each alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmrl.errors import EvaluationError

Floats = NDArray[np.float64]
FEWEST = 3
"""Runs that a quadratic is fitted to at least."""
MOST_SOURCES = 12
"""Sources whose 4,095 faces of the simplex are searched in a second."""
RIDGES = tuple(float(10.0 ** (power / 2)) for power in range(-8, 5))
"""The penalties that are tried if none is stated: 1e-4 to 100."""
_SINGULAR = 1e12


@dataclass(frozen=True)
class MixtureFit:
    """A predictor of the outcome of training with m sources, and how well it predicts each run from the others."""

    constant: float
    linear: Floats  # [m]
    pairs: Floats  # [m, m], symmetric with zeros on the diagonal: a pair's part is pairs[i, j] 4 w_i w_j
    ridge: float  # the penalty on the squares of `linear` and `pairs`
    left_out: Floats  # [N] each run as predicted from the others; NaN if they do not determine it
    error: float  # root mean square error of `left_out`
    spread: float  # that of the mean of the others in its place: a fit is of use if `error` is smaller

    def predict(self, weights: ArrayLike) -> Floats:  # [..., m] -> [...]
        """Return the predicted outcome for weights that sum to 1."""
        shares = np.asarray(weights, np.float64)
        products = 2 * np.einsum("...i,ij,...j->...", shares, self.pairs, shares)  # each pair stands there twice
        outcome: Floats = self.constant + shares @ self.linear + products
        return outcome


def fit_mixtures(weights: ArrayLike, outcomes: ArrayLike, ridge: float | None = None) -> MixtureFit:  # [N, m], [N]
    """Return the quadratic that predicts the outcomes of N runs from their weights, by ridge regression.

    Args:
        weights: 0 or more; only the ratio of the weights of a run counts.
        outcomes: of the runs, larger is better.
        ridge: the penalty, 0 for least squares; None: that of `RIDGES` which predicts runs best from the others.

    Raises:
        EvaluationError: there are fewer than three runs or two sources, weights are negative or all 0, outcomes are
            not finite or all equal, every run has the same weights, or the penalty is negative.
    """
    shares, values = _checked(weights, outcomes)
    if ridge is not None and ridge < 0:
        raise EvaluationError(f"the penalty of the fit is {ridge:g}: choose 0 or more")
    fits = [_ridge_fit(shares, values, penalty) for penalty in (RIDGES if ridge is None else (ridge,))]
    return min(fits, key=lambda fit: fit.error if np.isfinite(fit.error) else np.inf)


def best_mixture(fit: MixtureFit) -> Floats:  # [m]
    """Return the weights of the highest prediction, 0 or more with the sum 1; of equal ones those of fewest sources.

    The prediction need not be concave. Its maximum is stationary within some face of the simplex, so the stationary
    point of each of the 2^m - 1 faces is tried. Where a face has a line of them, the line ends on a smaller face.

    Raises:
        EvaluationError: there are more than 12 sources.
    """
    count = len(fit.linear)
    if count > MOST_SOURCES:
        raise EvaluationError(f"there are {count} sources: mixtures of at most {MOST_SOURCES} are searched")
    best, highest = np.zeros(count), -np.inf
    for face in _faces(count):
        weights = _stationary(fit, np.array(face))
        if weights is None:
            continue
        predicted = float(fit.predict(weights))
        if predicted > highest + 1e-12:
            best, highest = weights, predicted
    return best


def _checked(weights: ArrayLike, outcomes: ArrayLike) -> tuple[Floats, Floats]:
    """Return weights with the sum 1, and outcomes."""
    shares, values = np.asarray(weights, np.float64), np.asarray(outcomes, np.float64)
    if shares.ndim != 2 or values.shape != shares.shape[:1]:
        raise EvaluationError(
            f"weights have the shape {shares.shape} and outcomes {values.shape}: expected [N, m] and [N]"
        )
    if len(values) < FEWEST or shares.shape[1] < 2:
        raise EvaluationError(
            f"there are {len(values)} runs with {shares.shape[1]} sources: a mixture of two sources or more is "
            f"predicted from at least {FEWEST} runs"
        )
    if not (np.isfinite(shares).all() and (shares >= 0).all() and (shares.sum(axis=1) > 0).all()):
        raise EvaluationError("the weights of a run are 0 or more, and one is above 0")
    if not np.isfinite(values).all():
        raise EvaluationError("a run has no outcome: leave it out, or evaluate it again")
    if np.ptp(values) == 0:
        raise EvaluationError(f"every run has the outcome {values[0]:g}: there is nothing to choose by")
    shares = shares / shares.sum(axis=1, keepdims=True)
    if np.ptp(shares, axis=0).max() < 1e-9:
        raise EvaluationError("every run has the same weights: train some with others")
    return shares, values


def _features(shares: Floats) -> Floats:  # [N, m] -> [N, m + m (m - 1) / 2]
    first, second = np.triu_indices(shares.shape[1], k=1)
    return np.concatenate([shares, 4 * shares[:, first] * shares[:, second]], axis=1)


def _ridge_fit(shares: Floats, values: Floats, ridge: float) -> MixtureFit:
    """Return the fit with one penalty; the constant has none. What N - 1 runs predict follows from the leverage."""
    count, sources = shares.shape
    features = _features(shares)
    centred = features - features.mean(axis=0)
    left, singular, right = np.linalg.svd(centred, full_matrices=False)
    kept = singular > 1e-10 * singular[0]
    left, singular, right = left[:, kept], singular[kept], right[kept]
    deviations = values - values.mean()
    coefficients = right.T @ (singular / (singular**2 + ridge) * (left.T @ deviations))
    fitted = values.mean() + centred @ coefficients
    leverage = 1 / count + (left**2) @ (singular**2 / (singular**2 + ridge))
    determined = leverage < 1 - 1e-9
    missed = np.full(count, np.nan)
    missed[determined] = (values - fitted)[determined] / (1 - leverage[determined])
    pairs = np.zeros((sources, sources))
    pairs[np.triu_indices(sources, k=1)] = coefficients[sources:]
    return MixtureFit(
        constant=float(values.mean() - features.mean(axis=0) @ coefficients),
        linear=coefficients[:sources],
        pairs=pairs + pairs.T,
        ridge=ridge,
        left_out=values - missed,
        error=float(np.sqrt(np.mean(missed**2))),
        spread=float(np.sqrt(np.mean((deviations * count / (count - 1)) ** 2))),
    )


def _faces(count: int) -> Iterator[tuple[int, ...]]:
    """Yield every set of sources but the empty one, small ones first."""
    return chain.from_iterable(combinations(range(count), size) for size in range(1, count + 1))


def _stationary(fit: MixtureFit, face: NDArray[np.int64]) -> Floats | None:
    """Return the weights [m] on a face at which the prediction is stationary there; None if none or many are."""
    size = len(face)
    system = np.ones((size + 1, size + 1))
    system[:size, :size] = 4 * fit.pairs[np.ix_(face, face)]
    system[size, size] = 0.0
    if np.linalg.cond(system) > _SINGULAR:
        return None
    solved = np.linalg.solve(system, np.append(-fit.linear[face], 1.0))[:size]
    if (solved < 0).any():
        return None
    weights = np.zeros(len(fit.linear))
    weights[face] = solved
    return weights
