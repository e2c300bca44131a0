"""How much of an answer repeats itself."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.final_answer import MAX_CHARACTERS
from mmrl.rewards.parsing.words import split_words

MAX_NGRAM = 100


class Repetition(Reward):
    """Minus the share of n-grams that stood before: 0 if nothing is repeated, towards −1 if everything is.

    −(1 − different n-grams / n-grams), over words without regard to case, where each character of Chinese and Japanese
    is a word of its own (see `split_words`), or over the token ids in `metadata["tokens"]`. 0 for fewer than n of them.

    arXiv:2502.03373, appendix C.2; eddycmu/demystify-long-cot openrlhf/openrlhf/reward/repetition.py and
    huggingface/open-r1 src/open_r1/rewards.py, whose `max_penalty` is the weight here.
    """

    name, needs, range = "repetition", ("text",), (-1.0, 0.0)
    source = "Demystifying Long CoT, arXiv:2502.03373, app. C.2; huggingface/open-r1"

    def __init__(self, ngram: int = 3, unit: Literal["words", "tokens"] = "words") -> None:
        if not isinstance(ngram, int) or isinstance(ngram, bool) or not 1 <= ngram <= MAX_NGRAM:
            raise RewardError(f"repetition: ngram is {ngram!r}; a whole number from 1 to {MAX_NGRAM} is due")
        if unit not in ("words", "tokens"):
            raise RewardError(f"repetition: unit is {unit!r}; it is words or tokens")
        self.ngram, self.unit = ngram, unit

    def score_one(self, item: RewardInput) -> float:
        units = _token_ids(item) if self.unit == "tokens" else _words(item.text or "")
        return -repeated_ngram_fraction(units, self.ngram)


def repeated_ngram_fraction(units: Sequence[Hashable], ngram: int) -> float:
    """The share of n-grams that are copies of an earlier one, in [0, 1)."""
    total = len(units) - ngram + 1
    if total < 1:
        return 0.0
    different = len(set(zip(*(units[shift : shift + total] for shift in range(ngram)), strict=True)))
    return 1 - different / total


def _words(text: str) -> list[str]:
    if len(text) > MAX_CHARACTERS:
        raise InvalidAnswer(f"the text has {len(text)} characters; an answer has at most {MAX_CHARACTERS}")
    return split_words(text.lower())


def _token_ids(item: RewardInput) -> Sequence[int]:
    ids = item.metadata.get("tokens")
    if not isinstance(ids, Sequence) or isinstance(ids, str):
        raise ScoringFailed("metadata has no token ids under `tokens`; put them there or count in words", "missing")
    return ids
