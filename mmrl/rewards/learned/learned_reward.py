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

    from mmrl.rewards.learned.score_head import ScoreHead


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
        settings, heads, others = read_reward_folder(folder)
        latents, inverses = others.get("latents"), others.get("inverses")
        if settings.kind != "clip":
            kind = "texts" if settings.kind == "text" else settings.kind
            raise RewardError(f"{model} is a reward model of {kind}: load it with the reward learned_{settings.kind}")
        if not settings.judge_inputs.plain:
            raise RewardError(f"{model} reads more than pictures and prompts: load it with the reward learned_wins")
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
        if inverses is not None:
            self._scores.inverses = inverses.to(self.device)

    def score_batch(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Return `learned`, `learned_spread` and, of a model with a bound, `learned_bound` of each answer."""
        names = (self.name, f"{self.name}_spread", f"{self.name}_bound")
        return [
            dict(zip(names, map(float, each), strict=False)) if isinstance(each, list) else each
            for each in super().score_batch(items)
        ]

    def score_images(self, images: Sequence[Any], items: Sequence[RewardInput]) -> Tensor:
        """Return [B, 2]: score and spread; [B, 3] with the bound."""
        import torch

        features = self.features(images, items)
        columns = [*self._scores.score_and_spread(features, self._latents)]
        if self._scores.inverses is not None:
            columns.append(self._scores.bounds(features, self._latents))
        return torch.stack(columns, dim=1)

    @property
    def heads(self) -> Sequence[ScoreHead]:
        """The members of the ensemble."""
        return self._scores.heads

    def features(self, images: Sequence[Any], items: Sequence[RewardInput]) -> Tensor:  # [B, F]
        """Return what the heads see of pictures and their prompts."""
        return self._features(self.encoder.embed_pixels(self.pixels(images).to(self.device)), items)

    def score_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        return self._scores.score_and_spread(self._features(images, items), self._latents)[0]

    def _features(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:  # [B, F]
        from mmrl.rewards.learned.pair_features import joint_features

        return joint_features(images, self.encoder.embed_texts([item.prompt for item in items]))
