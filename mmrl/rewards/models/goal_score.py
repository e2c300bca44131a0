"""Goals in words, compared with CLIP's embedding of a picture: VLM-RM's goal and baseline, VLM-RL's opposites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.clip_encoder import EmbeddingReward, load_encoder

if TYPE_CHECKING:
    from torch import Tensor

BIG_G = "laion/CLIP-ViT-bigG-14-laion2B-39B-b160k"
"""The CLIP of both papers, 2.5 B parameters: their results fall with its size."""

SHORTEST_LINE = 1e-4
"""Between a goal's and a baseline's unit vector; below it the direction is what rounding left."""


def goal_baseline_reward(
    state: Tensor,  # [B, D] unit vectors of pictures
    goal: Tensor,  # [B, D] unit vectors
    baseline: Tensor,  # [B, D] unit vectors, other than the goal's
    alpha: float,
) -> Tensor:  # [B] in [-1, 1]
    """1 − ‖α · proj(s) + (1 − α) · s − g‖² / 2, proj onto the line through baseline and goal (arXiv:2310.12921).

    α = 0 is the cosine; α = 1 counts only what lies along the line. Ported from
    AlignmentResearch/vlmrm:src/vlmrm/reward/rewards.py.
    """
    from torch.nn import functional

    direction = functional.normalize(goal - baseline, dim=-1)
    offset = state - goal  # the goal lies on the line, so projecting s onto it is projecting s − g
    along = (offset * direction).sum(-1, keepdim=True) * direction
    return 1 - (alpha * along + (1 - alpha) * offset).square().sum(-1) / 2


class GoalBaseline(EmbeddingReward):
    """How far a picture has come from a baseline to a goal, both told in words: VLM-RM's regularised CLIP reward.

    In [-1, 1]; 1 is the goal's own embedding. With alpha = 0 it is the cosine of picture and goal.
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
        """`goal`: what is to be seen; unset, each answer's prompt. `baseline`: the same scene without it.

        `alpha`, in [0, 1]: how much of what does not tell goal from baseline is projected out.
        """
        if not 0 <= alpha <= 1:
            raise RewardError(f"alpha is {alpha}; it must be in [0, 1]")
        if goal == baseline:
            raise RewardError(f"goal and baseline are both {goal!r}; there is no line between them")
        super().__init__(load_encoder(self.name, model, processor, revision, dtype), device)
        self._goal, self._baseline, self._alpha = goal, baseline, alpha
        if goal is not None and bool(self._ends([goal])[2]):
            raise RewardError(f"goal {goal!r} and baseline {baseline!r} are the same to {model}: no line between them")

    def rate_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """[B] in [-1, 1]."""
        goals = [item.prompt if self._goal is None else self._goal for item in items]
        goal, baseline, same = self._ends(goals)
        if same.any():
            told = goals[int(same.nonzero()[0])]
            raise ScoringFailed(f"goal {told!r} and baseline {self._baseline!r} are the same to the model", "no_line")
        return goal_baseline_reward(images, goal, baseline, self._alpha).clamp(-1, 1)

    def _ends(self, goals: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """[B, D] of the goals, [B, D] of the baseline, and [B]: whether there is no line between the two.

        Tokenizers fold capitals and spaces, so that texts which differ may be one vector: every picture would be at
        its goal.
        """
        ends = self.encoder.embed_texts([*goals, self._baseline])  # in one batch: the same tokens, the same rounding
        goal, baseline = ends[:-1], ends[-1:].expand(len(goals), -1)
        return goal, baseline, (goal - baseline).norm(dim=-1) < SHORTEST_LINE


class GoalContrast(EmbeddingReward):
    """Nearness to what is wanted minus nearness to what is not, by CLIP: VLM-RL's w · cos⁺ − (1 − w) · cos⁻.

    In [-1, 1]. At w = 0.5 it is half of what the authors' code gives, the plain difference.
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
        """`positive`: what is wanted; unset, each answer's prompt. `weight`: w, in [0, 1]."""
        if not 0 <= weight <= 1:
            raise RewardError(f"weight is {weight}; it must be in [0, 1]")
        super().__init__(load_encoder(self.name, model, processor, revision, dtype), device)
        self._positive, self._negative, self._weight = positive, negative, weight

    def rate_embeddings(self, images: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """[B] in [-1, 1]."""
        wanted = [item.prompt if self._positive is None else self._positive for item in items]
        near = self.cosines(images, wanted)
        far = self.cosines(images, [self._negative] * len(items))
        return (self._weight * near - (1 - self._weight) * far).clamp(-1, 1)
