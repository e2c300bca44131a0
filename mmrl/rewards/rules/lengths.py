"""Rewards for the length of an answer (a target, a limit, a cosine that depends on correctness) and for repetition.

All of them measure the whole text, reasoning included. The number of tokens cannot be derived from the text: it is read
from `metadata["tokens"]`, which holds the ids of the answer's tokens or their number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from mmrl.rewards.core.registry import load
from mmrl.rewards.core.reward import Reward, RowsReward
from mmrl.rewards.core.reward_errors import FAULTS, InvalidAnswer, RewardError, ScoringFailed, Status, attempt
from mmrl.rewards.core.reward_io import RewardContext, RewardInput, Scope, clamp_below_one
from mmrl.rewards.parsing.final_answer import MAX_CHARACTERS

LengthUnit = Literal["tokens", "words", "characters"]

MAX_NGRAM = 100
_UNSPACED = (
    r"\u3040-\u30ff"  # hiragana, katakana
    r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    r"\U00020000-\U000323af"  # Han, rarer
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


class Length(Reward):
    """Closeness of the answer's length to a target, or compliance with a limit.

    With `target` T (or without arguments, when each sample has its target in `references["length"]`): 1 − |n − T| / T,
    at least 0. With `limit` L: 1 up to L, then falling linearly to 0 at L + `slack` (by default 2L).

    The exact and the at-most form of L1 (arXiv:2503.04697), scaled to [0, 1].
    """

    name, needs, range = "length", ("text",), (0.0, 1.0)
    source = "L1, arXiv:2503.04697, scaled to [0, 1]"

    def __init__(
        self,
        target: int | None = None,
        limit: int | None = None,
        slack: int | None = None,
        unit: LengthUnit = "tokens",
    ) -> None:
        if target is not None and limit is not None:
            raise RewardError("length: give a target or a limit, not both")
        if slack is not None and limit is None:
            raise RewardError(f"length: slack is {slack}, but there is no limit to exceed")
        for value, argument in ((target, "target"), (limit, "limit"), (slack, "slack")):
            if value is not None:
                _check_positive(value, f"length: {argument}")
        self.target, self.limit, self.slack, self.unit = target, limit, slack, _checked_unit(unit, "length")

    def score_one(self, item: RewardInput) -> float:
        length = answer_length(item, self.unit)
        if self.limit is not None:
            return score_under_limit(length, self.limit, self.slack or self.limit)
        return score_near_target(length, self.target or _own_target(item))


class CosineLength(RowsReward):
    """Shorter is better if the answer is right, longer is better if it is wrong.

    r(0) + (r(L) − r(0)) · (1 − cos(πn/L)) / 2, from `correct_short` to `correct_long` for right answers and from
    `wrong_short` to `wrong_long` for wrong ones; `exceeded` from the length L = `limit` on. Another reward, named by
    `of` ("maths") and built with `of_args`, decides what is right: an answer is right if that reward returns its best
    value (or at least `right_at`), wrong if it is invalid there, and not scored if that reward fails.

    arXiv:2502.03373; eddycmu/demystify-long-cot openrlhf/openrlhf/reward/cosine.py, without its margin of 16 tokens and
    with values in [−1, 1], which the weight scales. The defaults are those of huggingface/open-r1
    src/open_r1/rewards.py, whose cosine turns back past the limit.
    """

    name, needs, range = "cosine_length", ("text",), (-1.0, 1.0)
    source = "Demystifying Long CoT, arXiv:2502.03373; huggingface/open-r1"

    def __init__(
        self,
        limit: int,
        of: str = "maths",
        of_args: Mapping[str, Any] | None = None,
        right_at: float | None = None,
        correct_short: float = 1.0,
        correct_long: float = 0.5,
        wrong_short: float = -1.0,
        wrong_long: float = -0.5,
        exceeded: float = -1.0,
        unit: LengthUnit = "tokens",
    ) -> None:
        _check_positive(limit, "cosine_length: limit")
        values = (correct_short, correct_long, wrong_short, wrong_long, exceeded)
        if not all(-1 <= value <= 1 for value in values):
            raise RewardError(f"cosine_length: its values are {values}; they lie in [-1, 1]; the weight scales them")
        if not correct_short >= correct_long >= wrong_long >= wrong_short:
            raise RewardError(
                "cosine_length: correct_short, correct_long, wrong_long and wrong_short must fall in this order, "
                f"but are {correct_short}, {correct_long}, {wrong_long} and {wrong_short}"
            )
        self.judge = load(of, **(of_args or {}))
        self.inner_rewards = (self.judge,)
        if self.judge.scope is not Scope.SAMPLE or self.judge.scheduled or self.judge.direction != "higher":
            raise RewardError(
                f"cosine_length: {of} cannot tell right from wrong: it compares answers, changes during training, or "
                "is better when lower"
            )
        self.right_at = self.judge.range[1] if right_at is None else right_at
        if not math.isfinite(self.right_at):
            raise RewardError(f"cosine_length: {of} has no best value: set right_at to the lowest right value")
        self.correct, self.wrong = (correct_short, correct_long), (wrong_short, wrong_long)
        self.limit, self.exceeded, self.unit = limit, exceeded, _checked_unit(unit, "cosine_length")

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[float | Exception]:
        """Score all answers in one call, since the reward that decides what is right may be faster on a batch."""
        judged = self.judge.score(items, context)
        name = self.judge.name
        scores: list[float | Exception] = []
        rows = zip(items, judged.values[name], judged.status[name], strict=True)
        for row, (item, value, status) in enumerate(rows):
            if failure := judged.failure_of(name, row):
                scores.append(failure)
            else:
                scores.append(self._score(item, right=status is Status.OK and bool(value >= np.float32(self.right_at))))
        return scores

    def _score(self, item: RewardInput, right: bool) -> float | Exception:
        length = attempt(answer_length, item, self.unit, errors=FAULTS)
        if isinstance(length, Exception):
            return length
        if length >= self.limit:
            return self.exceeded
        short, long = self.correct if right else self.wrong
        return cosine_interpolate(short, long, length / self.limit)


class SoftOverlong(Reward):
    """0 up to `limit` − `cache`, falling linearly to −1 at `limit`, and −1 past it.

    DAPO, arXiv:2503.14476, equation 13, with L_max = `limit` and L_cache = `cache`; a cache of 0 is a step.
    """

    name, needs, range = "soft_overlong", ("text",), (-1.0, 0.0)
    source = "DAPO, arXiv:2503.14476, eq. 13"

    def __init__(self, limit: int, cache: int, unit: LengthUnit = "tokens") -> None:
        _check_positive(limit, "soft_overlong: limit")
        if not isinstance(cache, int) or not 0 <= cache <= limit:
            raise RewardError(f"soft_overlong: cache is {cache!r}; expected a whole number from 0 to {limit}")
        self.limit, self.cache, self.unit = limit, cache, _checked_unit(unit, "soft_overlong")

    def score_one(self, item: RewardInput) -> float:
        return soft_overlong(answer_length(item, self.unit), self.limit, self.cache)


class Repetition(Reward):
    """Minus the fraction of repeated n-grams: 0 if nothing is repeated, towards −1 if everything is.

    −(1 − different n-grams / n-grams), over lower-cased words, where each character of Chinese and Japanese is one word
    (see `split_words`), or over the token ids in `metadata["tokens"]`. 0 for fewer than n units.

    arXiv:2502.03373, appendix C.2; eddycmu/demystify-long-cot openrlhf/openrlhf/reward/repetition.py and
    huggingface/open-r1 src/open_r1/rewards.py, whose `max_penalty` is the weight here.
    """

    name, needs, range = "repetition", ("text",), (-1.0, 0.0)
    source = "Demystifying Long CoT, arXiv:2502.03373, app. C.2; huggingface/open-r1"

    def __init__(self, ngram: int = 3, unit: Literal["words", "tokens"] = "words") -> None:
        if not isinstance(ngram, int) or isinstance(ngram, bool) or not 1 <= ngram <= MAX_NGRAM:
            raise RewardError(f"repetition: ngram is {ngram!r}; expected a whole number from 1 to {MAX_NGRAM}")
        if unit not in ("words", "tokens"):
            raise RewardError(f"repetition: unit is {unit!r}; it is words or tokens")
        self.ngram, self.unit = ngram, unit

    def score_one(self, item: RewardInput) -> float:
        units = _token_ids(item) if self.unit == "tokens" else split_words(_bounded(item.text).lower())
        return -repeated_ngram_fraction(units, self.ngram)


def score_near_target(length: int, target: int) -> float:
    """Return 1 at the target, falling linearly to 0 at length 0 and at twice the target."""
    return 1.0 if length == target else clamp_below_one(max(0.0, 1 - abs(length - target) / target))


def score_under_limit(length: int, limit: int, slack: int) -> float:
    """Return 1 up to the limit, falling linearly to 0 at limit + slack."""
    return 1.0 if length <= limit else clamp_below_one(max(0.0, 1 - (length - limit) / slack))


def cosine_interpolate(first: float, last: float, progress: float) -> float:
    """Return `first` at progress 0, `last` at progress 1, and values along half a cosine in between."""
    return first + (last - first) * (1 - math.cos(math.pi * progress)) / 2


def soft_overlong(length: int, limit: int, cache: int) -> float:
    """Return DAPO's penalty for overlong answers, in [-1, 0]."""
    if length <= limit - cache:
        return 0.0
    return max(-1.0, (limit - cache - length) / cache) if cache else -1.0


