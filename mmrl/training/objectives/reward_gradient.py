"""Ascent on differentiable rewards: ReFL, DRaFT and AlignProp, and latent reward feedback without a picture."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.algorithms.forward_process import interpolate, velocity_mse
from mmrl.config.algorithms.reward_gradient import LatentReFLConfig, RewardGradientConfig
from mmrl.config.sampling import SamplingConfig
from mmrl.errors import ConfigError
from mmrl.policy import BackpropSteps, Capability, DecodingPolicy, VelocityPolicy
from mmrl.rewards.core.latent_reward import LatentReward
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rewards.learned.learned_latents import level_in_part, noised
from mmrl.seeds import fold_in
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective, ObjectiveInputs
from mmrl.training.objectives.replay_passes import backpropagate
from mmrl.training.objectives.velocity_regression import EARLIEST, LATEST
from mmrl.training.rollouts.collect import reward_inputs


@dataclass(frozen=True)
class DifferentiableReward:
    """A differentiable reward and what its value is multiplied with (below 0 where lower values are better)."""

    reward: Reward
    weight: float


class RewardGradient(Objective):
    """A loss of minus the weighted sum of rewards, differentiated through the media down to the denoiser.

    Rollouts are ordinary ones; only their last steps are computed again, with gradients.
    """

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.DECODE_WITH_GRAD})

    def __init__(
        self, policy: DecodingPolicy, config: RewardGradientConfig, rewards: Sequence[DifferentiableReward], steps: int
    ) -> None:
        """
        Args:
            rewards: those of the total, without what is only watched.
            steps: denoising steps of a trajectory.

        Raises:
            ConfigError: a reward has no gradient.
        """
        for each in rewards:
            if not config.follows(type(each.reward)):
                raise ConfigError(f"rewards: {each.reward.name} {config.lacking}, which {config.name} needs")
        self._policy, self._config, self._rewards, self._steps = policy, config, tuple(rewards), steps

    @classmethod
    def build(cls, config: RewardGradientConfig, inputs: ObjectiveInputs) -> RewardGradient:
        """Return the objective on a run's rewards.

        Raises:
            ConfigError: samples name other rewards than the recipe.
        """
        rewards, sampling = inputs.rewards, inputs.sampling
        if not isinstance(rewards, RewardSuite) or not isinstance(sampling, SamplingConfig):
            raise ConfigError(f"algorithm: {config.name} follows the gradient of the recipe's rewards, but samples ask "
                              "for other rewards: choose grpo or diffusion_nft")  # fmt: skip
        weighted = [DifferentiableReward(part.reward, rewards.weights[part.reward.name]) for part in rewards.parts]
        return cls(inputs.policy, config, [each for each in weighted if each.weight], sampling.steps)

    def sampling_weights(self) -> AbstractContextManager[None]:
        """Return a context in which rollouts keep their latents."""
        return self._policy.keep_latents()

    def uses_copies(self) -> bool:
        """Return True with a penalty."""
        return bool(self._config.kl.coef)

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """Return the number of scored rows."""
        return batch.scored_rows

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Backpropagate from the rewards to the parameters, once for each picture that is made of a row."""
        if not batch.scored_rows:
            return
        inputs = [item for item, scored in zip(reward_inputs(batch.rollout), batch.scored, strict=True) if scored]
        copies = self._config.renoised or 1
        for live in self.live_steps(seed):
            with torch.enable_grad():
                drawn = self.draw(batch, live)
                total = self.total(drawn[batch.scored.to(drawn.device)], inputs, seed, metrics)
                counted = total if self._config.ceiling is None else total.clamp(max=self._config.ceiling)
                loss = -counted.mean()
                (loss * (share / copies)).backward()
            metrics.mean("loss", loss.item())
            metrics.mean("live_reward", total.mean().item())
            metrics.mean("live_steps", live.count or self._steps)
        if self._config.kl.coef:
            self._penalise(batch, share, seed, metrics)

    def draw(self, batch: MicroBatch, live: BackpropSteps) -> Tensor:
        """Return the pictures [B, 3, H, W] or videos [B, F, 3, H, W] of a micro-batch, with a graph.

        Raises:
            ConfigError: a reward reads pictures and the policy draws videos, or the reverse.
        """
        drawn = self._policy.decode_with_grad(batch.rollout, live)
        medium, other = ("image", "video") if drawn.ndim == 4 else ("video", "image")
        for each in self._rewards:
            if other in each.reward.needs:
                raise ConfigError(f"rewards: {each.reward.name} reads {other}, and the policy draws {medium}: choose "
                                  "a reward that reads this, or latent_refl, grpo or diffusion_nft")  # fmt: skip
        return drawn

    def score(self, reward: Reward, drawn: Tensor, inputs: Sequence[RewardInput], seed: int) -> Tensor:
        """Return the scores [B] by a reward of what `draw` returned, with a graph; `seed` is of noise."""
        return reward.score_tensor(drawn, inputs)

    def total(self, drawn: Tensor, inputs: Sequence[RewardInput], seed: int, metrics: MetricAccumulator) -> Tensor:
        """Return the weighted sum of rewards [B] float32, with a graph."""
        total = drawn.new_zeros(len(drawn))
        for each in self._rewards:
            scores = self.score(each.reward, drawn, inputs, seed).to(total)
            metrics.mean(f"live_reward/{each.reward.name}", scores.mean().item())
            total = total + each.weight * scores
        return total

    def live_steps(self, seed: int) -> Iterator[BackpropSteps]:
        """Yield the steps that are differentiated in a micro-batch: one choice, or one for each noised copy."""
        config, chance = self._config, random.Random(fold_in(seed, 0))
        left = 0 if config.jump is None else chance.randrange(min(config.jump, self._steps))
        most = min(config.steps or self._steps, self._steps - left)
        count = chance.randint(1, most) if config.truncation == "random" else most
        if config.renoised is None:
            yield BackpropSteps(count, left, detached=config.detach, recomputed=config.recompute)
            return
        for copy in range(config.renoised):
            yield BackpropSteps(count, left, noise_seed=fold_in(seed, 1, copy))

    def _penalise(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Add the distance between the velocities of policy and reference, at one random noise level."""
        policy: VelocityPolicy = self._policy
        clean = batch.rollout.clean
        if clean is None:
            raise ValueError("a penalty on velocities needs rollouts that keep their last latent")
        generator = torch.Generator().manual_seed(fold_in(seed, 2))
        place = EARLIEST + (LATEST - EARLIEST) * torch.rand((), generator=generator).item()
        sigma = policy.noise_level(place)
        noise = torch.randn(clean.shape, generator=generator).to(clean.device)
        noisy = interpolate(clean.float(), noise, sigma).to(clean.dtype)
        with torch.no_grad(), policy.reference():
            reference = policy.predict_velocity(batch.rollout, noisy, sigma)
        with torch.enable_grad():
            velocity = policy.predict_velocity(batch.rollout, noisy, sigma)
            each = velocity_mse(velocity, reference)
            distance = each[batch.scored.to(each.device)].mean()
            backpropagate(distance * (share * self._config.kl.coef), self._policy)
        metrics.mean("kl", distance.item())


class LatentRewardGradient(RewardGradient):
    """A loss of minus the weighted sum of rewards of latents, differentiated down to the denoiser.

    The latents at the end of the sampler are noised to levels that are drawn from the range of each reward, and the
    mean of the scores there counts. Rows have the same noise, and each update has new noise. The autoencoder has no
    part in it, so that videos can be learnt from as pictures are.
    """

    def draw(self, batch: MicroBatch, live: BackpropSteps) -> Tensor:
        """Return the clean latents [B, ...] of a micro-batch, with a graph."""
        return self._policy.clean_with_grad(batch.rollout, live)

    def score(self, reward: Reward, drawn: Tensor, inputs: Sequence[RewardInput], seed: int) -> Tensor:
        """Return the mean score [B] over `levels` noise levels, one from each of as many equal parts of the range."""
        assert isinstance(reward, LatentReward) and isinstance(self._config, LatentReFLConfig)
        chance, parts = torch.Generator().manual_seed(fold_in(seed, 3)), self._config.levels
        scores = []
        for part in range(parts):
            sigma = level_in_part(reward.noise, part, parts, chance)
            noisy = noised(drawn.float(), sigma, fold_in(seed, 4, part))
            scores.append(reward.score_latents(noisy, sigma, inputs))
        return torch.stack(scores).mean(0)
