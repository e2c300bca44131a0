"""LAION's aesthetic predictor, version 2."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.clip_encoder import EmbeddingReward, load_encoder
from mmrl.rewards.models.model_files import explained, find_file, load_tensors

if TYPE_CHECKING:
    from torch import Tensor, nn

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


# The head that LAION's aesthetic predictor and ImageReward share: five linear layers, and nothing between them.


LAYERS = ("0", "2", "4", "6", "7")
"""As the published files number them; what stands between is dropout."""


def linear_head(tensors: Mapping[str, Tensor], what: str) -> nn.Sequential:
    """The head of tensors called layers.0.weight to layers.7.bias; `what` is their file, for messages."""
    from torch import nn

    needed = [f"layers.{layer}.{part}" for layer in LAYERS for part in ("weight", "bias")]
    if missing := [name for name in needed if name not in tensors]:
        raise RewardError(f"{what} is no head of five linear layers: it lacks {', '.join(missing)}")
    head = nn.Sequential(OrderedDict((n, nn.Linear(*tensors[f"layers.{n}.weight"].shape[::-1])) for n in LAYERS))
    with explained(what):
        head.load_state_dict({name.removeprefix("layers."): tensors[name] for name in needed})
    return head
