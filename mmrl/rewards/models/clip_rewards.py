"""Rewards by CLIP-like encoders: similarity to a text or to goals in words, human preference, beauty."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.clip_encoder import EmbeddingReward, OpenClipEncoder, load_encoder
from mmrl.rewards.models.model_files import find_file, load_tensors, loading_errors

if TYPE_CHECKING:
    from torch import Tensor, nn

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
        cosines = self.cosines(images, [item.prompt for item in items])
        if self._output == "cosine":
            return cosines.clamp(-1, 1)
        return (self.encoder.scale() * cosines + self.encoder.bias()).sigmoid()


BIG_G = "laion/CLIP-ViT-bigG-14-laion2B-39B-b160k"
"""The CLIP of both papers, 2.5 B parameters: their results fall with its size."""

MIN_DISTANCE = 1e-4  # least distance of a goal's and a baseline's unit vector; below it the direction is rounding error


def goal_baseline_reward(
    state: Tensor,  # [B, D] unit vectors of images
    goal: Tensor,  # [B, D] unit vectors
    baseline: Tensor,  # [B, D] unit vectors, other than the goal's
    alpha: float,
) -> Tensor:  # [B] in [-1, 1]
    """Return 1 − ‖α · proj(s) + (1 − α) · s − g‖² / 2, proj onto the line of baseline and goal (arXiv:2310.12921).

    α = 0 is the cosine; α = 1 counts only the component along the line. Ported from
    AlignmentResearch/vlmrm:src/vlmrm/reward/rewards.py.
    """
    from torch.nn import functional

    direction = functional.normalize(goal - baseline, dim=-1)
    offset = state - goal  # the goal lies on the line, so projecting s onto it is projecting s − g
    along = (offset * direction).sum(-1, keepdim=True) * direction
    return 1 - (alpha * along + (1 - alpha) * offset).square().sum(-1) / 2


class GoalBaseline(EmbeddingReward):
    """Progress of an image from a baseline to a goal, both described in words: VLM-RM's regularised CLIP reward.

    In [-1, 1]; 1 is the goal's embedding. With alpha = 0 it is the cosine of image and goal.
    """

    name, range = "goal_baseline", (-1.0, 1.0)
    source = "VLM-RM, arXiv:2310.12921"
    licence = "MIT"

    def __init__(
        self,
        baseline: str,
        goal: str | None = None,
        alpha: float = 0.5,
        model: str = BIG_G,
        processor: str | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        """`goal`: a description of the target; None means each answer's prompt. `baseline`: the same scene without it.

        `alpha`, in [0, 1]: the share of the directions other than from baseline to goal that is projected out.
        """
        if not 0 <= alpha <= 1:
            raise RewardError(f"alpha is {alpha}; it must be in [0, 1]")
        if goal == baseline:
            raise RewardError(f"goal and baseline are both {goal!r}; there is no line between them")
        super().__init__(load_encoder(self.name, model, processor, revision, dtype), device)
        self._goal, self._baseline, self._alpha = goal, baseline, alpha
        if goal is not None and bool(self._goal_vectors([goal])[2]):
            raise RewardError(f"goal {goal!r} and baseline {baseline!r} have equal embeddings in {model}: no direction")

    def score_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        goals = [item.prompt if self._goal is None else self._goal for item in items]
        goal, baseline, same = self._goal_vectors(goals)
        if same.any():
            goal_text = goals[int(same.nonzero()[0])]
            raise ScoringFailed(f"goal {goal_text!r} and baseline {self._baseline!r} have equal embeddings", "no_line")
        return goal_baseline_reward(images, goal, baseline, self._alpha).clamp(-1, 1)

    def _goal_vectors(self, goals: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Return vectors [B, D] of the goals, [B, D] of the baseline, and [B] bool: True where the two are equal.

        Tokenizers fold capitals and spaces, so that different texts may have one vector, which is no direction.
        """
        vectors = self.encoder.embed_texts(
            [*goals, self._baseline]
        )  # in one batch, so that equal tokens give equal vectors
        goal, baseline = vectors[:-1], vectors[-1:].expand(len(goals), -1)
        return goal, baseline, (goal - baseline).norm(dim=-1) < MIN_DISTANCE


class GoalContrast(EmbeddingReward):
    """Similarity to a positive minus similarity to a negative goal, by CLIP: VLM-RL's w · cos⁺ − (1 − w) · cos⁻.

    In [-1, 1]. At w = 0.5 it is half of the plain difference, which the authors' code gives.
    """

    name, range = "goal_contrast", (-1.0, 1.0)
    source = "VLM-RL, arXiv:2412.15544; zihaosheng/VLM-RL:clip/clip_reward_model.py"
    licence = "MIT"

    def __init__(
        self,
        negative: str,
        positive: str | None = None,
        weight: float = 0.5,
        model: str = BIG_G,
        processor: str | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        """`positive`: the positive goal; None means each answer's prompt. `weight`: w, in [0, 1]."""
        if not 0 <= weight <= 1:
            raise RewardError(f"weight is {weight}; it must be in [0, 1]")
        super().__init__(load_encoder(self.name, model, processor, revision, dtype), device)
        self._positive, self._negative, self._weight = positive, negative, weight

    def score_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        positives = [item.prompt if self._positive is None else self._positive for item in items]
        near = self.cosines(images, positives)
        far = self.cosines(images, [self._negative] * len(items))
        return (self._weight * near - (1 - self._weight) * far).clamp(-1, 1)


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
