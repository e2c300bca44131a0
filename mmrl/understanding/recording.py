"""What a vision-language model's rollout keeps, to be replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.understanding.prompt_encoder import EncodedPrompt


@dataclass(frozen=True)
class TokenRecording:
    """What replay needs: the prompts, and what was written after them."""

    prompts: list[EncodedPrompt]  # P
    prompt_of: list[int]  # B of them; equal ones stand together
    tokens: Tensor  # [B, T] int64, padded on the right
    lengths: list[int]  # B
    temperature: float

    def select(self, rows: Sequence[int]) -> TokenRecording:
        """Some answers, with the prompts that they need."""
        needed = sorted({self.prompt_of[row] for row in rows})
        return TokenRecording(
            prompts=[self.prompts[number] for number in needed],
            prompt_of=[needed.index(self.prompt_of[row]) for row in rows],
            tokens=self.tokens[torch.as_tensor(rows, dtype=torch.long)],
            lengths=[self.lengths[row] for row in rows],
            temperature=self.temperature,
        )
