"""Rewards of edits, holes and motions, read off the pictures by rules. Each takes the task as `references.answer`."""

from __future__ import annotations

from collections.abc import Mapping

from PIL import Image

from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld.editing import Edit, judge_edit
from mmrl_shapeworld.inpainting import Hole, judge_hole
from mmrl_shapeworld.motion import Motion, judge_clip


class EditCheck(Reward):
    """Score an edit, in [0, 1]: the named thing changed as instructed, all else stayed; also strict correctness."""

    name = "shapeworld_edit"
    source = "docs/tasks/edit.md"
    needs = ("image", "references.answer")
    range = (0.0, 1.0)

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        """Judge one edited picture."""
        verdict = judge_edit(answer_image(item.image), Edit.from_dict(item.references["answer"]))
        return {
            self.name: verdict.score,
            f"{self.name}_strict": float(verdict.strict),
            f"{self.name}_changed": verdict.changed,
            f"{self.name}_kept": verdict.kept,
        }


class InpaintCheck(Reward):
    """Score a filled hole, in [0, 1]: it contains the prompt's thing, all else stayed; also strict correctness."""

    name = "shapeworld_inpaint"
    source = "docs/tasks/inpaint.md"
    needs = ("image", "references.answer")
    range = (0.0, 1.0)

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        """Judge one filled picture."""
        verdict = judge_hole(answer_image(item.image), Hole.from_dict(item.references["answer"]))
        return {
            self.name: verdict.score,
            f"{self.name}_strict": float(verdict.strict),
            f"{self.name}_filled": verdict.filled,
            f"{self.name}_kept": verdict.kept,
        }


def moving_frames(item: RewardInput) -> list[Image.Image]:
    """Return the frames of a clip, as RGB.

    Raises:
        InvalidAnswer: a single frame does not move.
    """
    frames = [answer_image(frame) for frame in item.video]
    if len(frames) < 2:
        raise InvalidAnswer(f"a clip of {len(frames)} frames: nothing can move in it")
    return frames


class VideoCheck(Reward):
    """Score a clip, in [0, 1]: it shows the prompt's things, steady and moving; also strict correctness."""

    name = "shapeworld_video"
    source = "docs/tasks/text-to-video.md"
    needs = ("video", "references.answer")
    range = (0.0, 1.0)

    def score_one(self, item: RewardInput) -> Mapping[str, float]:
        """Judge one clip.

        Raises:
            InvalidAnswer: a single frame does not move.
        """
        frames = moving_frames(item)
        verdict = judge_clip(frames, Motion.from_dict(item.references["answer"]))
        return {self.name: verdict.score, f"{self.name}_strict": float(verdict.strict)}
