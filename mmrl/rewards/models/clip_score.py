"""CLIPScore and SigLIP's score of an image and its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.clip_encoder import EmbeddingReward, load_encoder

if TYPE_CHECKING:
    from torch import Tensor
Output = Literal["probability", "cosine"]


class CLIPScore(EmbeddingReward):
    """Similarity of an image and its prompt by CLIP: 2.5 · max(cos, 0).

    In [0, 2.5]; good images get about 0.8 with the published model. torchmetrics' number is 40 times this one.
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

    def score_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """Return [B] in [0, 2.5]."""
        return 2.5 * self.cosines(images, [self._prefix + item.prompt for item in items]).clamp(0, 1)


class SigLIPScore(EmbeddingReward):
    """The probability, by SigLIP, that image and prompt match: sigmoid(scale · cos + bias).

    In [0, 1], and near 0 for most pairs; `output="cosine"` gives the plain cosine instead, in [-1, 1], which still
    distinguishes images where the probability saturates. Supports SigLIP, and SigLIP 2 at a fixed resolution.
    """

    name, range = "siglip_score", (-1.0, 1.0)
    source = "SigLIP, arXiv:2303.15343"

    def __init__(
        self,
        model: str = "google/siglip-so400m-patch14-384",
        output: Output = "probability",
        processor: str | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        if output not in get_args(Output):
            raise RewardError(f"output is {output!r}; it must be one of {', '.join(get_args(Output))}")
        super().__init__(load_encoder(self.name, model, processor, revision, dtype), device)
        if output == "probability" and getattr(self.network, "logit_bias", None) is None:
            raise RewardError(f'{model} has no logit_bias, so it is not a SigLIP: use clip_score, or output="cosine"')
        self._output = output

    def score_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """Return [B]."""
        cosines = self.cosines(images, [item.prompt for item in items])
        if self._output == "cosine":
            return cosines.clamp(-1, 1)
        return (self.encoder.scale() * cosines + self.encoder.bias()).sigmoid()
