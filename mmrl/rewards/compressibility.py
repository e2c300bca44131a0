"""How well a picture compresses: a reward that needs no model, for trying out a run."""

from __future__ import annotations

import io

from mmrl.rewards.base import Reward, RewardError, RewardInput


class Compressibility(Reward):
    """The negative size of the picture as a JPEG, in kB (1000 bytes): smooth pictures score near 0.

    DDPO's first reward (arXiv:2305.13301; kvablack/ddpo-pytorch ddpo_pytorch/rewards.py, JPEG quality 95). Use a
    negative weight for its opposite, incompressibility.
    """

    name, needs, range = "compressibility", ("image",), (-float("inf"), 0.0)

    def __init__(self, quality: int = 95) -> None:
        if not 1 <= quality <= 95:
            raise RewardError(f"compressibility: quality is {quality}; JPEG takes 1 to 95")
        self.quality = quality

    def score_one(self, item: RewardInput) -> float:
        buffer = io.BytesIO()
        item.image.convert("RGB").save(buffer, format="JPEG", quality=self.quality)
        return -buffer.tell() / 1000
