"""PickScore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.clip_encoder import EmbeddingReward, OpenClipEncoder, load_encoder
from mmrl.rewards.models.model_files import find_file

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


# Human Preference Score, versions 2 and 2.1.


class HPSv2(EmbeddingReward):
    """Which pictures people prefer for a prompt, learnt from HPD v2: the cosine, without the logit scale.

    In [-1, 1]; pictures of today's generators get 0.2 to 0.35. The long side is brought to 224 and the rest is black:
    nothing is cropped. Computed in float32, where the published code runs in half precision on a GPU.
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
        """`model`: a folder or hub repository that has the published file, or the path of a file like it.

        `architecture`: of the network, as open_clip calls it.
        """
        weights = find_file(model, self.file, revision)
        super().__init__(OpenClipEncoder(self.name, architecture, weights, dtype, resize_mode="longest"), device)

    def rate_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """[B]."""
        return self.cosines(images, [item.prompt for item in items]).clamp(-1, 1)


class HPSv21(HPSv2):
    """As hps_v2, trained on more and cleaner data, and less drawn to over-sharp pictures: the cosine, in [-1, 1]."""

    name = "hps_v21"
    source = "HPS v2.1, arXiv:2306.09341; tgxs002/HPSv2:hpsv2/img_score.py"
    file = "HPS_v2.1_compressed.pt"
