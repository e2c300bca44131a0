"""Checks of prompts that are put into the question of a vision-language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmrl.rewards.core.reward_errors import ScoringFailed

MAX_TEXT_LENGTH = 20_000
"""Characters of the longest prompt. A longer one fails rather than being truncated, which would change the question."""


def control_tokens(tokenizer: Any) -> list[str]:
    """Return the special tokens of a tokenizer of transformers, such as <|im_end|>."""
    return [
        token.content for token in tokenizer.added_tokens_decoder.values() if token.special and token.content.strip()
    ]


def check_prompt(prompt: str, control: Sequence[str]) -> str:
    """Return the prompt unchanged.

    Raises:
        ScoringFailed: "too_long", or "control_token": it holds one of `control`, which would end the question.
    """
    if len(prompt) > MAX_TEXT_LENGTH:
        raise ScoringFailed(f"the prompt has {len(prompt)} characters; at most {MAX_TEXT_LENGTH} fit", "too_long")
    if found := [token for token in control if token in prompt]:
        raise ScoringFailed(f"the prompt has {found[0]}, which is a control token of the model", "control_token")
    return prompt
