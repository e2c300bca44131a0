"""`learned_text`: a reward model of texts that `mmrl train reward` has trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmrl.rewards.core.reward import BatchReward, Scored
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, WeightFile
from mmrl.rewards.models.model_files import ResolvedFile

if TYPE_CHECKING:
    from torch import Tensor

    from mmrl.rewards.learned.score_head import ScoreHead


class LearnedTextReward(BatchReward):
    """The mean score of an ensemble of heads on texts, and `learned_text_spread`, its deviation over the members.

    Scores are standardised as those of `learned`. A model that was trained with `encoder.against: answer` compares the
    answer with the right one of the sample.
    """

    name, needs, range = "learned_text", ("text",), (-math.inf, math.inf)
    source = "docs/reward-models.md"
    licence = "that of its encoder"
    batch_size = 256

    def __init__(self, model: str, axis: str | None = None, pessimism: float = 0.0, device: str = "cpu") -> None:
        """
        Args:
            model: a folder that `mmrl train reward` wrote, with an encoder of the kind `text`.
            axis: the score that counts; None: the mean of all axes.
            pessimism: factor of the spread that is subtracted from the mean: above 0, doubtful answers count less.
            device: where it computes.
        """
        from mmrl.rewards.learned.reward_folder import HEADS, read_reward_folder
        from mmrl.rewards.learned.standardised_heads import StandardisedHeads
        from mmrl.rewards.models.text_encoder import TextEncoder

        folder = Path(model).expanduser()
        settings, heads, others = read_reward_folder(folder)
        if settings.kind != "text" or "latents" in others:
            other = "learned_latents" if settings.kind == "latents" else "learned"
            raise RewardError(f"{model} is a reward model of pictures or of raters: load it with the reward {other}")
        self.encoder = TextEncoder(settings.encoder, settings.revision, device)
        self.heads: Sequence[ScoreHead] = [head.to(device) for head in heads]
        self._against = settings.against
        self._head_file = ResolvedFile(folder / HEADS, str(folder / HEADS)).weight_file()
        self._scores = StandardisedHeads(model, settings, self.heads, axis, pessimism)

    def weight_files(self) -> tuple[WeightFile, ...]:
        return (*(found.weight_file() for found in self.encoder.files), self._head_file)

    def score_batch(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Return `learned_text` and `learned_text_spread` of each answer."""
        import torch

        results: list[Scored] = [ScoringFailed("references.answer is missing", "reference")] * len(items)
        rows = [row for row, item in enumerate(items) if self.compared_with(item) is not None]
        if rows:
            with torch.no_grad():
                scores, spreads = self._scores.score_and_spread(self.features([items[row] for row in rows]))
            for row, score, spread in zip(rows, scores.tolist(), spreads.tolist(), strict=True):
                results[row] = self.named(score, spread)
        return results

    def named(self, score: float, spread: float) -> Scored:
        """Return the scores of one answer by name."""
        return {self.name: score, f"{self.name}_spread": spread}

    def features(self, items: Sequence[RewardInput]) -> Tensor:  # [B, F]
        """Return the features of answers, all of which have a text to be compared with."""
        from mmrl.rewards.learned.pair_features import text_features

        return text_features(
            self.encoder, [item.text or "" for item in items], [str(self.compared_with(item)) for item in items]
        )

    def compared_with(self, item: RewardInput) -> str | None:
        """Return the text that an answer is compared with; None if the sample has none."""
        if self._against == "prompt":
            return item.prompt
        right = item.references.get("answer")
        return None if right is None else str(right)
