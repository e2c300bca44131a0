"""`FeatureScale`: features of latents and of their prompts in units of those that heads were trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmrl.rewards.learned.prompt_components import PromptComponents

if TYPE_CHECKING:
    from torch import Tensor

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
