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

        folder = Path(model).expanduser()
        self._settings, heads, latents = read_reward_folder(folder)
        if axis is not None and axis not in self._settings.axes:
            raise RewardError(f"{model} has no axis {axis!r}: it has {', '.join(self._settings.axes)}")
        if (rater is None) != (latents is None):
            raters = self._settings.raters
            known = f"name one of {', '.join(raters[:5])}{', ...' if len(raters) > 5 else ''}" if raters else ""
            raise RewardError(f"rater: {model} " + (f"tells raters apart: {known}" if known else "knows no raters"))
        self._columns = [number for number, name in enumerate(self._settings.axes) if axis in (None, name)]
        self._pessimism = pessimism
        encoder = load_encoder(self.name, self._settings.encoder, revision=self._settings.revision)
        file = ResolvedFile(folder / HEADS, str(folder / HEADS))
        super().__init__(encoder, device, nn.ModuleList(heads), [file])
        self._heads = heads
        self._latents: Tensor | None = None
        if latents is not None and rater is not None:
            if rater not in self._settings.raters:
                raise RewardError(f"rater: {model} has not seen {rater!r}")
            self._latents = latents[:, self._settings.raters.index(rater)].to(self.device)  # [E, L]

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
        import torch

        from mmrl.rewards.learned.pair_features import joint_features

        features = joint_features(images, self.encoder.embed_texts([item.prompt for item in items]))
        means, variances = [], []
        for member, head in enumerate(self._heads):
            latent = None if self._latents is None else self._latents[member].expand(len(features), -1)
            mean, variance = head(features, latent)
            means.append(mean[:, self._columns])
            variances.append((torch.zeros_like(mean) if variance is None else variance)[:, self._columns])
        centre = features.new_tensor(self._settings.mean)[self._columns]
        unit = features.new_tensor(self._settings.spread)[self._columns]
        scores = (torch.stack(means) - centre) / unit  # [E, B, A]
        within = (torch.stack(variances) / unit.square()).mean(0)
        total = (within + scores.var(0, correction=0)).mean(1)
        spread = total.clamp(min=1e-12).sqrt().where(total > 0, 0.0)  # the root has no gradient at 0
        return scores.mean((0, 2)) - self._pessimism * spread, spread
