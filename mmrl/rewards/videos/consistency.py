"""Whether a video keeps showing the same thing, by the features of its frames."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import numpy as np
from PIL import Image

from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, clamp_below_one
from mmrl.rewards.core.spec import WeightFile
from mmrl.rewards.models.model_files import load_part, load_pretrained, torch_device, torch_dtype

FRAMES = 64
"""Frames that the network sees at once."""


class FrameConsistency(Reward):
    """How alike the frames of a video are, in [0, 1]. Not a reward by itself: what such rewards extend.

    The mean over all frames but the first of (max(0, cos to the frame before) + max(0, cos to the first frame)) / 2.
    """

    needs, range = ("video",), (0.0, 1.0)

    def __init__(self, model: str, device: str = "auto", revision: str | None = None, dtype: str = "float32") -> None:
        """`model`: a network of transformers, by path or hub id: a CLIP, or one whose first token stands for the whole
        picture (DINO, DINOv2, ViT)."""
        from transformers import AutoImageProcessor

        self._network, self._files = load_pretrained(_WithoutPooler, model, revision, torch_dtype(dtype))
        self._network.eval().requires_grad_(False).to(torch_device(device))
        self._processor = load_part(AutoImageProcessor, model, revision, backend="pil")
        self._using = threading.Lock()

    def weight_files(self) -> tuple[WeightFile, ...]:
        """What was loaded, with digests."""
        return tuple(found.weight_file() for found in self._files)

    def score_one(self, item: RewardInput) -> float:
        import torch
        from torch.nn.functional import normalize

        frames = answer_frames(item.video)
        with self._using, torch.inference_mode():
            parts = [self._features(frames[at : at + FRAMES]) for at in range(0, len(frames), FRAMES)]
        features = normalize(torch.cat(parts).float(), dim=-1)  # [T, D]
        before = (features[1:] * features[:-1]).sum(-1).clamp(min=0)
        first = (features[1:] * features[:1]).sum(-1).clamp(min=0)
        alike = float((before + first).mean() / 2)
        same = all(frame.tobytes() == frames[0].tobytes() for frame in frames[1:])
        return 1.0 if same else clamp_below_one(alike)

    def _features(self, frames: list[Any]) -> Any:
        """[T, D]."""
        own = next(self._network.parameters())
        pixels = self._processor(images=frames, return_tensors="pt")["pixel_values"].to(own.device, own.dtype)
        if hasattr(self._network, "get_image_features"):
            features = self._network.get_image_features(pixel_values=pixels)
            return getattr(features, "pooler_output", features)  # transformers 5 wraps them, version 4 did not
        return self._network(pixel_values=pixels).last_hidden_state[:, 0]


class _WithoutPooler:
    """As `AutoModel`, but a ViT gets no pooler, which is not looked at: DINO's checkpoints lack its weights."""

    @staticmethod
    def from_pretrained(place: str, **settings: Any) -> Any:
        """The network."""
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.from_pretrained(place, revision=settings["revision"], trust_remote_code=False)
        pooler = {"add_pooling_layer": False} if config.model_type in ("deit", "vit") else {}
        return AutoModel.from_pretrained(place, **pooler, **settings)


class SubjectConsistency(FrameConsistency):
    """Whether the subject of a video stays the same, in [0, 1]: how alike its frames are to DINO.

    VBench's subject consistency (see `FrameConsistency`); its model is DINO's ViT-B/16. Pictures are scaled as the
    model's own processor does it.
    """

    name = "subject_consistency"
    source = "VBench, arXiv:2311.17982; Vchitect/VBench vbench/subject_consistency.py"

    def __init__(self, model: str = "facebook/dino-vitb16", device: str = "auto", dtype: str = "float32") -> None:
        super().__init__(model, device, dtype=dtype)


class BackgroundConsistency(FrameConsistency):
    """Whether the scene of a video stays the same, in [0, 1]: how alike its frames are to CLIP.

    VBench's background consistency (see `FrameConsistency`); its model is CLIP's ViT-B/32.
    """

    name = "background_consistency"
    source = "VBench, arXiv:2311.17982; Vchitect/VBench vbench/background_consistency.py"

    def __init__(
        self, model: str = "openai/clip-vit-base-patch32", device: str = "auto", dtype: str = "float32"
    ) -> None:
        super().__init__(model, device, dtype=dtype)


# How still a video stands.


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
        return 1.0 if off == 0 else clamp_below_one(1 - off / 255)


# The frames of an answer, checked.


def answer_frames(video: Any) -> list[Image.Image]:
    """The frames of a video as RGB, at least two and all of one size.

    Raises:
        InvalidAnswer: there is a single frame, sizes differ, or a frame is none that is looked at.
        ScoringFailed: it is no list of PIL images, or one of them cannot be read.
    """
    if not isinstance(video, list | tuple):
        raise ScoringFailed(f"the answer is a {type(video).__name__}; a list of PIL images is due", "wrong_type")
    frames = [answer_image(frame) for frame in video]
    if len(frames) < 2:
        raise InvalidAnswer(f"the video has {len(frames)} frames; what changes from frame to frame needs two")
    if len(sizes := {frame.size for frame in frames}) > 1:
        raise InvalidAnswer(f"the frames have different sizes: {sorted(sizes)}")
    return frames
