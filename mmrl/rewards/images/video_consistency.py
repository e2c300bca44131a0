"""Consistency of a video over time and with reference pictures: similarity of features, and flickering of pixels."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from mmrl.rewards.core.image_input import answer_image, reference_image
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, WeightFile, clamp_below_one
from mmrl.rewards.models.model_files import load_component, load_pretrained, torch_device, torch_dtype

if TYPE_CHECKING:
    from torch import Tensor

BATCH_FRAMES = 64  # frames per forward pass of the network


class FrameFeatures(Reward):
    """A reward that reads the frames of a video by the features of a frozen network of pictures: the base class."""

    def __init__(self, model: str, device: str = "auto", revision: str | None = None, dtype: str = "float32") -> None:
        """`model`: path or hub id of a CLIP of transformers, or of a network with a class token (DINO, DINOv2, ViT)."""
        from transformers import AutoImageProcessor

        self._network, self._files = load_pretrained(_AutoModelWithoutPooler, model, revision, torch_dtype(dtype))
        self._network.eval().requires_grad_(False).to(torch_device(device))
        self._processor = load_component(AutoImageProcessor, model, revision, backend="pil")
        self._lock = threading.Lock()

    def weight_files(self) -> tuple[WeightFile, ...]:
        return tuple(found.weight_file() for found in self._files)

    def directions(self, frames: Sequence[Image.Image]) -> Tensor:
        """Return the features of pictures as unit vectors, [T, D] float32."""
        import torch
        from torch.nn.functional import normalize

        with self._lock, torch.inference_mode():
            batches = [self._features(frames[at : at + BATCH_FRAMES]) for at in range(0, len(frames), BATCH_FRAMES)]
        return normalize(torch.cat(batches).float(), dim=-1)

    def _features(self, frames: Sequence[Image.Image]) -> Tensor:
        """Return features [T, D]."""
        weights = next(self._network.parameters())
        pixels = self._processor(images=list(frames), return_tensors="pt")["pixel_values"].to(
            weights.device, weights.dtype
        )
        if hasattr(self._network, "get_image_features"):
            features = self._network.get_image_features(pixel_values=pixels)
            features = getattr(features, "pooler_output", features)  # transformers 5 wraps them, version 4 does not
        else:
            features = self._network(pixel_values=pixels).last_hidden_state[:, 0]
        found: Tensor = features
        return found


class FrameConsistency(FrameFeatures):
    """Similarity of the frames of a video, in [0, 1]: the base class of rewards with different networks.

    The mean over all frames but the first of (max(0, cos to the frame before) + max(0, cos to the first frame)) / 2.
    """

    needs, range = ("video",), (0.0, 1.0)

    def score_one(self, item: RewardInput) -> float:
        frames = answer_frames(item.video)
        features = self.directions(frames)
        before = (features[1:] * features[:-1]).sum(-1).clamp(min=0)
        first = (features[1:] * features[:1]).sum(-1).clamp(min=0)
        similarity = float((before + first).mean() / 2)
        same = all(frame.tobytes() == frames[0].tobytes() for frame in frames[1:])
        return 1.0 if same else clamp_below_one(similarity)


class _AutoModelWithoutPooler:
    """A loader like `AutoModel`, except that a ViT gets no pooler: it is not used, and DINO's checkpoints lack it."""

    @staticmethod
    def from_pretrained(place: str, **settings: Any) -> Any:
        """Return the network."""
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.from_pretrained(place, revision=settings["revision"], trust_remote_code=False)
        pooler = {"add_pooling_layer": False} if config.model_type in ("deit", "vit") else {}
        return AutoModel.from_pretrained(place, **pooler, **settings)


class SubjectConsistency(FrameConsistency):
    """Consistency of a video's subject, in [0, 1]: similarity of its frames in DINO's features.

    VBench's subject consistency (see `FrameConsistency`), with DINO's ViT-B/16. Images are scaled by the model's image
    processor.
    """

    name = "subject_consistency"
    source = "VBench, arXiv:2311.17982; Vchitect/VBench vbench/subject_consistency.py"

    def __init__(self, model: str = "facebook/dino-vitb16", device: str = "auto", dtype: str = "float32") -> None:
        super().__init__(model, device, dtype=dtype)


