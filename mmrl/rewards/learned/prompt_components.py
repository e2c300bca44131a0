"""`PromptComponents`: what a generator reads of a prompt as a few uncorrelated features of equal variance.

At little noise the states of a denoiser with cross attention follow the latents and hardly the prompt, so a head on
them alone cannot tell whether latents suit their prompt. It therefore also sees the mean state of the prompt, in
principal components of equal scale: what tells prompts apart, such as the direction of a motion, may be a small part of
the variance. Products of latents and prompt are learnt from few pairs only where neither is much smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LEAST = 1e-3
"""The least standard deviation of a component, as a share of the first one's."""


@dataclass(frozen=True)
class PromptComponents:
    """A linear map from states of prompts [B, E] to K components."""

    centre: Tensor
    """[E] the mean state, which is subtracted."""
    basis: Tensor
    """[E, K] directions of the largest variance, by the scale of each."""

    @classmethod
    def fit(cls, states: Tensor, count: int, variance: float = 1.0) -> PromptComponents:
        """Return at most `count` components of states [N, E], the largest first, which share a sum of variances.

        Components of less than `LEAST` of the first one's deviation are left out; equal states have none, K = 0.
        """
        import torch

        centre = states.double().mean(0)
        offsets = states.double() - centre
        variances, directions = torch.linalg.eigh(offsets.T @ offsets / len(states))  # in ascending order
        deviations = variances.clamp(min=0).sqrt().flip(0)[:count]
        kept = int((deviations > LEAST * deviations[0].clamp(min=1e-9)).sum())
        basis = directions.flip(1)[:, :kept] / deviations[:kept] * (variance / max(kept, 1)) ** 0.5
        return cls(centre.float(), basis.float().contiguous())

    def __call__(self, states: Tensor) -> Tensor:  # [B, E] -> [B, K]
        """Return the components of states."""
        found: Tensor = (states - self.centre.to(states)) @ self.basis.to(states)
        return found
