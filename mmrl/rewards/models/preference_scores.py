"""Scores learnt from human preferences and ratings: PickScore, HPSv2, HPSv2.1, LAION's aesthetic predictor."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.clip_encoder import EmbeddingReward, OpenClipEncoder, load_encoder
from mmrl.rewards.models.model_files import find_file, load_tensors, loading_errors

if TYPE_CHECKING:
    from torch import Tensor, nn

PICKSCORE = "yuvalkirstain/PickScore_v1"
AESTHETIC_FILES = ("aesthetic-model.safetensors", "aesthetic-model.pth", "sac+logos+ava1-l14-linearMSE.pth")
HEAD_LAYERS = ("0", "2", "4", "6", "7")
"""Names of the linear layers in the published files; the other layers are dropout."""
PROCESSOR = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"


class PickScore(EmbeddingReward):
    """Human preference for an image given its prompt, learnt from Pick-a-Pic: the logit scale, 100, times cos.

    In [-100, 100]; images of today's generators get 18 to 24. Some systems divide it by 26.
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
        """`processor`: None means that of `model`; for the published weights, that of LAION's CLIP."""
        default = PROCESSOR if model == PICKSCORE else model
        super().__init__(load_encoder(self.name, model, processor or default, revision, dtype), device)

    def score_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        return self.encoder.scale() * self.cosines(images, [item.prompt for item in items])


class HPSv2(EmbeddingReward):
    """Human preference for an image given its prompt, learnt from HPD v2: the cosine, without the logit scale.

    In [-1, 1]; images of today's generators get 0.2 to 0.35. The long side is resized to 224 and the rest padded with
    black: nothing is cropped. Computed in float32, where the published code runs in half precision on a GPU.
    """

    name, range = "hps_v2", (-1.0, 1.0)
    source = "HPS v2, arXiv:2306.09341; tgxs002/HPSv2:hpsv2/img_score.py"
    file: ClassVar[str] = "HPS_v2_compressed.pt"

    def __init__(
        self,
        model: str = "xswu/HPSv2",
        architecture: str = "ViT-H-14",
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        """`model`: a folder or hub repository with the published file, or the path of such a file.

        `architecture`: open_clip's name of the network.
        """
        weights = find_file(model, self.file, revision)
        super().__init__(OpenClipEncoder(self.name, architecture, weights, dtype, resize_mode="longest"), device)

    def score_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        return self.cosines(images, [item.prompt for item in items]).clamp(-1, 1)


class HPSv21(HPSv2):
    """HPSv2 trained on more and cleaner data, with less preference for over-sharp images: the cosine, in [-1, 1]."""

    name = "hps_v21"
    source = "HPS v2.1, arXiv:2306.09341; tgxs002/HPSv2:hpsv2/img_score.py"
    file = "HPS_v2.1_compressed.pt"


class Aesthetic(EmbeddingReward):
    """Predicted human rating of an image's beauty, independent of the prompt: LAION's predictor, version 2.

    Trained on ratings from 1 to 10, and unbounded, being linear in CLIP's normalised embedding. Biased towards blur and
    paintings; as the only reward it is quickly hacked.
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
        found = find_file(head, AESTHETIC_FILES)
        layers = linear_head(load_tensors(found), found.label)
        encoder = load_encoder(self.name, model, processor, revision, dtype)
        width, expected = encoder.embed_texts([""]).shape[-1], layers[0].in_features
        if width != expected:
            raise RewardError(f"{model} has embeddings of {width} numbers, but {found.label} takes {expected}")
        super().__init__(encoder, device, layers, [found])
        self._head = layers

    def score_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        scores: Tensor = self._head(images)[:, 0]
        return scores


def linear_head(tensors: Mapping[str, Tensor], label: str) -> nn.Sequential:
    """Return a head of five linear layers from tensors layers.0.weight to layers.7.bias; `label` names their file.

    Raises:
        RewardError: a tensor is missing or has another shape.
    """
    from torch import nn

    needed = [f"layers.{layer}.{part}" for layer in HEAD_LAYERS for part in ("weight", "bias")]
    if missing := [name for name in needed if name not in tensors]:
        raise RewardError(f"{label} is not a head of five linear layers: it lacks {', '.join(missing)}")
    head = nn.Sequential(OrderedDict((n, nn.Linear(*tensors[f"layers.{n}.weight"].shape[::-1])) for n in HEAD_LAYERS))
    with loading_errors(label):
        head.load_state_dict({name.removeprefix("layers."): tensors[name] for name in needed})
    return head
