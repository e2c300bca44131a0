"""Ascent on rewards of latents, without a picture (latent reward feedback)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mmrl.policy import BackpropSteps
from mmrl.rewards.core.latent_reward import LatentReward
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.learned.learned_latents import noised
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.reward_gradient import RewardGradient


class LatentRewardGradient(RewardGradient):
    """A loss of minus the weighted sum of rewards of latents, differentiated down to the denoiser.

    The latents at the end of the sampler are noised to the lowest level at which a reward scores, with the same noise
    in each row. The autoencoder has no part in it, so that videos can be learnt from as pictures are.
    """

    def draw(self, batch: MicroBatch, live: BackpropSteps) -> Tensor:
        """Return the clean latents [B, ...] of a micro-batch, with a graph."""
        return self._policy.clean_with_grad(batch.rollout, live)

    def score(self, reward: Reward, drawn: Tensor, inputs: Sequence[RewardInput]) -> Tensor:
        assert isinstance(reward, LatentReward)
        sigma = reward.noise[0]
        return reward.score_latents(noised(drawn.float(), sigma, seed=0), sigma, inputs)
