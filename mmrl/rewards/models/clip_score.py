"""CLIPScore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmrl.rewards.base import RewardInput
from mmrl.rewards.models.clip_encoder import EmbeddingReward, load_encoder

if TYPE_CHECKING:
    from torch import Tensor


class CLIPScore(EmbeddingReward):
    """How well a picture fits its prompt, by CLIP: 2.5 · max(cos, 0).

    In [0, 2.5]; good pictures get about 0.8 with the published model. torchmetrics' number is 40 times this one.
    """

    name, range = "clip_score", (0.0, 2.5)
    source = "CLIPScore, arXiv:2104.08718"
    licence = "MIT"

    def __init__(
        self,
        model: str = "openai/clip-vit-base-patch32",
        prefix: str = "",
        processor: str | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        """`model`: any CLIP, by path or hub id, of transformers or open_clip (see `load_encoder`).

        `prefix` is put before the prompt: the paper, which scores captions of photographs, has "A photo depicts ".
        """
        super().__init__(load_encoder(self.name, model, processor, revision, dtype), device)
        self._prefix = prefix

    def rate_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """[B] in [0, 2.5]."""
        return 2.5 * self.cosines(images, [self._prefix + item.prompt for item in items]).clamp(0, 1)
