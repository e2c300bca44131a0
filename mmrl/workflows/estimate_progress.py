"""Let a policy play, and learn what each turn contributes to the outcome (SPA-RL, arXiv:2505.20732)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mmrl.build.datasets import load_samples
from mmrl.config.train import TrainConfig
from mmrl.errors import ConfigError
from mmrl.rewards.learned.progress_estimator import (
    EstimatorShape,
    PlayedEpisode,
    PlayedTurn,
    ProgressEstimator,
    explained_variance,
    fit_progress,
)
from mmrl.rollout import EpisodeRecord
from mmrl.workflows.played_episodes import Progress, no_progress, played_episodes

TEST_SHARE = 0.2
"""The share of prompts whose episodes the estimator is measured on and not fitted to."""


@dataclass(frozen=True)
class EstimatedProgress:
    """An estimator, and what it was fitted to."""

    estimator: ProgressEstimator
    episodes: int
    success: float
    """The mean outcome."""
    explained: float
    """The share of the variance of outcomes that it explains in held-out episodes."""


def estimate_progress(config: TrainConfig, key: str, progress: Progress = no_progress) -> EstimatedProgress:
    """Let the policy of a configuration play `data.group_size` episodes of each sample, and fit an estimator.

    Args:
        config: with the policy, the environment and `data.path`.
        key: of the outcome, a truth value or a number in [0, 1], that contributions are to sum to.
        progress: is called with the calls that are done, and their number.

    Raises:
        ConfigError: there is no environment, or its outcome has no such key.
        RewardError: all episodes came to the same.
    """
    if config.environment is None:
        raise ConfigError("environment: progress is that of episodes: name the environment that is played")
    samples = load_samples(config.data.path, config.media)
    fitted, unseen = list[PlayedEpisode](), list[PlayedEpisode]()
    kept_back = {sample.id for sample in samples[: math.ceil(TEST_SHARE * len(samples))]}
    for sample, record in played_episodes(config, samples, progress):
        part = unseen if sample.id in kept_back else fitted
        part.append(played_episode(sample.last_text, record, key))
    estimator = fit_progress(fitted, EstimatorShape(), seed=config.seed)
    outcomes = [episode.outcome for episode in (*fitted, *unseen)]
    return EstimatedProgress(
        estimator, len(outcomes), sum(outcomes) / len(outcomes), explained_variance(estimator, unseen)
    )


def played_episode(prompt: str, record: EpisodeRecord, key: str) -> PlayedEpisode:
    """Return the texts of an episode, and its outcome.

    Raises:
        ConfigError: the outcome has no such key, or its value is no number in [0, 1].
    """
    value = record.outcome.get(key)
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        known = ", ".join(sorted(map(str, record.outcome)))
        raise ConfigError(f"--key {key}: its value is {value!r:.40}, not a number in [0, 1]; the outcome has {known}")
    answers = [*(observation.text for observation in record.observations), ""]
    turns = tuple(PlayedTurn(text, answer) for text, answer in zip(record.texts, answers, strict=False))
    return PlayedEpisode(prompt, turns, float(value))
