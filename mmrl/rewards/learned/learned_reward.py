"""`learned`: a reward model that `mmrl train reward` has trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.rewards.core.reward import Scored
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.clip_encoder import EmbeddingReward, load_encoder
from mmrl.rewards.models.model_files import ResolvedFile

if TYPE_CHECKING:
    from torch import Tensor


class LearnedReward(EmbeddingReward):
    """The mean score of an ensemble of heads, and `learned_spread`, its standard deviation over the members.

    Scores are standardised: over the answers of the training data they have a mean of 0 and a deviation of 1. With one
    member the spread is 0, or the standard deviation of a Gaussian head.
    """

    name, range = "learned", (-math.inf, math.inf)
    source = "docs/reward-models.md"
    licence = "that of its encoder"

    def __init__(
        self,
        model: str,
        axis: str | None = None,
        rater: str | None = None,
        pessimism: float = 0.0,
        device: str = "auto",
    ) -> None:
        """
        Args:
            model: a folder that `mmrl train reward` wrote.
            axis: the score that counts; None: the mean of all axes.
            rater: the rater whose preferences count, for a model that tells raters apart.
            pessimism: factor of the spread that is subtracted from the mean: above 0, doubtful answers count less.
            device: "auto" is the GPU if there is one.
        """
        from torch import nn

        from mmrl.rewards.learned.reward_folder import HEADS, read_reward_folder
        from mmrl.rewards.learned.standardised_heads import StandardisedHeads

        folder = Path(model).expanduser()
        settings, heads, latents = read_reward_folder(folder)
        if settings.kind != "clip":
            raise RewardError(f"{model} is a reward model of texts: load it with the reward learned_text")
        self._scores = StandardisedHeads(model, settings, heads, axis, pessimism)
        if (rater is None) != (latents is None):
            raters = settings.raters
            known = f"name one of {', '.join(raters[:5])}{', ...' if len(raters) > 5 else ''}" if raters else ""
            raise RewardError(f"rater: {model} " + (f"tells raters apart: {known}" if known else "knows no raters"))
        encoder = load_encoder(self.name, settings.encoder, revision=settings.revision)
        file = ResolvedFile(folder / HEADS, str(folder / HEADS))
        super().__init__(encoder, device, nn.ModuleList(heads), [file])
        self._latents: Tensor | None = None
        if latents is not None and rater is not None:
            if rater not in settings.raters:
                raise RewardError(f"rater: {model} has not seen {rater!r}")
            self._latents = latents[:, settings.raters.index(rater)].to(self.device)  # [E, L]

    def score_batch(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Return `learned` and `learned_spread` of each answer."""
        return [
            {self.name: float(each[0]), f"{self.name}_spread": float(each[1])} if isinstance(each, list) else each
            for each in super().score_batch(items)
        ]

    def score_images(self, images: Sequence[Any], items: Sequence[RewardInput]) -> Tensor:
        """Return [B, 2]: score and spread."""
        import torch

        embedded = self.encoder.embed_pixels(self.pixels(images).to(self.device))
        return torch.stack(self.score_and_spread(embedded, items), dim=1)

    def score_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        return self.score_and_spread(images, items)[0]

    def score_and_spread(self, images: Tensor, items: Sequence[RewardInput]) -> tuple[Tensor, Tensor]:  # [B] each
        """Return the standardised score, less `pessimism` times the spread, and the spread."""
        from mmrl.rewards.learned.pair_features import joint_features

        features = joint_features(images, self.encoder.embed_texts([item.prompt for item in items]))
        return self._scores.score_and_spread(features, self._latents)