def repeated_ngram_fraction(units: Sequence[Hashable], ngram: int) -> float:
    """Return the fraction of n-grams that equal an earlier one, in [0, 1)."""
    total = len(units) - ngram + 1
    if total < 1:
        return 0.0
    different = len(set(zip(*(units[shift : shift + total] for shift in range(ngram)), strict=True)))
    return 1 - different / total


def answer_length(item: RewardInput, unit: LengthUnit) -> int:
    """Return the length of an answer in tokens (from `metadata["tokens"]`), words (see `split_words`) or characters.

    Raises:
        InvalidAnswer: the text has more than `MAX_CHARACTERS` characters.
        ScoringFailed: the unit is tokens, and the metadata has none.
    """
    if unit == "tokens":
        return token_count(item)
    text = _bounded(item.text)
    return len(split_words(text)) if unit == "words" else len(text)


def token_count(item: RewardInput) -> int:
    """Return the number of tokens of an answer, from `metadata["tokens"]`: the number itself, or the token ids."""
    tokens = item.metadata.get("tokens")
    if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0:
        return tokens
    if isinstance(tokens, Sequence) and not isinstance(tokens, str):
        return len(tokens)
    if tokens is None:
        raise ScoringFailed("metadata has no `tokens`; put the answer's token ids there or count in words", "missing")
    raise ScoringFailed(f"metadata['tokens'] is {tokens!r:.60}; expected token ids or their number", "reference")


