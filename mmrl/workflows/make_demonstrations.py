"""`mmrl data demonstrate`: let a policy play, and keep the episodes that were a success as demonstrations.

A model that imitates its own checked episodes makes better ones in the next round (the self-evolving production of
trajectories in GUI-Owl, arXiv:2508.15144). Whether an episode is kept is decided by its environment alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mmrl.build.datasets import load_samples
from mmrl.config.train import TrainConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.rollout import EpisodeRecord
from mmrl.workflows.played_episodes import Progress, no_progress, played_episodes


@dataclass(frozen=True)
class MadeDemonstrations:
    """Samples with demonstrations that a policy made itself."""

    samples: tuple[Sample, ...]
    """The samples that were solved, each with its shortest successful episode as the demonstration."""
    prompts: int
    """The number of samples that were played."""
    success: float
    """The share of all episodes that were a success."""


def make_demonstrations(
    config: TrainConfig, key: str = "success", progress: Progress = no_progress
) -> MadeDemonstrations:
    """Let the policy of a configuration play `data.group_size` episodes of each sample, and keep what succeeded.

    Args:
        config: with the policy, the environment and `data.path`.
        key: of the outcome; an episode is a success if its value is 1.
        progress: is called with the calls that are done, and their number.

    Raises:
        ConfigError: there is no environment, its outcome has no such key, or no episode was a success.
    """
    if config.environment is None:
        raise ConfigError("environment: demonstrations are episodes here: name the environment that is played")
    loaded = load_samples(config.data.path, config.media)
    best: dict[str, EpisodeRecord] = {}
    successes = count = 0
    for sample, record in played_episodes(config, loaded, progress):
        if key not in record.outcome:
            known = ", ".join(sorted(map(str, record.outcome)))
            raise ConfigError(f"--key {key}: the outcome has no such key; it has {known}")
        count += 1
        if float(record.outcome[key]) == 1:
            successes += 1
            known_best = best.get(sample.id)
            if known_best is None or len(record.texts) < len(known_best.texts):
                best[sample.id] = record
    if not best:
        raise ConfigError(f"{config.data.path}: no episode was a success, so there is nothing to demonstrate")
    made = tuple(
        replace(sample, demonstration={"turns": list(best[sample.id].texts)}) for sample in loaded if sample.id in best
    )
    return MadeDemonstrations(made, len(loaded), successes / max(count, 1))
