"""HPSv3: human preference for an image given its prompt, by a Qwen2-VL with a head that says how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.rewards.core.reward import Scored
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.model_files import find_file, load_component, load_tensors, torch_dtype
from mmrl.rewards.models.model_reward import ModelReward
from mmrl.rewards.models.prompt_checks import check_prompt, control_tokens
from mmrl.rewards.models.qwen_head import (
    build_backbone,
    build_head,
    head_outputs,
    load_processor,
    question_texts,
    resized,
)

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

TOKEN = "<|Reward|>"
PIXELS = 256 * 28 * 28
"""The size to which every image is brought: 256 tokens of 28 x 28 pixels."""
PROMPT = Path(__file__).with_name("prompts") / "hps_v3.txt"


class HPSv3(ModelReward):
    """Human preference for an image given its prompt, learnt from HPD v3: mu of a Gaussian score, with its sigma.

    Unbounded; images of today's generators get 0 to 15. `hps_v3_sigma` is exp of the head's second output, the score's
    standard deviation: the paper's loss prefers one image to another by the probability that its sample is greater. All
    images are scaled to about 200,704 pixels. The head is computed in float32, the rest in `dtype`, as published.
    """

    name, range = "hps_v3", (-math.inf, math.inf)
    source = "HPSv3, arXiv:2508.03789; MizzenAI/HPSv3@d232ff8 hpsv3/model/qwen2vl_trainer.py"
    licence = "MIT (weights), Apache-2.0 (Qwen2-VL)"
    batch_size = 8

    def __init__(
        self,
        model: str = "MizzenAI/HPSv3",
        base: str = "Qwen/Qwen2-VL-7B-Instruct",
        revision: str | None = None,
        pixels: int = PIXELS,
        device: str = "auto",
        dtype: str = "bfloat16",
    ) -> None:
        """`model`: a folder or hub repository with HPSv3.safetensors, or that file. `base`: the Qwen2-VL whose
        configuration, tokenizer and processor it has. `pixels`: the size to which images are brought."""
        from torch import nn
        from transformers import AutoConfig

        found = find_file(model, "HPSv3.safetensors", revision)
        tensors = load_tensors(found)
        self._processor, self._tokens = load_processor(base, None, [TOKEN])
        self._head = build_head(tensors, found.label)
        config, words = load_component(AutoConfig, base, None), len(self._processor.tokenizer)
        self._backbone = build_backbone(config, tensors, found.label, torch_dtype(dtype), words)
        if self._head[-1].out_features != 2:
            raise RewardError(
                f"{found.label}: the head has {self._head[-1].out_features} outputs; expected mu and sigma"
            )
        super().__init__(nn.ModuleList([self._backbone, self._head]), [found], device)
        self._control = control_tokens(self._processor.tokenizer)
        self._prompt, self._pixels = PROMPT.read_text(encoding="utf-8"), pixels

    def score_batch(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Return `hps_v3` and `hps_v3_sigma` of each answer."""
        names = (self.name, f"{self.name}_sigma")
        return [
            dict(zip(names, map(float, each), strict=True)) if isinstance(each, list) else each
            for each in super().score_batch(items)
        ]

    def score_images(self, images: Sequence[Image.Image], items: Sequence[RewardInput]) -> Tensor:
        """Return [B, 2]: mu and sigma."""
        import torch

        inputs = self._inputs(images, [check_prompt(item.prompt, self._control) for item in items])
        mu, log_sigma = head_outputs(self._backbone, self._head, inputs, self._tokens)[:, 0].unbind(-1)
        return torch.stack([mu, log_sigma.exp()], dim=-1)

    def _inputs(self, images: Sequence[Image.Image], prompts: Sequence[str]) -> Any:
        from PIL.Image import Resampling

        picture = self._processor.image_processor
        factor = picture.patch_size * picture.merge_size
        sizes = [resized(image.height, image.width, factor, self._pixels, self._pixels) for image in images]
        return self._processor(
            images=[
                [image.resize((width, height), Resampling.BICUBIC)]
                for image, (height, width) in zip(images, sizes, strict=True)
            ],
            text=question_texts(self._processor, "image", self._prompt, prompts),
            padding=True,
            return_tensors="pt",
            images_kwargs={"do_resize": False},
        ).to(self.device)