def split_words(text: str) -> list[str]:
    """Return the words of a text, in order and as written.

    Words are separated by white space. Chinese and Japanese are written without spaces, so each of their characters is
    a word; Korean is written with spaces.
    """
    return _WORD.findall(text)


def _bounded(text: str | None) -> str:
    text = text or ""
    if len(text) > MAX_CHARACTERS:
        raise InvalidAnswer(f"the text has {len(text)} characters; an answer has at most {MAX_CHARACTERS}")
    return text


def _token_ids(item: RewardInput) -> Sequence[int]:
    ids = item.metadata.get("tokens")
    if not isinstance(ids, Sequence) or isinstance(ids, str):
        raise ScoringFailed("metadata has no token ids under `tokens`; put them there or count in words", "missing")
    return ids


def _own_target(item: RewardInput) -> int:
    target = item.references.get("length")
    if target is None:
        raise ScoringFailed("length has no target: set `target`, or give each sample references['length']", "missing")
    if not isinstance(target, int) or isinstance(target, bool) or target < 1:
        raise ScoringFailed(f"references['length'] is {target!r:.60}; expected a whole number above 0", "reference")
    return target


def _check_positive(value: object, argument: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise RewardError(f"{argument} is {value!r}; expected a whole number above 0")


def _checked_unit(unit: LengthUnit, name: str) -> LengthUnit:
    if unit not in get_args(LengthUnit):
        raise RewardError(f"{name}: unit is {unit!r}; it is one of {', '.join(get_args(LengthUnit))}")
    return unit
