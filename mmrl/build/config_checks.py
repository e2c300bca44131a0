"""Checks of a whole configuration before any model is loaded, also for several processes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from mmrl.build.equal_calls import unequal_calls
from mmrl.build.hacking import hacking_errors
from mmrl.build.policies import policy_class
from mmrl.build.training_setup import learns_weights, objective_class
from mmrl.config.algorithms.drawn_texts import JointGRPOConfig
from mmrl.config.algorithms.mixture import MixConfig
from mmrl.config.algorithms.policy_gradient import PolicyGradientConfig
from mmrl.config.algorithms.reward_gradient import RewardGradientConfig
from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.denoising_validation import transition_errors
from mmrl.config.named_models import kind_of, sampling_of, untrained_errors
from mmrl.config.rewards import REMOTE
from mmrl.config.sampling import SamplingConfig
from mmrl.config.train import StageConfig, TrainConfig
from mmrl.config.validation import validation_errors
from mmrl.errors import ConfigError
from mmrl.rewards.core.cascade import stopped_value
from mmrl.rewards.core.registry import BUILT_IN, reward_class
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import Scope
from mmrl.training.objectives.base import check_compatible


def check(config: TrainConfig) -> None:
    """Check a whole configuration; no model is loaded.

    Raises:
        ConfigError: sizes that do not divide, settings that cannot work together, or an objective that needs a
            capability that the policy lacks.
    """
    BatchPlan.of(config)
    policy = policy_class(config.policy)
    staged = {f"stages.{number}": config.staged(stage) for number, stage in enumerate(config.stages)}
    staged |= _drawn(config)
    pretraining = [] if config.pretraining is None else [config.pretraining.algorithm]
    algorithms = [(algorithm, policy) for algorithm in (config.algorithm, *pretraining)]
    algorithms += [(each.algorithm, policy_class(each.policy)) for each in staged.values()]
    for algorithm, learner in algorithms:
        check_compatible(objective_class(algorithm, learner.capabilities), learner, algorithm.experience)
    if errors := [
        *validation_errors(config, policy.capabilities),
        *_other_kind_errors(config, staged),
        *_frozen_painter_errors(config),
        *untrained_errors(config),
        *_flat_reward_errors(config),
        *_cascaded_reward_errors(config),
        *_learned_weight_errors(config),
        *hacking_errors(config),
        *_original_prompt_errors(config),
        *(_overlapped_reward_errors(config) if config.run.overlap.is_on else ()),
    ]:
        raise ConfigError("\n".join(errors))


def _drawn(config: TrainConfig) -> dict[str, TrainConfig]:
    """Return the configuration that the painter of drawn texts learns with, by the key of its algorithm."""
    joint = config.algorithm
    if not isinstance(joint, JointGRPOConfig) or not _has_painter(config, joint, trained=True):
        return {}
    return {"algorithm.picture": config.staged(StageConfig(iterations=1, train=joint.painter, algorithm=joint.picture))}


def _has_painter(config: TrainConfig, joint: JointGRPOConfig, trained: bool) -> bool:
    """Return True if the run has the painter that the algorithm names, and it is trained, or is not."""
    model = config.models.get(joint.painter)
    return model is not None and kind_of(config, joint.painter) == "pipeline" and model.trained is trained


def _frozen_painter_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each problem of the sampling of a painter that draws and does not learn.

    It makes no decisions that are learnt from, so it may draw without chance (`ode`).
    """
    joint = config.algorithm
    if isinstance(joint, JointGRPOConfig) and _has_painter(config, joint, trained=False):
        sampling = sampling_of(config, joint.painter)
        assert isinstance(sampling, SamplingConfig)
        yield from (f"models.{joint.painter}.{error}" for error in transition_errors(sampling))


def _original_prompt_errors(config: TrainConfig) -> Iterator[str]:
    """Yield a message if evaluations are to draw after the user's prompt, too, and draw no texts."""
    if config.evaluation.original_prompt and not isinstance(config.algorithm, JointGRPOConfig):
        yield (
            f"evaluation.original_prompt: {config.algorithm.name} draws no texts that a policy writes: leave it out, "
            "or choose joint_grpo"
        )


def _other_kind_errors(config: TrainConfig, staged: Mapping[str, TrainConfig]) -> Iterator[str]:
    """Yield one message for each setting of a stage that a model of another kind than the policy lacks.

    `staged` has the configuration of each by the key that messages begin with.
    """
    for key, each in staged.items():
        if each.policy.kind != config.policy.kind:
            capabilities = policy_class(each.policy).capabilities
            known = set(validation_errors(each if key.startswith("stages") else config))  # which are reported already
            found = validation_errors(each, capabilities)
            yield from (f"{key}: {error}" for error in found if error not in known)


