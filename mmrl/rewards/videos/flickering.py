"""How still a video stands."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from mmrl.rewards.base import Reward, RewardInput
from mmrl.rewards.rules.below_one import below_one
from mmrl.rewards.videos.frames import answer_frames


class TemporalFlickering(Reward):
    """One less the mean absolute difference of neighbouring frames, in [0, 1]: 1 for a video that stands still.

    VBench's temporal flickering: (255 - MAE) / 255 over all pixels, channels and pairs of frames. It is made for
    prompts of scenes that stand still; VBench leaves out videos that move (by RAFT's optical flow), which is not done
    here. Motion lowers it as flicker does.
    """

    name, needs, range = "temporal_flickering", ("video",), (0.0, 1.0)
    source = "VBench, arXiv:2311.17982; Vchitect/VBench vbench/temporal_flickering.py"

    def score_one(self, item: RewardInput) -> float:
        frames = [np.asarray(frame, np.float32) for frame in answer_frames(item.video)]
        off = float(np.mean([np.abs(a - b).mean() for a, b in pairwise(frames)]))
        return 1.0 if off == 0 else below_one(1 - off / 255)
