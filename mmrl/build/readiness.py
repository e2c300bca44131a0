"""Find what would stop a training: a model's folder that is not there, rewards, and data that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmrl.build.datasets import load_samples
from mmrl.build.policies import missing_folder
from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.algorithms.mixture import MixConfig
from mmrl.config.train import TrainConfig
from mmrl.data.prompts import check_enough
from mmrl.errors import ConfigError, DataError
from mmrl.rewards.core.registry import reward_class
from mmrl.rewards.core.reward_errors import RewardError


def missing(config: TrainConfig) -> list[str]:
    """Return one message for each reward and data file of a run that would stop its training, with its key.

    So does a policy whose model is a folder that is not there. Rewards are looked up with their arguments and
    not built, so no weights are loaded. Data sets in folders and of the Hub are not read.
    """
    found = [problem] if (problem := missing_folder(config.policy)) else []
    for key, name, args in _rewards(config):
        try:
            reward_class(name, args)
        except (RewardError, ConfigError) as err:
            found.append(f"{key}: {err}")
    for key, path in _files(config):
        try:
            samples = load_samples(path)
            if key == "data.path" and not config.stages:  # stages may have fewer groups
                check_enough(samples, config.data.groups)
        except (DataError, ConfigError) as err:
            found.append(f"{key}: {err}")
    return found


def _rewards(config: TrainConfig) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the key, the name and the arguments of each reward."""
    for number, reward in enumerate(config.rewards):
        yield f"rewards.{number}", reward.name, reward.args
    for number, name in enumerate(config.evaluation.rewards):
        yield f"evaluation.rewards.{number}", name, {}
    for source, rewards in config.scoring.by_source.items():
        for number, choice in enumerate(rewards):
            yield f"scoring.by_source.{source}.{number}", choice.name, choice.args


def _files(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Yield the keys and paths of all but folders and data sets of the Hub, each path once."""
    data = config.data
    paths = {"data.path": data.path, "data.validation": data.validation, "data.heldout": data.heldout}
    paths |= {} if config.pretraining is None else {"pretraining.path": config.pretraining.path}
    paths |= _paths_of_terms("algorithm", config.algorithm)
    for number, stage in enumerate(config.stages):
        paths |= {f"stages.{number}.data.path": stage.data.path}
        paths |= _paths_of_terms(f"stages.{number}.algorithm", stage.algorithm)
    seen = set()
    for key, path in paths.items():
        if path and path not in seen and not path.startswith("hf:") and not Path(path.partition(":")[0]).is_dir():
            seen.add(path)
            yield key, path


def _paths_of_terms(key: str, algorithm: AlgorithmConfig | None) -> dict[str, str | None]:
    """Return the paths of the terms of a mix by their keys; `key` is that of the mix."""
    terms = algorithm.terms if isinstance(algorithm, MixConfig) else ()
    return {f"{key}.terms.{number}.path": getattr(term, "path", None) for number, term in enumerate(terms)}
