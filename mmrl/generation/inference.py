"""Sampling with a trained model: RL guidance, LoRA strength, guidance by rewards, best of N. Nothing here trains.

    pipeline.load_lora_weights("runs/mine/seed-0")
    with rl_guidance(pipeline, scale=1.5):
        pipeline("a red circle")
    with lora_strength(pipeline, 0.7):
        pipeline("a red circle")

These two support any diffusers pipeline with a known denoiser, and restore the pipeline on exit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from diffusers import DiffusionPipeline
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor

from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, UnsupportedError
from mmrl.finetuning.trainable import adapters_disabled
from mmrl.generation.diffusion.denoiser_hook import Guiders, find_denoisers
from mmrl.generation.diffusion.differentiable_loop import BackpropLoop
from mmrl.generation.diffusion.loops import PartialReplayLoop
from mmrl.generation.diffusion.noise_levels import signal_of, to_flow_latents
from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
from mmrl.generation.diffusion.pytree import map_leaves
from mmrl.generation.diffusion.recording import Recording, join
from mmrl.generation.diffusion.replay_cache import replaced_attributes
from mmrl.generation.diffusion.scheduler_families import VEFamily
from mmrl.generation.diffusion.scheduler_hook import SchedulerStep
from mmrl.policy import BackpropSteps
from mmrl.rewards.core.latent_reward import LatentReward
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput, reward_input
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest

Base: TypeAlias = DiffusionPipeline | Callable[[], AbstractContextManager[None]]
"""The model before training: a separate pipeline, or a function whose context restores it (`policy.reference`)."""


@contextmanager
def rl_guidance(pipeline: DiffusionPipeline, scale: float, base: Base | None = None) -> Iterator[None]:
    """While open, denoisers return base + scale * (tuned - base): RL guidance (RLG, arXiv:2508.21016).

    A scale between 0 and 1 interpolates between the two models, above 1 it extrapolates beyond the trained one; in the
    paper it rescales the KL coefficient of training. 0 and 1 are exactly the base and the trained model, at the cost of
    one denoiser call; other scales need two. Classifier-free guidance acts on the result.

    Args:
        base: the model before training; None: this pipeline without its LoRA.

    Raises:
        ConfigError: `base` is None and no LoRA is loaded, or the two pipelines have different denoisers.
    """
    denoisers = find_denoisers(pipeline)
    others: dict[str, Any] = dict(denoisers)
    as_base: Callable[[], AbstractContextManager[None]]
    if base is None:
        layers = lora_layers(pipeline, "rl_guidance has no base to compare with: load a LoRA, or pass the base")
        as_base = lambda: adapters_disabled(layers)  # noqa: E731
    elif isinstance(base, DiffusionPipeline):
        others, as_base = dict(find_denoisers(base)), nullcontext
        if missing := ", ".join(denoisers.keys() ^ others.keys()):
            raise ConfigError(f"rl_guidance: {missing} is in only one of the two pipelines")
    else:
        as_base = base

    def guided(tuned: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if scale == 1:
                return tuned(*args, **kwargs)
            with as_base():
                before = plain(*args, **kwargs)
            return before if scale == 0 else extrapolate_outputs(before, tuned(*args, **kwargs), scale)

        return call

    forwards = [(each, "forward", guided(each.forward, others[name].forward)) for name, each in denoisers.items()]
    with replaced_attributes(forwards):
        yield


def extrapolate_outputs(base: Any, tuned: Any, scale: float) -> Any:
    """Return base + scale * (tuned - base) for every tensor of two equal structures, computed in float32."""
    before: list[Tensor] = []
    map_leaves(Tensor, before.append, base)
    following = iter(before)

    def mix(after: Tensor) -> Tensor:
        start = next(following)
        if not after.is_floating_point():
            return after
        return (start.float() + scale * (after.float() - start.float())).to(after.dtype)

    return map_leaves(Tensor, mix, tuned)


@contextmanager
def lora_strength(pipeline: DiffusionPipeline, strength: float) -> Iterator[None]:
    """While open, the denoisers' LoRA is scaled by `strength`: 0 is the base model, 1 the trained model.

    Raises:
        ConfigError: no LoRA is loaded.
    """
    layers = lora_layers(pipeline, "the pipeline has no LoRA whose strength could be set (a whole model was trained?)")
    if strength == 0:
        with adapters_disabled(layers):  # exact, unlike a factor of 0
            yield
        return
    before = [dict(layer.scaling) for layer in layers]
    try:
        for layer, scaling in zip(layers, before, strict=True):
            layer.scaling = {adapter: scale * strength for adapter, scale in scaling.items()}
        yield
    finally:
        for layer, scaling in zip(layers, before, strict=True):
            layer.scaling = scaling


def lora_layers(pipeline: DiffusionPipeline, otherwise: str) -> list[Any]:
    """Return the peft layers of the denoisers.

    Raises:
        ConfigError: there are none; `otherwise` is its message.
    """
    modules = [module for denoiser in find_denoisers(pipeline).values() for module in denoiser.modules()]
    if layers := [module for module in modules if isinstance(module, BaseTunerLayer)]:
        return layers
    raise ConfigError(otherwise)


def guided_rollout(
    policy: PipelinePolicy, requests: Sequence[RolloutRequest], seed: int, rewards: Sequence[tuple[Reward, float]]
) -> Rollout:
    """Return a rollout that the gradient of weighted rewards guides from its second step on.

    Flow-NRG (arXiv:2501.13918) samples from p(x) exp(sum of w r(x)): the score at each noise level is shifted by the
    gradient of the weighted rewards. A reward of noisy latents (`LatentReward`) is read at each step, as in the paper.
    Any other differentiable reward scores the image that the denoiser predicts from them in one step, and the gradient
    flows back through autoencoder and denoiser: a guided step is then one replay of the pipeline up to this step, at
    the cost of about three steps. The first step is not guided: pure noise predicts no image.

    Args:
        rewards: differentiable rewards, or rewards of noisy latents, with their weights w.

    Raises:
        RewardError: a reward has no gradient.
        UnsupportedError: the pipeline cannot be differentiated, denoises several latents together, or the noise level
            of its latents is not known.
    """
    of_latents = [(reward, weight) for reward, weight in rewards if isinstance(reward, LatentReward)]
    rewards = [(reward, weight) for reward, weight in rewards if not isinstance(reward, LatentReward)]
    if missing := ", ".join(reward.name for reward, _ in rewards if not reward.differentiable):
        raise RewardError(f"{missing} has no gradient for guidance; `mmrl rewards show NAME` says which have one")
    with policy.keep_latents(), torch.no_grad():
        rollout = policy.rollout(requests, seed)
    recording: Recording = rollout.recording
    rows = zip(rollout.samples, rollout.media, rollout.group_index.tolist(), strict=True)
    inputs = [reward_input(sample, media, group, sample.id) for sample, media, group in rows]
    if not rewards:
        media = policy.run_to_media(LatentGuidedLoop(policy.guiders, recording, of_latents, inputs), recording)
        return replace(rollout, media=media, clean=join(recording.next_latents[-1]))
    for number in range(1, len(recording.next_latents)):
        loop = GuidedStepLoop(policy.guiders, recording, number)
        with torch.enable_grad():
            pictures = policy.run_to_tensor(loop, recording)
            if pictures.ndim != 4:
                raise UnsupportedError("rewards are not differentiated through videos yet")
            total = pictures.new_zeros(())
            for reward, weight in rewards:
                total = total + weight * reward.spec.sign * reward.score_tensor(pictures, inputs).sum().to(pictures)
            gradients: Sequence[Tensor | None] = torch.autograd.grad(total, loop.leaves, allow_unused=True)
        if all(gradient is None for gradient in gradients):
            raise UnsupportedError(f"{type(policy.pipeline).__name__} cuts the graph between latents and pictures")
        if of_latents:
            gradients = [_sum(*pair) for pair in zip(gradients, loop.latent_gradients(of_latents, inputs), strict=True)]
        recording.next_latents[number] = loop.guided_latents(gradients)
    media = policy.run_to_media(ReplayAllLoop(policy.guiders, recording), recording)
    return replace(rollout, media=media, clean=join(recording.next_latents[-1]))


@contextmanager
def reward_guidance(policy: PipelinePolicy, rewards: Sequence[tuple[Reward, float]]) -> Iterator[None]:
    """While open, `policy.rollout` is `guided_rollout` with these rewards and weights."""
    plain = policy.rollout

    def guided(requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        with torch.enable_grad(), replaced_attributes([(policy, "rollout", plain)]):  # evaluations are without
            return guided_rollout(policy, requests, seed, rewards)

    with replaced_attributes([(policy, "rollout", guided)]):
        yield


class GuidedStepLoop(BackpropLoop):
    """A loop that computes one step from leaf latents, and lets the pipeline decode the image that it predicts."""

    def __init__(self, guiders: Guiders, recording: Recording, number: int) -> None:
        skipped = len(recording.next_latents) - 1 - number
        super().__init__(guiders, recording, BackpropSteps(count=1, num_skipped_last=skipped), torch.empty(0))
        self.leaves: list[Tensor] = []
        self._following: list[Tensor] = []
        self._gains: list[float] = []
        self._steps: list[SchedulerStep] = []

    def advance(self, step: SchedulerStep) -> Tensor:
        latents = super().advance(step)
        if self.step == self.first - 1:
            latents = latents.requires_grad_()
            self.leaves.append(latents)
        elif self.step == self.first:
            self._following.append(self.differentiable_step(step).detach())
            self._gains.append(steering_gain(step))
            self._steps.append(replace(step, sample=step.sample.detach()))
            if self.latent_stream == len(self.leaves) - 1:
                self.recording.guidance[self.step] = self._guiders.read()
        return latents

    def latent_gradients(
        self, rewards: Sequence[tuple[LatentReward, float]], inputs: Sequence[RewardInput]
    ) -> list[Tensor]:
        """Return the gradient of rewards of noisy latents for the stream; see `latent_gradient`."""
        check_single_stream(len(self._steps))
        return [latent_gradient(rewards, step, inputs) for step in self._steps]

    def guided_latents(self, gradients: Sequence[Tensor | None]) -> list[Tensor]:
        """Return x' of each stream, shifted along the gradient of the rewards."""
        streams = zip(self._following, self._gains, gradients, strict=True)
        return [x if grad is None else (x.float() + gain * grad.float()).to(x.dtype) for x, gain, grad in streams]