def check_processes(config: TrainConfig, count: int) -> None:
    """Check that a configuration can be trained by `count` processes, two or more; no model is loaded.

    Raises:
        ConfigError: a reward keeps a state between batches, of which each process would know its own part alone, or
            learns and saves no state that the processes could pass on;
            `run.place` divides what an update needs whole; or it is `strict`, and the processes would not make equally
            many calls of the model.
    """
    errors = list(_unshared_reward_errors(config))
    if config.run.place == "strict":
        errors += unequal_calls(config, count)
    if config.run.overlap.stream:
        errors.append(f"run.overlap.stream: it trains with one process, and there are {count}: leave it out")
    if config.run.overlap.interrupt:
        errors.append(f"run.overlap.interrupt: it trains with one process, and there are {count}: leave it out")
    if (place := config.run.place) not in ("auto", "replicas"):
        if config.run.overlap.is_on:
            errors.append(f"run.place: {place} divides the parameters that run.overlap copies: choose replicas")
        algorithms = [config.algorithm, *(config.staged(stage).algorithm for stage in config.stages)]
        if any(isinstance(each, MixConfig) and len(each.terms) > 1 for each in algorithms):
            errors.append(f"run.place: {place} divides the gradients of a mix's terms: choose replicas")
        if any(map(learns_weights, algorithms)):
            errors.append(f"run.place: {place} divides the gradients of channels (learn): choose replicas")
        if config.models:
            errors.append(f"run.place: {place} divides the policy, and models beside it need it whole: replicas")
    if errors:
        raise ConfigError("\n".join(errors))


def _overlapped_reward_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each reward that keeps a state between batches."""
    for i, reward in enumerate(config.rewards):
        if reward_class(reward.name).state_dict is not Reward.state_dict:
            yield (
                f"rewards.{i}.name: {reward.name} keeps a state between batches, and another thread samples with "
                "run.overlap: take lag 0, or leave it out"
            )


def _unshared_reward_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each reward that several processes would know differently."""
    for i, reward in enumerate(config.rewards):
        known = reward_class(reward.name)
        saves = known.state_dict is not Reward.state_dict
        if saves and not known.learns:
            yield (
                f"rewards.{i}.name: {reward.name} keeps a state between batches, and each process would have another "
                "one: train with one process, or leave it out"
            )
        elif known.learns and not saves:
            yield (
                f"rewards.{i}.name: {reward.name} learns and has no state_dict, which passes on to other processes "
                "what it learns: train with one process, or leave it out"
            )


def _cascaded_reward_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each reward with `after` that cannot leave out the answers that are stopped."""
    for i, reward in enumerate(config.rewards):
        if not reward.after:
            continue
        known = reward_class(reward.name)
        if known.scope is not Scope.SAMPLE:
            yield f"rewards.{i}.after: {reward.name} compares all answers to a prompt: leave it out"
        elif reward.name == REMOTE:
            continue  # its service states the range, which is checked once it is loaded
        elif not math.isfinite(stopped_value(known, reward.weight)):
            yield (
                f"rewards.{i}.after: answers that are stopped get the worst value of {reward.name}, which has none: "
                "leave it out, or choose a reward with a range"
            )


def _learned_weight_errors(config: TrainConfig) -> Iterator[str]:
    """Yield a message if weights of channels are learnt by an algorithm whose gradient is not linear in advantages."""
    if learns_weights(config.algorithm) and not isinstance(config.algorithm, PolicyGradientConfig):
        yield (
            f"algorithm.advantage.channels: learn adds up gradients of channels, which {config.algorithm.name} does "
            "not: choose grpo"
        )


def _flat_reward_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each reward without a gradient, where the algorithm follows the gradient of rewards."""
    if not isinstance(config.algorithm, RewardGradientConfig):
        return
    name = config.algorithm.name
    for i, reward in enumerate(config.rewards):
        if reward.gate is not None:
            yield f"rewards.{i}.gate: a gate has no gradient, which {name} follows: leave it out, or choose grpo"
        elif reward.counts_if is not None:
            yield (
                f"rewards.{i}.counts_if: {name} follows the gradient of each reward by itself: leave it out, "
                "or choose grpo"
            )
        elif reward.after:
            yield f"rewards.{i}.after: {name} follows the gradient of each reward by itself: leave it out"
        elif reward.at_least is not None:
            yield f"rewards.{i}.at_least: a constraint acts on advantages, which {name} has none of: leave it out"
        elif reward.weight and not config.algorithm.follows(reward_class(reward.name)):
            known = ", ".join(sorted(each for each in BUILT_IN if config.algorithm.follows(reward_class(each))))
            yield (
                f"rewards.{i}.name: {reward.name} {config.algorithm.lacking}, and {name} follows the gradient of its "
                f"rewards: choose one of {known}, set its weight to 0 to measure it, or choose grpo"
            )
