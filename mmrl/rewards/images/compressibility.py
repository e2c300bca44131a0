"""How well a picture compresses: a reward that needs no model, for trying out a run."""

from __future__ import annotations

import io

from mmrl.rewards.base import InvalidAnswer, Reward, RewardError, RewardInput
from mmrl.rewards.images.safety import answer_picture

LONGEST = 65_500
"""Pixels a side of what a JPEG encoder takes."""


class Compressibility(Reward):
    """The negative size of the picture as a JPEG, in kB (1000 bytes): smooth pictures score near 0.

    DDPO's first reward (kvablack/ddpo-pytorch ddpo_pytorch/rewards.py, JPEG quality 95). Use a negative weight for its
    opposite, incompressibility. It has no lowest value, so a picture that cannot be used is not scored at all.
    """

    name, needs, range = "compressibility", ("image",), (-float("inf"), 0.0)
    source = "DDPO, arXiv:2305.13301"

    def __init__(self, quality: int = 95) -> None:
        if not 1 <= quality <= 95:
            raise RewardError(f"compressibility: quality is {quality}; JPEG takes 1 to 95")
        self.quality = quality

    def score_one(self, item: RewardInput) -> float:
        """Compress the picture."""
        picture = answer_picture(item.image)
        if max(picture.size) > LONGEST:
            raise InvalidAnswer(
                f"the picture has {picture.width} x {picture.height} pixels; JPEG takes {LONGEST} a side"
            )
        buffer = io.BytesIO()
        picture.save(buffer, format="JPEG", quality=self.quality)
        return -buffer.tell() / 1000
