"""Ascent on rewards of latents, without a picture (latent reward feedback)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmrl.config.algorithms.reward_gradient import LatentReFLConfig
from mmrl.policy import BackpropSteps
from mmrl.rewards.core.latent_reward import LatentReward
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.learned.learned_latents import level_in_part, noised
from mmrl.seeds import fold_in
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.reward_gradient import RewardGradient


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
