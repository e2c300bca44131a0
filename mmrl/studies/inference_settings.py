"""Settings of an arm that begin with `inference.`: they are checked before training, and evaluate what was trained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mmrl.build.config_checks import check
from mmrl.build.policies import without_exploration
from mmrl.config.loading.load import dump_config, parse_config
from mmrl.config.loading.overrides import COMMAND_LINE
from mmrl.config.train import TrainConfig
from mmrl.errors import ConfigError
from mmrl.rewards.core.registry import reward_class
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.suggestions import did_you_mean

OF_PIPELINES = ("rlg", "lora_strength", "guide")
"""Settings of a pipeline's denoisers (`mmrl.generation.inference`)."""
OF_EVALUATIONS = ("logits", "heads", "original_prompt")
"""Settings that evaluations have under the same names."""
SETTINGS = (*OF_PIPELINES, *OF_EVALUATIONS, "sampling")


def check_inference(config: TrainConfig, settings: Mapping[str, Any]) -> None:
    """Check the settings with which a trained arm is evaluated; nothing is loaded.

    Raises:
        ConfigError: there is no such setting, its value is wrong, or the arm's policy cannot be evaluated with it.
    """
    if unknown := sorted(settings.keys() - set(SETTINGS)):
        hint = did_you_mean(unknown[0], SETTINGS) or f"there are {', '.join(SETTINGS)}"
        raise ConfigError(f"inference.{unknown[0]} is no setting of inference: {hint}")
    kind, train = config.policy.kind, config.policy.train
    for name in [each for each in OF_PIPELINES if each in settings]:
        if kind != "pipeline":
            raise ConfigError(f"inference.{name}: policies of kind {kind} have no denoisers: leave it out")
        weights = settings[name] if name == "guide" else {name: settings[name]}
        if not isinstance(weights, dict) or not all(map(_is_number, weights.values())):
            wanted = "a map of weights by reward" if name == "guide" else "a number"
            raise ConfigError(f"inference.{name}: got {settings[name]!r}, expected {wanted}")
    if "lora_strength" in settings and train != "lora":
        raise ConfigError(f"inference.lora_strength: there is no LoRA with policy.train: {train}; use inference.rlg")
    for reward in settings.get("guide", ()):
        try:
            reward_class(reward)
        except (RewardError, ConfigError) as err:
            raise ConfigError(f"inference.guide: {err}") from None
    evaluated_with(config, settings)


def evaluated_with(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration whose evaluations have these settings of sampling, logits, heads and prompts.

    Raises:
        ConfigError: a key does not exist, a value is wrong, or the policy cannot be evaluated so.
    """
    changes = {f"evaluation.{name}": settings[name] for name in OF_EVALUATIONS if name in settings}
    if sampling := settings.get("sampling"):
        own = config.evaluation.sampling or without_exploration(config.sampling)
        config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"sampling": own})})
        changes |= {f"evaluation.sampling.{key}": value for key, value in dict(sampling).items()}
    if not changes:
        return config
    overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    try:
        changed = parse_config(dump_config(config), config.name, overrides)
        check(changed)
    except ConfigError as err:
        text = str(err).replace(f"{COMMAND_LINE}: ", "").replace("evaluation.", "inference.")
        raise ConfigError(text) from None
    return changed


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
