"""ImageReward."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.blip import build_blip
from mmrl.rewards.models.model_files import explained, find_file, load_tensors, load_tokenizer, torch_dtype
from mmrl.rewards.models.model_reward import PictureReward
from mmrl.rewards.models.preprocess import Framing, PromptCutter

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

MEAN, STD = 0.16717362830052426, 1.0333394966054072
"""Of the head's output over the training set."""
TOKENS = 35


class ImageReward(PictureReward):
    """Which pictures people prefer for a prompt, by a BLIP that looks as it reads: (r − 0.1671673) / 1.0333395.

    Unbounded, about normal over the training set: −2.3 to 2 in practice. Reads 35 tokens of the prompt.
    """

    name, range = "image_reward", (-math.inf, math.inf)
    source = "ImageReward, arXiv:2304.05977; THUDM/ImageReward:ImageReward/ImageReward.py"

    def __init__(
        self,
        model: str = "THUDM/ImageReward",
        tokenizer: str = "google-bert/bert-base-uncased",
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        """`model`: a folder or hub repository with ImageReward.pt and med_config.json."""
        from torch import nn
        from torchvision import transforms

        found = find_file(model, ("ImageReward.safetensors", "ImageReward.pt"), revision)
        settings = find_file(model, "med_config.json", revision)
        with explained(settings.label):
            med = json.loads(settings.path.read_text(encoding="utf-8"))
        tensors, own = load_tensors(found), torch_dtype(dtype)
        with explained(found.label):
            self._parts = parts = build_blip(tensors, med, found.label, own)
        super().__init__(nn.ModuleList([parts.vision, parts.text, parts.head]), [found], device)
        self._tokenizer = load_tokenizer(tokenizer, None)
        # BLIP's two, which its vocabulary of 30,524 has beside BERT's 30,522.
        self._tokenizer.add_special_tokens({"bos_token": "[DEC]"})
        self._tokenizer.add_tokens(["[ENC]"], special_tokens=True)
        self._cutter = PromptCutter(self.name, TOKENS)
        size = parts.image_size
        self.framing = Framing(size, size, "crop", edge=size)
        self._preprocess = transforms.Compose(
            [
                transforms.Resize(size, interpolation=transforms.InterpolationMode.BICUBIC),
                transforms.CenterCrop(size),
                transforms.ToTensor(),
                transforms.Normalize(self.framing.mean, self.framing.std),
            ]
        )

    def pixels(self, pictures: Sequence[Image.Image]) -> Tensor:
        """[B, 3, 224, 224] float32: the short side to 224, then the middle."""
        import torch

        return torch.stack([self._preprocess(picture) for picture in pictures])

    def rate(self, pixels: Tensor, items: Sequence[RewardInput]) -> Tensor:
        """[B] float32."""
        own = next(self._parts.vision.parameters()).dtype
        patches = self._parts.vision(pixel_values=pixels.to(own)).last_hidden_state  # [B, N, D]
        read = self._read([item.prompt for item in items])
        states = self._parts.text(
            input_ids=read["input_ids"],
            attention_mask=read["attention_mask"],
            encoder_hidden_states=patches,
            encoder_attention_mask=patches.new_ones(patches.shape[:2]).long(),
        ).last_hidden_state
        rewards: Tensor = self._parts.head(states[:, 0].float())[:, 0]
        return (rewards - MEAN) / STD

    def _read(self, prompts: Sequence[str]) -> dict[str, Tensor]:
        prompts = self._cutter.cut(prompts)
        whole = self._tokenizer(prompts, truncation=False, verbose=False)["input_ids"]
        self._cutter.note(sum(len(tokens) > TOKENS for tokens in whole))
        read = self._tokenizer(prompts, padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt")
        return {name: read[name].to(self.device) for name in ("input_ids", "attention_mask")}
