"""Cross-field validation of `run.overlap`: what cannot be sampled beside an update, and what cannot be streamed."""

from __future__ import annotations

from collections.abc import Iterator

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.preference import OnlineDPOConfig
from mmrl.config.algorithms.reward_gradient import RewardGradientConfig
from mmrl.config.data import FixedGroupSamplingConfig
from mmrl.config.rewards import constrained
from mmrl.config.sampling import SamplingConfig
from mmrl.config.train import TrainConfig


def overlap_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each setting that cannot work with `run.overlap`."""
    overlap = config.run.overlap
    if overlap.interrupt:
        yield from _interrupt_errors(config)
    if not overlap.is_on:
        return
    key, algorithm, sampling = f"run.overlap.{'stream' if overlap.stream else 'lag'}", config.algorithm, config.sampling
    if algorithm.experience != "rollouts":
        yield f"{key}: {algorithm.name} learns from {algorithm.experience} and samples no answers: leave it out"
        return
    if config.pretraining is not None:
        yield f"{key}: pretraining changes the objective during the run: train its stage in another run first"
    if config.stages:
        yield f"{key}: stages change the objective during the run: train each in another run first"
    if isinstance(algorithm, RewardGradientConfig):
        yield f"{key}: {algorithm.name} differentiates through the steps of the rollout: leave it out"
    if (source := getattr(algorithm, "samples_from", "policy")) != "policy":
        yield f"{key}: with algorithm.samples_from {source}, the sampling parameters never change: leave it out"
    if isinstance(sampling, SamplingConfig) and sampling.transition.learned is not None:
        yield f"{key}: sampling.transition.learned trains noise levels, which a rollout records"
    if isinstance(sampling, SamplingConfig) and sampling.transition.name == "native":
        yield f"{key}: sampling.transition.name native replaces a function of diffusers, which two threads share"
    if overlap.stream:
        yield from _stream_errors(config)


def _interrupt_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each setting with which an answer cannot go on under new weights."""
    key, servers, overlap = "run.overlap.interrupt", config.run.servers, config.run.overlap
    if overlap.stream or not overlap.lag:
        wanted = "leave stream out" if overlap.stream else "set run.overlap.lag to 1 or more"
        yield f"{key}: answers are written during an update with a lag alone: {wanted}"
    if servers is None:
        yield f"{key}: in process an answer ends under the weights that it began with: name run.servers"
    elif servers.weights == "lora":
        yield (
            f"{key}: a server ends an answer under the adapter that it began with: choose policy.train full and "
            "run.servers.weights folder, or leave it out"
        )
    if config.environment is not None:
        yield f"{key}: the turns of an episode are written one after another, each under one version: leave it out"


def _stream_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each setting that needs all answers of an iteration at once."""
    key, data, training = "run.overlap.stream", config.data, config.training
    for name, count in (("updates", training.updates), ("epochs", training.epochs)):
        if count > 1:
            yield f"{key}: an iteration is one update, so training.{name} must be 1, not {count}"
    for name, is_set in (
        ("group_sampling", not isinstance(data.group_sampling, FixedGroupSamplingConfig)),
        ("replay", data.replay is not None),
        ("weighting", data.weighting is not None),
        ("demonstrations", data.demonstrations is not None),
        ("starts", data.starts is not None),
    ):
        if is_set:
            yield f"{key}: data.{name} waits for all answers of an iteration: leave one of the two out"
    if isinstance(config.algorithm, OnlineDPOConfig):
        yield f"{key}: {config.algorithm.name} chooses pairs among all answers of an iteration: leave one out"
    advantage = getattr(config.algorithm, "advantage", None)
    batchwise = isinstance(advantage, AdvantageConfig) and (
        advantage.std == "batch"
        or advantage.baseline not in ("group", "tree")
        or getattr(advantage, "front", "group") == "batch"
    )
    if batchwise or not isinstance(advantage, AdvantageConfig):
        yield f"{key}: algorithm.advantage compares answers of the whole batch: choose one relative to groups, as grpo"
    if constrained(config.rewards):
        yield f"{key}: the multiplier of a constraint (rewards: at_least) follows from the whole batch: leave one out"
