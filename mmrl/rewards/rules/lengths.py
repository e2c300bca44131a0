"""How long an answer is: towards a target, under a limit, by a cosine that knows whether it is right.

All of them measure the whole text, thoughts included. Tokens are what a policy pays for, but a text does not tell how
many it has: they are read from `metadata["tokens"]`, which holds the ids of the answer's tokens or how many there are.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from mmrl.rewards.core.registry import load
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed, Status
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.core.spec import Scope, WeightFile
from mmrl.rewards.parsing.final_answer import MAX_CHARACTERS
from mmrl.rewards.parsing.words import split_words
from mmrl.rewards.rules.below_one import below_one

LengthUnit = Literal["tokens", "words", "characters"]


class Length(Reward):
    """How near the length is to a target, or whether it stays under a limit.

    With `target` T (or without any argument, when `references["length"]` is each sample's own): 1 − |n − T| / T, no
    less than 0. With `limit` L: 1 up to L, then falling in a line to 0 at L + `slack` (by default 2L).

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
        for given, argument in ((target, "target"), (limit, "limit"), (slack, "slack")):
            if given is not None:
                _check_positive(given, f"length: {argument}")
        self.target, self.limit, self.slack, self.unit = target, limit, slack, _checked_unit(unit, "length")

    def score_one(self, item: RewardInput) -> float:
        length = answer_length(item, self.unit)
        if self.limit is not None:
            return score_under_limit(length, self.limit, self.slack or self.limit)
        return score_near_target(length, self.target or _own_target(item))


class CosineLength(Reward):
    """Shorter is better where the answer is right, longer is better where it is wrong.

    r(0) + (r(L) − r(0)) · (1 − cos(πn/L)) / 2, from `correct_short` to `correct_long` for right answers and from
    `wrong_short` to `wrong_long` for wrong ones; `exceeded` from the length L = `limit` on. What is right is asked of
    another reward, by name: `of="maths"`, built with `of_args`. An answer is right if that reward gives its best value
    (or at least `right_at`), wrong if it is invalid there, and not scored if that reward fails.

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
            raise RewardError(
                f"cosine_length: its values are {values}; each lies in [-1, 1], and the weight scales them"
            )
        if not correct_short >= correct_long >= wrong_long >= wrong_short:
            raise RewardError(
                "cosine_length: correct_short, correct_long, wrong_long and wrong_short must fall in this order, "
                f"but are {correct_short}, {correct_long}, {wrong_long} and {wrong_short}"
            )
        self.judge = load(of, **(of_args or {}))
        if self.judge.scope is not Scope.SAMPLE or self.judge.scheduled or self.judge.direction != "higher":
            raise RewardError(
                f"cosine_length: {of} cannot say what is right: it compares answers, changes in training or is an error"
            )
        self.right_at = self.judge.range[1] if right_at is None else right_at
        if not math.isfinite(self.right_at):
            raise RewardError(f"cosine_length: {of} has no best value; say with right_at from which on it is right")
        self.correct, self.wrong = (correct_short, correct_long), (wrong_short, wrong_long)
        self.limit, self.exceeded, self.unit = limit, exceeded, _checked_unit(unit, "cosine_length")

    def score_one(self, item: RewardInput) -> float:
        """The score of one answer."""
        scored = self.score_rows([item], RewardContext())[0]
        if isinstance(scored, Exception):
            raise scored
        return scored

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> Sequence[float | Exception]:
        """All at once, since the reward that says what is right may work faster on many."""
        judged = self.judge.score(items, context)
        name = self.judge.name
        scores: list[float | Exception] = []
        for item, value, status, failures in zip(
            items, judged.values[name], judged.status[name], judged.failures, strict=True
        ):
            if status in (Status.ERROR, Status.TIMEOUT):
                failure = failures[name]
                scores.append(ScoringFailed(f"{name} could not say what is right", failure.kind, failure.transient))
            else:
                scores.append(self._score(item, right=status is Status.OK and bool(value >= np.float32(self.right_at))))
        return scores

    def _score(self, item: RewardInput, right: bool) -> float | Exception:
        try:
            length = answer_length(item, self.unit)
        except (InvalidAnswer, ScoringFailed) as err:
            return err
        if length >= self.limit:
            return self.exceeded
        short, long = self.correct if right else self.wrong
        return cosine_interpolate(short, long, length / self.limit)

    def fingerprint(self) -> str:
        """As of any reward, and of the reward that says what is right."""
        return hashlib.sha256((super().fingerprint() + self.judge.fingerprint()).encode()).hexdigest()

    def weight_files(self) -> tuple[WeightFile, ...]:
        """The files of weights of the reward that says what is right."""
        return self.judge.weight_files()


class SoftOverlong(Reward):
    """0 up to `limit` − `cache`, falling in a line to −1 at `limit`, and −1 past it.

    DAPO, arXiv:2503.14476, equation 13, with L_max = `limit` and L_cache = `cache`; a cache of 0 is a step.
    """

    name, needs, range = "soft_overlong", ("text",), (-1.0, 0.0)
    source = "DAPO, arXiv:2503.14476, eq. 13"

    def __init__(self, limit: int, cache: int, unit: LengthUnit = "tokens") -> None:
        _check_positive(limit, "soft_overlong: limit")
        if not isinstance(cache, int) or not 0 <= cache <= limit:
            raise RewardError(
                f"soft_overlong: cache is {cache!r}; a whole number from 0 to the limit of {limit} is due"
            )
        self.limit, self.cache, self.unit = limit, cache, _checked_unit(unit, "soft_overlong")

    def score_one(self, item: RewardInput) -> float:
        return soft_overlong(answer_length(item, self.unit), self.limit, self.cache)


def score_near_target(length: int, target: int) -> float:
    """1 at the target, falling in a line to 0 at nothing and at twice the target."""
    return 1.0 if length == target else below_one(max(0.0, 1 - abs(length - target) / target))


def score_under_limit(length: int, limit: int, slack: int) -> float:
    """1 up to the limit, falling in a line to 0 at limit + slack."""
    return 1.0 if length <= limit else below_one(max(0.0, 1 - (length - limit) / slack))


def cosine_interpolate(first: float, last: float, progress: float) -> float:
    """From `first` at progress 0 to `last` at progress 1, along half a cosine."""
    return first + (last - first) * (1 - math.cos(math.pi * progress)) / 2


def soft_overlong(length: int, limit: int, cache: int) -> float:
    """DAPO's penalty, in [-1, 0]."""
    if length <= limit - cache:
        return 0.0
    return max(-1.0, (limit - cache - length) / cache) if cache else -1.0


def answer_length(item: RewardInput, unit: LengthUnit) -> int:
    """How long an answer is: in tokens of `metadata["tokens"]`, in words (see `split_words`) or in characters.

    Raises:
        InvalidAnswer: the text is too long to be an answer.
        ScoringFailed: tokens are asked for and not there.
    """
    text = item.text or ""
    if unit == "tokens":
        return token_count(item)
    if len(text) > MAX_CHARACTERS:
        raise InvalidAnswer(f"the text has {len(text)} characters; an answer has at most {MAX_CHARACTERS}")
    return len(split_words(text)) if unit == "words" else len(text)


def token_count(item: RewardInput) -> int:
    """The number of tokens of an answer, from `metadata["tokens"]`: that number, or the tokens' ids."""
    tokens = item.metadata.get("tokens")
    if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0:
        return tokens
    if isinstance(tokens, Sequence) and not isinstance(tokens, str):
        return len(tokens)
    if tokens is None:
        raise ScoringFailed("metadata has no `tokens`; put the answer's token ids there or count in words", "missing")
    raise ScoringFailed(f"metadata['tokens'] is {tokens!r:.60}; token ids or their number are due", "reference")


def _own_target(item: RewardInput) -> int:
    target = item.references.get("length")
    if target is None:
        raise ScoringFailed("length has no target: give it one, or each sample references['length']", "missing")
    if not isinstance(target, int) or isinstance(target, bool) or target < 1:
        raise ScoringFailed(f"references['length'] is {target!r:.60}; a whole number above 0 is due", "reference")
    return target


def _check_positive(given: object, argument: str) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise RewardError(f"{argument} is {given!r}; a whole number above 0 is due")


def _checked_unit(unit: LengthUnit, name: str) -> LengthUnit:
    if unit not in get_args(LengthUnit):
        raise RewardError(f"{name}: unit is {unit!r}; it is one of {', '.join(get_args(LengthUnit))}")
    return unit
