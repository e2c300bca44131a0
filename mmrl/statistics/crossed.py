"""Intervals of a difference that was measured on the same prompts with several seeds of training.

    crossed_interval(differences)      # [prompts, seeds]; for a number of seeds that was fixed before
    sequential_interval(differences)   # may be looked at after every seed, and training stopped on what it shows

Both count prompts and seeds as random: a verdict is meant for other prompts of the kind and for other seeds.

`crossed_interval` is that of the two-way layout without replication, with Satterthwaite's degrees of freedom
(Biometrics Bulletin 2, 1946).

`sequential_interval` is the wider of two. Over seeds, of the means over prompts: the confidence sequence of the t
statistic with a normal prior on the effect in standard deviations (Lai, Annals of Statistics 4, 1976; Wang and Ramdas,
arXiv:2310.03722), which by Ville's inequality covers the mean at all numbers of seeds at once with the stated
probability. Over prompts, of the means over seeds: Student's t, of whose error probability alpha / (k (k + 1)) is spent
at the k-th look, from three seeds on; these add up to alpha. A difference must therefore stand out against both.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from mmrl.errors import EvaluationError
from mmrl.statistics.intervals import Floats, Interval, mean_over_seeds

ALPHA = 0.05
EFFECT = 3.0
"""Standard deviation of the prior on the effect, in standard deviations over seeds; any value is valid."""
FIRST_LOOK = 3
"""Fewer seeds decide nothing."""


def crossed_interval(differences: ArrayLike, independent: bool = True) -> Interval:  # [P, S]
    """Return the mean difference with its 95 % interval over prompts and seeds.

    With prompts i and seeds j, d_ij = mean + a_i + b_j + e_ij, and the variance of the mean is estimated by
    max(MS_a + MS_b - MS_e, MS_a, MS_b) / (P S). One seed gives the interval over prompts, one prompt that over seeds.
    `independent=False` says that the rows are no sample (iterations of a run, say): the interval is over seeds.

    Raises:
        EvaluationError: the differences are no matrix, or contain a NaN.
    """
    values = _matrix(differences)
    prompts, seeds = values.shape
    if not independent or prompts == 1:
        return mean_over_seeds(values.mean(0).tolist())
    if seeds == 1:
        return mean_over_seeds(values[:, 0].tolist())
    mean = float(values.mean())
    by_prompt, by_seed = values.mean(1) - mean, values.mean(0) - mean
    residual = values - mean - by_prompt[:, None] - by_seed[None, :]
    freedom = (prompts - 1, seeds - 1, (prompts - 1) * (seeds - 1))
    squares = (seeds * by_prompt @ by_prompt, prompts * by_seed @ by_seed, float((residual**2).sum()))
    of_prompts, of_seeds, of_rest = (float(each) / n for each, n in zip(squares, freedom, strict=True))
    combined = of_prompts + of_seeds - of_rest
    if combined > max(of_prompts, of_seeds):
        terms = zip((of_prompts, of_seeds, of_rest), freedom, strict=True)
        degrees = combined**2 / sum(each**2 / n for each, n in terms)
    else:
        combined, degrees = max((of_prompts, freedom[0]), (of_seeds, freedom[1]))
    if combined == 0:
        return Interval(mean, mean, mean, values.size)
    half = float(stdtrit(degrees, 1 - ALPHA / 2)) * math.sqrt(combined / values.size)
    return Interval(mean, mean - half, mean + half, values.size)


def sequential_interval(differences: ArrayLike, independent: bool = True) -> Interval:  # [P, S]
    """Return the mean difference with an interval that stays valid when it is looked at after every seed.

    It is the wider of the confidence sequence over seeds and, if the rows are independent prompts, their t-interval.
    The ends are infinite with fewer seeds than `FIRST_LOOK`.

    Raises:
        EvaluationError: the differences are no matrix, or contain a NaN.
    """
    values = _matrix(differences)
    mean = float(values.mean())
    half = confidence_half_width(values.mean(0))
    prompts, seeds = values.shape
    if independent and prompts > 1 and seeds >= FIRST_LOOK:
        look = seeds - FIRST_LOOK + 1
        critical = float(stdtrit(prompts - 1, 1 - ALPHA / (2 * look * (look + 1))))
        half = max(half, critical * float(np.std(values.mean(1), ddof=1)) / math.sqrt(prompts))
    return Interval(mean, mean - half, mean + half, values.size)


def confidence_half_width(values: Floats, alpha: float = ALPHA) -> float:  # [n]
    """Return half the width of the confidence sequence of a normal mean at n values; infinite below `FIRST_LOOK`.

    With A = 1 + n g^2 and x = t^2 / (n - 1), the Bayes factor A^(-1/2) ((1 + x / A) / (1 + x))^(-n/2) against a mean is
    a martingale if it is the mean; the interval holds the means whose factor is below 1 / alpha.
    """
    n = len(values)
    if n < FIRST_LOOK:
        return math.inf
    if np.ptp(values) == 0:
        return 0.0
    wide = 1 + n * EFFECT**2
    ratio = (alpha / math.sqrt(wide)) ** (2 / n)
    if ratio <= 1 / wide:
        return math.inf
    t = math.sqrt((n - 1) * (1 - ratio) / (ratio - 1 / wide))
    return t * float(np.std(values, ddof=1)) / math.sqrt(n)


def _matrix(differences: ArrayLike) -> Floats:
    values = np.asarray(differences, np.float64)
    if values.ndim != 2 or values.size == 0:
        raise EvaluationError(f"expected differences of shape [prompts, seeds], got {values.shape}")
    if not np.isfinite(values).all():
        raise EvaluationError(f"{int((~np.isfinite(values)).sum())} of the differences are no numbers: leave them out")
    return values
