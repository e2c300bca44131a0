"""The frames of an answer, checked."""

from __future__ import annotations

from typing import Any

from PIL import Image

from mmrl.rewards.base import InvalidAnswer, ScoringFailed
from mmrl.rewards.images.safety import answer_picture


def answer_frames(video: Any) -> list[Image.Image]:
    """The frames of a video as RGB, at least two and all of one size.

    Raises:
        InvalidAnswer: there is a single frame, sizes differ, or a frame is none that is looked at.
        ScoringFailed: it is no list of PIL images, or one of them cannot be read.
    """
    if not isinstance(video, list | tuple):
        raise ScoringFailed(f"the answer is a {type(video).__name__}; a list of PIL images is due", "wrong_type")
    frames = [answer_picture(frame) for frame in video]
    if len(frames) < 2:
        raise InvalidAnswer(f"the video has {len(frames)} frames; what changes from frame to frame needs two")
    if len(sizes := {frame.size for frame in frames}) > 1:
        raise InvalidAnswer(f"the frames have different sizes: {sorted(sizes)}")
    return frames
