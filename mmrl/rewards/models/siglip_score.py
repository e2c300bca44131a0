"""SigLIP's score of a picture and its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from mmrl.rewards.base import RewardError, RewardInput
from mmrl.rewards.models.clip_encoder import EmbeddingReward, load_encoder

if TYPE_CHECKING:
    from torch import Tensor

Output = Literal["probability", "cosine"]


class SigLIPScore(EmbeddingReward):
    """The probability, by SigLIP, that picture and prompt belong together: sigmoid(scale · cos + bias).

    In [0, 1], and near 0 for most pairs; `output="cosine"` gives the plain cosine instead, in [-1, 1], which tells
    pictures apart where the probability has no room left. Reads SigLIP, and SigLIP 2 at a fixed resolution.
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
            raise RewardError(f'{model} has no logit_bias, so it is no SigLIP: use clip_score, or output="cosine"')
        self._output = output

    def rate_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """[B]."""
        cosines = self.cosines(images, [item.prompt for item in items])
        if self._output == "cosine":
            return cosines.clamp(-1, 1)
        return (self.encoder.scale() * cosines + self.encoder.bias()).sigmoid()
