"""Few clips beside many pictures, for training: the first clips of `vlm-train`, and all its puzzles and groundings.

`shapeworld:scarce-clips-train` has 16 questions about clips, 600 odd ones out and 600 things to be located.
"""

from __future__ import annotations

from mmrl.data.sample import Sample
from mmrl_shapeworld.vqa import question_splits

NAMES = ("scarce-clips-train",)
CLIPS = 16
"""The number of clips."""
PICTURES = ("puzzle", "grounding")
"""The tasks of the pictures."""


def samples(split: str) -> list[Sample]:
    """Return the split as data, the clips first.

    Raises:
        KeyError: there is no such split.
    """
    if split not in NAMES:
        raise KeyError(f"there is no split {split!r} of few clips: choose one of {', '.join(NAMES)}")
    pictures = question_splits.samples(f"vlm-{'+'.join(PICTURES)}-train")
    return [*question_splits.samples("vlm-video-qa-train")[:CLIPS], *pictures]
