"""Prompts that are longer than a text encoder reads."""

from __future__ import annotations

import logging
from collections.abc import Sequence

LONGEST_PROMPT = 2_000
"""Characters that are tokenized. Text encoders read 35 to 77 tokens; open_clip's tokenizer is Python, and takes seconds
for what is far longer."""

_log = logging.getLogger(__name__)


class PromptCutter:
    """Cuts prompts as the model's own tokenizer does, and says so once."""

    def __init__(self, reward: str, tokens: int) -> None:
        """`tokens`: how many the text encoder reads, the special ones included."""
        self.reward, self.tokens = reward, tokens
        self._said = False

    def cut(self, prompts: Sequence[str]) -> list[str]:
        """The prompts, none longer than `LONGEST_PROMPT`."""
        self.note(sum(len(prompt) > LONGEST_PROMPT for prompt in prompts))
        return [prompt[:LONGEST_PROMPT] for prompt in prompts]

    def note(self, too_long: int) -> None:
        """Say, once, that prompts were cut."""
        if too_long and not self._said:
            self._said = True
            _log.warning(
                "%s reads %d tokens of a prompt; the rest of longer ones is not looked at. Said once.",
                self.reward,
                self.tokens,
            )
