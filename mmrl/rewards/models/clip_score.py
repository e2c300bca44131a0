"""Similarity of an image and a text by CLIP: CLIPScore, SigLIP's probability, VLM-RM's and VLM-RL's goals in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
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
            raise RewardError(
                f"goal {goal!r} and baseline {baseline!r} have equal embeddings in {model}, thus no direction"
            )

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
