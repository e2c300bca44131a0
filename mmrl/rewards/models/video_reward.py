"""VideoReward: visual quality, motion quality and text alignment of a video, by a Qwen2-VL with three score tokens."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from mmrl.rewards.core.reward import Scored
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.images.video_consistency import answer_frames
from mmrl.rewards.models.model_files import find_file, load_component, load_tensors, loading_errors, torch_dtype
from mmrl.rewards.models.model_reward import ModelReward
from mmrl.rewards.models.prompt_checks import check_prompt, control_tokens
from mmrl.rewards.models.qwen_head import (
    build_backbone,
    build_head,
    head_outputs,
    load_processor,
    merged_lora,
    question_texts,
    resized,
)

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

Axis = Literal["overall", "visual", "motion", "alignment"]
AXES = {"visual": "VQ", "motion": "MQ", "alignment": "TA"}
"""The three scores, in the order of their tokens in the prompt, and their names in model_config.json."""
WEIGHTS = ("checkpoint-11352/model.safetensors", "checkpoint-11352/model.pth")
LEAST_PIXELS = 128 * 28 * 28
"""Smaller frames are enlarged to this size, in pixels."""
PROMPT = Path(__file__).with_name("prompts") / "video_reward.txt"


class VideoReward(ModelReward):
    """Quality of a video given its prompt, learnt from people's comparisons: visual, motion and alignment, or the sum.

    Unbounded. Each score is standardised by its mean and deviation over the authors' videos, as published; the overall
    score is their sum. The other scores stand beside it: `video_reward_visual`, `video_reward_motion`,
    `video_reward_alignment`. Frames are sampled at 2 a second and scaled to 100,352 to 200,704 pixels.
    """

    name, range, needs = "video_reward", (-math.inf, math.inf), ("video",)
    source = "VideoAlign, arXiv:2501.13918; KwaiVGI/VideoAlign@219ab9d trainer.py, inference.py"
    licence = "Apache-2.0"
    batch_size = 4

    def __init__(
        self,
        video_fps: float,
        model: str = "KlingTeam/VideoReward",
        base: str = "Qwen/Qwen2-VL-2B-Instruct",
        axis: Axis = "overall",
        revision: str | None = None,
        weights: str | None = None,
        device: str = "auto",
        dtype: str = "bfloat16",
    ) -> None:
        """`video_fps`: frames a second of the videos that are scored, by which frames are sampled.

        `model`: a folder or hub repository with model_config.json and the weights, with the LoRA merged or apart.
        `base`: the Qwen2-VL whose configuration, tokenizer and processor it has. `axis`: the score that is the reward.
        `weights`: the file in it; None means that of the published checkpoint.
        """
        from torch import nn
        from transformers import AutoConfig

        if axis not in get_args(Axis):
            raise RewardError(f"axis is {axis!r}; it must be one of {', '.join(get_args(Axis))}")
        if not (math.isfinite(video_fps) and video_fps > 0):
            raise RewardError(f"video_fps is {video_fps}; it must be above 0")
        settings = find_file(model, "model_config.json", revision)
        with loading_errors(settings.label):
            published = json.loads(settings.path.read_text(encoding="utf-8"))
            self._data = _data_settings(published["data_config"], settings.label)
            scale = _lora_scale(published.get("peft_lora_config", {}))
            self._norms = _norms(published.get("inference_config"))
        found = find_file(model, WEIGHTS if weights is None else weights, revision)
        tensors = merged_lora(load_tensors(found), scale)
        self._processor, self._tokens = load_processor(base, None, [f"<|{axis}_reward|>" for axis in AXES.values()])
        self._head = build_head(tensors, found.label)
        config, words = load_component(AutoConfig, base, None), len(self._processor.tokenizer)
        self._backbone = build_backbone(config, tensors, found.label, torch_dtype(dtype), words)
        if self._head[-1].out_features not in (1, len(AXES)):
            raise RewardError(f"{found.label}: the head has {self._head[-1].out_features} outputs; expected 1 or 3")
        super().__init__(nn.ModuleList([self._backbone, self._head]), [found], device)
        self._control = control_tokens(self._processor.tokenizer)
        self._prompt, self._axis, self._video_fps = PROMPT.read_text(encoding="utf-8"), axis, video_fps

    def answer_media(self, item: RewardInput) -> list[Image.Image]:
        """Return the sampled frames of an answer, as RGB."""
        frames = answer_frames(item.video)
        return [frames[place] for place in sampled_frames(len(frames), self._video_fps, self._data["fps"])]

    def score_batch(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Return `video_reward`, which is the score of `axis`, and the scores of the three axes, of each answer."""
        names = [f"{self.name}_{axis}" for axis in AXES]
        scored: list[Scored] = []
        for each in super().score_batch(items):
            if isinstance(each, list):
                axes = dict(zip(names, map(float, each), strict=True))
                whole = sum(axes.values()) if self._axis == "overall" else axes[f"{self.name}_{self._axis}"]
                each = {self.name: whole, **axes}
            scored.append(each)
        return scored

    def score_images(self, images: Sequence[Any], items: Sequence[RewardInput]) -> Tensor:
        """Return [B, 3]: visual and motion quality, and alignment, standardised; `images` are the frames of videos."""
        inputs = self._inputs(images, [check_prompt(item.prompt, self._control) for item in items])
        found = head_outputs(self._backbone, self._head, inputs, self._tokens)  # [B, 3, 1] or [B, 3, 3]
        scores = found.diagonal(dim1=1, dim2=2) if found.shape[-1] == len(AXES) else found[..., 0]
        mean, std = (scores.new_tensor(values) for values in zip(*self._norms, strict=True))
        standardised: Tensor = (scores - mean) / std
        return standardised

    def _inputs(self, videos: Sequence[Sequence[Image.Image]], prompts: Sequence[str]) -> Any:
        return self._processor(
            videos=[self._clip(frames) for frames in videos],
            text=question_texts(self._processor, "video", self._prompt, prompts),
            padding=True,
            return_tensors="pt",
            videos_kwargs={"do_resize": False, "do_sample_frames": False},
        ).to(self.device)

    def _clip(self, frames: Sequence[Image.Image]) -> Tensor:  # [T, 3, h, w] uint8
        """Return the frames, scaled as one tensor: torchvision's bicubic filter, which rounds to 256 levels."""
        import numpy as np
        import torch
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.functional import resize

        picture = self._processor.video_processor
        factor, most = picture.patch_size * picture.merge_size, self._data["max_frame_pixels"]
        clip = torch.from_numpy(np.stack([np.asarray(frame) for frame in frames])).permute(0, 3, 1, 2)
        height, width = clip.shape[-2:]
        size = list(resized(height, width, factor, min(LEAST_PIXELS, most), most))
        scaled: Tensor = resize(clip, size, InterpolationMode.BICUBIC, antialias=True)
        return scaled


