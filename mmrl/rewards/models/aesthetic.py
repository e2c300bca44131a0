"""LAION's aesthetic predictor, version 2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmrl.rewards.base import RewardError, RewardInput
from mmrl.rewards.models.clip_encoder import EmbeddingReward, load_encoder
from mmrl.rewards.models.linear_head import linear_head
from mmrl.rewards.models.loading import find_file, load_tensors

if TYPE_CHECKING:
    from torch import Tensor

FILES = ("aesthetic-model.safetensors", "aesthetic-model.pth", "sac+logos+ava1-l14-linearMSE.pth")


class Aesthetic(EmbeddingReward):
    """How beautiful people would find a picture, whatever the prompt: LAION's predictor, version 2.

    Trained on ratings from 1 to 10, and unbounded, being linear in CLIP's normalised embedding. Drawn to blur and to
    paintings; trained against alone, it is soon hacked.
    """

    name, range = "aesthetic", (-math.inf, math.inf)
    source = "LAION-Aesthetics v2; christophschuhmann/improved-aesthetic-predictor:simple_inference.py"
    licence = "Apache-2.0 (head), MIT (CLIP)"

    def __init__(
        self,
        model: str = "openai/clip-vit-large-patch14",
        head: str = "trl-lib/ddpo-aesthetic-predictor",
        processor: str | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        """`head`: the five linear layers, a file, or a folder or hub repository that has aesthetic-model.pth or
        sac+logos+ava1-l14-linearMSE.pth. `revision`: of `model`."""
        found = find_file(head, FILES)
        layers = linear_head(load_tensors(found), found.label)
        encoder = load_encoder(self.name, model, processor, revision, dtype)
        width, due = encoder.embed_texts([""]).shape[-1], layers[0].in_features
        if width != due:
            raise RewardError(f"{model} makes embeddings of {width} numbers, and {found.label} takes {due}")
        super().__init__(encoder, device, layers, [found])
        self._head = layers

    def rate_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """[B]."""
        scores: Tensor = self._head(images)[:, 0]
        return scores
