"""ShapeWorld's rewards. Those that check take the caption, parsed, as `references.answer`."""

from __future__ import annotations

from collections.abc import Mapping

from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.images.video_consistency import FrameConsistency
from mmrl.rewards.models.clip_rewards import CLIPScore
from mmrl_shapeworld.captions import Caption
from mmrl_shapeworld.checker import judge


class CaptionCheck(Reward):
    """The rule checker's partial credit, in [0, 1], with strict correctness (0 or 1) beside it."""

    name = "shapeworld"
    source = "docs/shapeworld.md"
    needs = ("image", "references.answer")
    range = (0.0, 1.0)

    def __init__(self, strict_weight: float = 0.0) -> None:
        """`strict_weight` in [0, 1]: how much of the reward is strict correctness instead of partial credit."""
        self.strict_weight = strict_weight

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        """Judge one picture."""
        verdict = judge(answer_image(item.image), Caption.from_dict(item.references["answer"]))
        strict = float(verdict.strict)
        mixed = (1 - self.strict_weight) * verdict.score + self.strict_weight * strict
        return {"shapeworld": mixed, "shapeworld_strict": strict}


class ShapeCLIP(CLIPScore):
    """CLIP score of a picture and its caption by the tiny CLIP that ships: 2.5 · max(cos, 0), in [0, 2.5]."""

    name = "shapeworld_clip"
    licence = "Apache-2.0"

    def __init__(self, device: str = "auto") -> None:
        """`device`: "auto" is the GPU if there is one."""
        from mmrl_shapeworld.shipped_models import CLIP

        super().__init__(model=str(CLIP), prefix="", device=device)


class IndependentCount(Reward):
    """The observer's probability that the picture holds just what the caption names, in [0, 1].

    For watching, not for training: it is the held-out reward of the quickstart.
    """

    name = "shapeworld_heldout"
    source = "docs/shapeworld.md"
    needs = ("image", "references.answer")
    range = (0.0, 1.0)

    def score_one(self, item: RewardInput) -> float:
        """Let the observer count."""
        from mmrl_shapeworld import observer

        return observer.agreement(
            observer.load(), answer_image(item.image), Caption.from_dict(item.references["answer"])
        )


class ShapeConsistency(FrameConsistency):
    """Similarity of a clip's frames by the tiny CLIP that ships, in [0, 1]: VBench's consistency on shapes."""

    name = "shapeworld_consistency"
    source = "VBench, arXiv:2311.17982"
    licence = "Apache-2.0"

    def __init__(self, device: str = "auto") -> None:
        """`device`: "auto" is the GPU if there is one."""
        from mmrl_shapeworld.shipped_models import CLIP

        super().__init__(str(CLIP), device)