def sampled_frames(total: int, rate: float, fps: float) -> list[int]:
    """Return the places of the frames that are shown, of `total` at `rate` a second: an even number, evenly spaced.

    Four at least, if there are as many (KwaiVGI/VideoAlign@219ab9d vision_process.py:smart_nframes).

    >>> sampled_frames(16, 8.0, 2.0)
    [0, 5, 10, 15]
    """
    import torch

    wanted = min(max(total / rate * fps, 4), total // 2 * 2)
    places: list[int] = torch.linspace(0, total - 1, round(wanted / 2) * 2).round().long().tolist()
    return places


def _data_settings(data: Mapping[str, Any], label: str) -> dict[str, Any]:
    expected = {"prompt_template_type": "detailed_special", "sample_type": "uniform", "num_frames": None}
    for key, value in expected.items():
        if data.get(key, value) != value:
            raise RewardError(f"{label}: data_config.{key} is {data[key]!r}; only {value!r} is supported")
    return {"fps": float(data["fps"]), "max_frame_pixels": int(data["max_frame_pixels"])}


def _lora_scale(lora: Mapping[str, Any]) -> float:
    rank, alpha = float(lora.get("lora_r", 1)), float(lora.get("lora_alpha", 1))
    return alpha / (math.sqrt(rank) if lora.get("use_rslora") else rank)


def _norms(statistics: Mapping[str, float] | None) -> list[tuple[float, float]]:
    """Return mean and standard deviation of each axis; 0 and 1 where the model has none."""
    if statistics is None:
        return [(0.0, 1.0)] * len(AXES)
    return [(float(statistics[f"{key}_mean"]), float(statistics[f"{key}_std"])) for key in AXES.values()]