class BackgroundConsistency(FrameConsistency):
    """Consistency of a video's background, in [0, 1]: similarity of its frames in CLIP's features.

    VBench's background consistency (see `FrameConsistency`), with CLIP's ViT-B/32.
    """

    name = "background_consistency"
    source = "VBench, arXiv:2311.17982; Vchitect/VBench vbench/background_consistency.py"

    def __init__(
        self, model: str = "openai/clip-vit-base-patch32", device: str = "auto", dtype: str = "float32"
    ) -> None:
        super().__init__(model, device, dtype=dtype)


class ReferenceIdentity(FrameFeatures):
    """Identity of a video's subject with its reference pictures, in [0, 1], in DINO's features.

    The mean over frames of max(0, cos to the nearest reference picture), of whole frames: DreamBooth's DINO score
    (arXiv:2208.12242), of frames. The reference pictures are the condition `reference_images`, of Wan VACE. MoCha
    (arXiv:2601.08587) reads faces alone, by ArcFace.
    """

    name = "reference_identity"
    source = "DreamBooth's DINO score, arXiv:2208.12242; MoCha, arXiv:2601.08587"
    needs, range = ("video", "references.reference_images"), (0.0, 1.0)

    def __init__(self, model: str = "facebook/dino-vits16", device: str = "auto", dtype: str = "float32") -> None:
        super().__init__(model, device, dtype=dtype)

    def score_one(self, item: RewardInput) -> float:
        frames = answer_frames(item.video)
        pictures = item.references["reference_images"]
        pictures = pictures if isinstance(pictures, list | tuple) else [pictures]
        references = [reference_image(each, "reference_images") for each in pictures]
        if not references:
            raise ScoringFailed("the sample has no reference picture: give it at least one as reference_images")
        cosines = self.directions(frames) @ self.directions(references).T  # [T, R]
        contents = [reference.tobytes() for reference in references]
        same = all(frame.tobytes() in contents for frame in frames)
        return 1.0 if same else clamp_below_one(float(cosines.amax(dim=1).clamp(min=0).mean()))


class TemporalFlickering(Reward):
    """1 minus the mean absolute difference of consecutive frames, in [0, 1]; 1 for a still video.

    VBench's temporal flickering: (255 - MAE) / 255 over all pixels, channels and pairs of frames. It is meant for
    prompts of still scenes; VBench excludes videos with motion (by RAFT's optical flow), which is not done here.
    Motion lowers it as flicker does.
    """

    name, needs, range = "temporal_flickering", ("video",), (0.0, 1.0)
    source = "VBench, arXiv:2311.17982; Vchitect/VBench vbench/temporal_flickering.py"

    def score_one(self, item: RewardInput) -> float:
        frames = [np.asarray(frame, np.float32) for frame in answer_frames(item.video)]
        difference = float(np.mean([np.abs(a - b).mean() for a, b in pairwise(frames)]))
        return 1.0 if difference == 0 else clamp_below_one(1 - difference / 255)


def answer_frames(video: Any) -> list[Image.Image]:
    """Return the frames of a video as RGB, at least two and all of one size.

    Raises:
        InvalidAnswer: there is a single frame, sizes differ, or `answer_image` rejects a frame.
        ScoringFailed: it is not a list of PIL images, or one of them cannot be read.
    """
    if not isinstance(video, list | tuple):
        raise ScoringFailed(f"the answer is a {type(video).__name__}; expected a list of PIL images", "wrong_type")
    frames = [answer_image(frame) for frame in video]
    if len(frames) < 2:
        raise InvalidAnswer(f"the video has {len(frames)} frames; consistency needs at least two")
    if len(sizes := {frame.size for frame in frames}) > 1:
        raise InvalidAnswer(f"the frames have different sizes: {sorted(sizes)}")
    return frames
