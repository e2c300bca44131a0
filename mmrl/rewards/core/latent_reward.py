"""`LatentReward`: a reward that reads noisy latents, so that its gradient can guide sampling at every noise level."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmrl.rewards.core.reward import BatchReward
from mmrl.rewards.core.reward_io import RewardInput

if TYPE_CHECKING:
    from torch import Tensor


class LatentReward(BatchReward):
    """A reward whose score of noisy latents is differentiable (Flow-NRG, arXiv:2501.13918).

    `guided_rollout` shifts latents along its gradient, without the autoencoder and without the guided model.
    """

    reads_latents = True
    noise: tuple[float, float]
    """The lowest and the highest noise level at which scores mean something; others are not guided by it."""

    @abstractmethod
    def score_latents(self, latents: Tensor, sigma: float, batch: Sequence[RewardInput]) -> Tensor:
        """Return [B] scores, with gradients, of latents (1 - sigma) x_0 + sigma noise [B, ...]; `batch` has prompts."""
