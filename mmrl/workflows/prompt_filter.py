"""`mmrl data filter`: keep the prompts of a data set that a policy solves sometimes, neither never nor always.

Groups of such prompts have advantages; the answers to all others cost as much and teach nothing (ARPO,
arXiv:2505.16282, which trains on the tasks that its base solved at least once in 16 attempts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmrl.config.train import TrainConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.workflows.answered_prompts import AnsweredPrompts, answered_prompts


@dataclass(frozen=True)
class FilteredPrompts:
    """The samples that were kept, and the numbers of those that were not."""

    kept: Sequence[Sample]  # as they were in the data set
    rates: Mapping[str, float]  # {id: share of answers with a total of at least `success`}; NaN: none could be scored
    never: int  # at or below the lower bound
    always: int  # at or above the upper bound
    unscored: int


def filter_prompts(
    config: TrainConfig,
    answers: int,  # to each prompt
    success: float = 1.0,  # an answer with a total of at least this is good
    above: float = 0.0,  # share of good answers, exclusive
    below: float = 1.0,  # exclusive
) -> FilteredPrompts:
    """Answer each prompt of `data.path` as in training, before any training, and keep those within the bounds.

    Raises:
        ConfigError: the run samples no answers, or nothing lies within the bounds.
        DataError: a sample cannot be read.
    """
    check_bounds(above, below)
    return solved_sometimes(config, answered_prompts(config, answers), success, above, below)


def check_bounds(above: float, below: float) -> None:
    """Raise `ConfigError` if no share lies between the bounds, before anything is answered."""
    if not above < below:
        raise ConfigError(f"--above is {above:g}, --below is {below:g}: nothing lies between them")


def solved_sometimes(
    config: TrainConfig, answered: AnsweredPrompts, success: float, above: float, below: float
) -> FilteredPrompts:
    """Keep the prompts whose share of good answers lies between the bounds, exclusive: see `filter_prompts`."""
    loaded, values = answered.samples, np.array(success_rates(answered.totals, success))
    within = (values > above) & (values < below)
    if not within.any():
        raise ConfigError(
            f"{config.data.path}: of no prompt is the share of good answers above {above:g} and below {below:g}: "
            "choose wider bounds, more --answers, or a lower --success"
        )
    return FilteredPrompts(
        kept=[sample for sample, keep in zip(loaded, within, strict=True) if keep],
        rates={sample.id: rate for sample, rate in zip(loaded, values.tolist(), strict=True)},
        never=int((values <= above).sum()),
        always=int((values >= below).sum()),
        unscored=int(np.isnan(values).sum()),
    )


def success_rates(totals: NDArray[np.float32], success: float) -> list[float]:
    """Return the share of good answers of each prompt; answers that could not be scored do not count.

    >>> success_rates(np.array([[1.0, 0.0], [1.0, np.nan], [np.nan, np.nan]]), 1.0)
    [0.5, 1.0, nan]
    """
    scored = np.isfinite(totals)
    good = (scored & (np.nan_to_num(totals, nan=-np.inf) >= success)).sum(axis=1)
    counts = scored.sum(axis=1)
    return [float(n) / int(count) if count else float("nan") for n, count in zip(good, counts, strict=True)]
