"""PickScore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmrl.rewards.base import RewardInput
from mmrl.rewards.models.clip_encoder import EmbeddingReward, load_encoder

if TYPE_CHECKING:
    from torch import Tensor

PICKSCORE = "yuvalkirstain/PickScore_v1"
PROCESSOR = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"


class PickScore(EmbeddingReward):
    """Which pictures people pick for a prompt, learnt from Pick-a-Pic: the checkpoint's logit scale, 100, times cos.

    In [-100, 100]; pictures of today's generators get 18 to 24. Some systems divide it by 26.
    """

    name, range = "pickscore", (-100.0, 100.0)
    source = "PickScore, arXiv:2305.01569"
    licence = "MIT"

    def __init__(
        self,
        model: str = PICKSCORE,
        processor: str | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        """`processor`: unset, it is looked for beside the weights; the published ones have theirs in LAION's CLIP."""
        beside = PROCESSOR if model == PICKSCORE else model
        super().__init__(load_encoder(self.name, model, processor or beside, revision, dtype), device)

    def rate_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """[B]."""
        return self.encoder.scale() * self.cosines(images, [item.prompt for item in items])