class LatentGuidedLoop(BackpropLoop):
    """A loop that repeats a rollout, in which rewards of noisy latents guide every step but the first.

    The recording gets the guided latents.
    """

    def __init__(
        self,
        guiders: Guiders,
        recording: Recording,
        rewards: Sequence[tuple[LatentReward, float]],
        inputs: Sequence[RewardInput],
    ) -> None:
        super().__init__(guiders, recording, BackpropSteps(), torch.empty(0))
        self._rewards, self._inputs = rewards, inputs
        check_single_stream(len(recording.next_latents[0]))

    def needs_grad(self) -> bool:
        return False

    def advance(self, step: SchedulerStep) -> Tensor:
        following = self.differentiable_step(step)
        if self.step:
            shift = steering_gain(step) * latent_gradient(self._rewards, step, self._inputs)
            following = (following.float() + shift.float()).to(step.sample.dtype)
        self.recording.next_latents[self.step] = [following.clone()]
        self.recording.guidance[self.step] = self._guiders.read()
        return following


def latent_gradient(
    rewards: Sequence[tuple[LatentReward, float]], step: SchedulerStep, inputs: Sequence[RewardInput]
) -> Tensor:  # [B, ...] float32
    """Return the gradient of weighted rewards of noisy latents at a step's x.

    A reward counts up to the highest noise level that it knows; below the lowest one it scores as at that.
    """
    with torch.enable_grad():
        x = step.sample.detach().float().requires_grad_()
        noisy, sigma = to_flow_latents(replace(step, sample=x))
        total = x.sum() * 0.0
        for reward, weight in rewards:
            low, high = reward.noise
            if sigma <= high:
                scores = reward.score_latents(noisy, max(sigma, low), inputs)
                total = total + weight * reward.spec.sign * scores.sum().to(x)
        return torch.autograd.grad(total, x)[0]


