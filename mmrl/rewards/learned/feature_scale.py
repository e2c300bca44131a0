"""`FeatureScale`: features of latents and of their prompts in units of those that heads were trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LEAST_SHARE = 1e-3
"""The least standard deviation of a component, as a share of the first one's."""


@dataclass(frozen=True)
class PromptComponents:
    """A linear map from what a generator reads of prompts, [B, E], to K uncorrelated features of equal variance.

    At little noise the states of a denoiser with cross attention follow the latents and hardly the prompt, so a head on
    them alone cannot tell whether latents suit their prompt. It therefore also sees the mean state of the prompt, in
    principal components of equal scale: what tells prompts apart, such as the direction of a motion, may be a small
    part of the variance. Products of latents and prompt are learnt from few pairs only where neither is much smaller.
    """

    centre: Tensor
    """[E] the mean state, which is subtracted."""
    basis: Tensor
    """[E, K] directions of the largest variance, by the scale of each."""

    @classmethod
    def fit(cls, states: Tensor, count: int, variance: float = 1.0) -> PromptComponents:
        """Return at most `count` components of states [N, E], the largest first, which share a sum of variances.

        Components of less than `LEAST_SHARE` of the first one's deviation are left out; equal states have none, K = 0.
        """
        import torch

        centre = states.double().mean(0)
        offsets = states.double() - centre
        variances, directions = torch.linalg.eigh(offsets.T @ offsets / len(states))  # in ascending order
        deviations = variances.clamp(min=0).sqrt().flip(0)[:count]
        kept = int((deviations > LEAST_SHARE * deviations[0].clamp(min=1e-9)).sum())
        basis = directions.flip(1)[:, :kept] / deviations[:kept] * (variance / max(kept, 1)) ** 0.5
        return cls(centre.float(), basis.float().contiguous())

    def __call__(self, states: Tensor) -> Tensor:  # [B, E] -> [B, K]
        """Return the components of states."""
        found: Tensor = (states - self.centre.to(states)) @ self.basis.to(states)
        return found


LEAST = 1e-3
"""The least deviation that features are divided by."""


@dataclass(frozen=True)
class FeatureScale:
    """A linear map of features [B, F], or [B, F + E] with the states of prompts at the end, to what heads see."""

    centre: Tensor
    """[F] the mean of the features."""
    unit: Tensor
    """[F] their standard deviation."""
    prompts: PromptComponents | None = None
    """The map of the E last columns; None: there are none."""

    @classmethod
    def fit(cls, features: Tensor, count: int, components: int) -> FeatureScale:
        """Return the scale of features [N, F + E] with `count` = F, and at most this number of prompt components.

        The components have the variance of the F features in sum.
        """
        own = features[:, :count]
        prompts = PromptComponents.fit(features[:, count:], components, float(count)) if components else None
        return cls(own.mean(0), own.std(0).clamp(min=LEAST), prompts)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> FeatureScale:
        """Return the scale of a reward model's folder."""
        prompts = None
        if "prompt_basis" in tensors:
            prompts = PromptComponents(tensors["prompt_centre"], tensors["prompt_basis"])
        return cls(tensors["centre"], tensors["unit"], prompts)

    def tensors(self) -> dict[str, Tensor]:
        """Return what `from_tensors` reads."""
        found = {"centre": self.centre, "unit": self.unit}
        if self.prompts is not None:
            found |= {"prompt_centre": self.prompts.centre, "prompt_basis": self.prompts.basis}
        return found

    def __call__(self, features: Tensor) -> Tensor:  # [B, F + E] -> [B, F + K]
        """Return scaled features, followed by the prompt's components."""
        import torch

        count = len(self.centre)
        own = (features[:, :count] - self.centre.to(features)) / self.unit.to(features)
        return own if self.prompts is None else torch.cat([own, self.prompts(features[:, count:])], dim=1)
