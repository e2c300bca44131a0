"""Style of a video: similarity of its frames to a style that is named in words, in CLIP's features (VBench)."""

from __future__ import annotations

import threading

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput, WeightFile
from mmrl.rewards.images.video_consistency import BATCH_FRAMES, answer_frames
from mmrl.rewards.models.clip_encoder import load_encoder


class AppearanceStyle(Reward):
    """Similarity of a video's frames to the name of a style, by CLIP: the mean cosine over all frames, in [-1, 1].

    VBench's appearance style: the style alone, such as "Van Gogh style" or "oil painting", not the whole prompt. It is
    the argument `style`, or that of each sample, `references["style"]`. Videos of today's generators get 0.2 to 0.3.
    """

    name, needs, range = "appearance_style", ("video",), (-1.0, 1.0)
    source = "VBench, arXiv:2311.17982; Vchitect/VBench@45e79ec vbench/appearance_style.py"
    licence = "MIT"

    def __init__(
        self,
        style: str | None = None,
        model: str = "openai/clip-vit-base-patch32",
        processor: str | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        """`style`: of all samples; None means that of each. `model`: any CLIP, as of `clip_score`."""
        self._encoder, self._style = load_encoder(self.name, model, processor, revision, dtype), style
        self._encoder.freeze(device)
        self._lock = threading.Lock()

    def weight_files(self) -> tuple[WeightFile, ...]:
        return tuple(found.weight_file() for found in self._encoder.files)

    def score_one(self, item: RewardInput) -> float:
        import torch

        style = item.references.get("style") if self._style is None else self._style
        if not isinstance(style, str) or not style.strip():
            raise ScoringFailed(f"{self.name} needs a style, as an argument or in references.style", "missing")
        frames = answer_frames(item.video)
        with self._lock, torch.inference_mode():
            text = self._encoder.embed_texts([style])[0]  # [D]
            batches = [frames[at : at + BATCH_FRAMES] for at in range(0, len(frames), BATCH_FRAMES)]
            pixels = [self._encoder.pixels(batch).to(text.device) for batch in batches]
            cosines = torch.cat([self._encoder.embed_pixels(batch) @ text for batch in pixels])
            scaled = cosines * self._encoder.scale() / 100  # published CLIPs have a scale of 100
        return float(scaled.mean().clamp(-1, 1))