def check_single_stream(streams: int) -> None:
    """Raise UnsupportedError if a pipeline denoises several latents together."""
    if streams > 1:
        raise UnsupportedError(f"the pipeline denoises {streams} latents together, and a reward of noisy latents reads "
                               "one: guide by rewards of the pictures")  # fmt: skip


def _sum(gradient: Tensor | None, other: Tensor) -> Tensor:
    return other if gradient is None else gradient.float() + other


class ReplayAllLoop(PartialReplayLoop):
    """A loop that replays every step."""

    def is_computed(self, step: int) -> bool:
        return False

    def advance(self, step: SchedulerStep) -> Tensor:
        return self.replay_step()


def steering_gain(step: SchedulerStep) -> float:
    """Return the shift of x' per unit of the reward's gradient at x.

    By Tweedie's formula a score shifted by g shifts x_0 by sigma² / signal g; x' = signal' x_0 + sigma' noise, where
    noise is (x - signal x_0) / sigma. For flows that is the paper's sigma / (1 - sigma) g on the velocity.
    """
    sigma, sigma_next = step.levels[step.index]
    signal, signal_next = signal_of(step.family, sigma), signal_of(step.family, sigma_next)
    gain = (signal_next - sigma_next * signal / sigma) * sigma**2 / signal
    return gain / (signal * signal_next) if isinstance(step.family, VEFamily) else gain  # ve: x divided by the signal


@dataclass(frozen=True)
class Ranking:
    """The scores of images or videos, and their order within each group."""

    scores: list[dict[str, float]]  # of each medium, by reward, `total` last; NaN = could not be scored
    order: list[list[int]]  # for each group, in the order of first members: its rows from the best to the worst


def rank(samples: Sequence[Sample], media: Sequence[Any], groups: Sequence[int], suite: RewardSuite) -> Ranking:
    """Score all media and order each group by the total. Unscored media come last; ties keep their order.

    Raises:
        TooFewScored: less than `suite.min_valid_share` could be scored.
    """
    rows = zip(samples, media, groups, strict=True)
    output = suite.score([reward_input(sample, made, group, sample.id) for sample, made, group in rows])
    suite.check_valid_share(output)
    names = [*(name for name in output.values if name != "total"), "total"]
    scores = [{name: float(output.values[name][row]) for name in names} for row in range(len(groups))]
    total = np.nan_to_num(output.values["total"].astype(float), nan=-np.inf)
    members = {group: [row for row, each in enumerate(groups) if each == group] for group in groups}
    return Ranking(scores, [sorted(each, key=lambda row: -total[row]) for each in members.values()])
