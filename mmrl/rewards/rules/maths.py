"""The reward for mathematical answers, compared as mathematics and not as text."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from mmrl.rewards.core.reward import BatchReward, Scored
from mmrl.rewards.core.reward_errors import InvalidAnswer, RewardError, ScoringFailed, attempt
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.parsing.final_answer import (
    AnswerFormat,
    final_answer,
    first_sentence,
    resolve_form,
    stated_answers,
    strip_bold,
)
from mmrl.rewards.parsing.numbers import require_ascii_digits
from mmrl.rewards.rules.math_pool import POOL

MAX_CHARACTERS = 1_000  # number of characters above which an answer is not verified as a formula
MAX_DEPTH = 50  # largest nesting depth of braces

_MATHS = re.compile(r"\$\$([^$]{1,1000})\$\$|\$([^$]{1,1000})\$|\\\(([^$]{1,1000}?)\\\)|\\\[([^$]{1,1000}?)\\\]")
_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textbf|mathbf|operatorname)\s?\{([^{}]{0,200})\}")
_PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,40}(?![A-Za-z])")
_WORDS = re.compile(r"[A-Za-z]{4,40}(?: [A-Za-z]{1,40}){0,20}")
_REWRITTEN = (
    (re.compile(r"\u2212"), "-"),
    (re.compile(r"(?<=[0-9])(?:\\,|\{,\})(?=[0-9]{3}(?![0-9]))"), ""),  # thousands
    (re.compile(r"(?<!\\)\\(?:[ ;:!,]|quad\b|qquad\b)|~"), " "),
    (re.compile(r"\\([dt]?frac|binom)\s?([0-9])\s?([0-9])(?![0-9])"), r"\\\1{\2}{\3}"),
    (re.compile(r"(?<![0-9.}])([0-9]{1,30})\s{1,3}([0-9]{1,30})/([0-9]{1,30})(?![0-9.])"), r"(\1+\\frac{\2}{\3})"),
    (re.compile(r"(?<=[0-9])[eE]([-+]?[0-9]{1,3})(?![0-9A-Za-z])"), r"\\times 10^{\1}"),
)
_RELATION = re.compile(r"\\(?:approx|simeq|sim|equiv|[bp]?mod|to|rightarrow|Rightarrow)(?![A-Za-z])")
_BASE = re.compile(r"[0-9]\s?_\s?\{?\s?([^\s{}]{0,20})")
_TAKEN_BACK = re.compile(r"\b(?:not|never|wrong|incorrect|false|except)\b", re.IGNORECASE)
_SAYS_MORE = re.compile(r"[0-9]|\bor\b(?=\s*\S)|(?<=\S)\s+or\b", re.IGNORECASE)
_TWO_NUMBERS = re.compile(r"[0-9]\s+[0-9]")


class Maths(BatchReward):
    """1 if the answer is mathematically equal to the true one, else 0.

    Compared by math-verify: numbers, fractions, expressions, equations, intervals, sets, matrices, in LaTeX or plain.
    `references.answer` is a number or its LaTeX. The answer is in \\boxed{...} inside or outside the answer's tags, or
    after "the answer is", or is the whole text.

    math-verify's conventions hold: decimals count to six places (0.333333 is 1/3), 9% passes for 9 and for 0.09, x = 3
    for 3, a set in any order, an open interval (1, 2) for the list 1, 2; units may be omitted. This reward is stricter
    with chains of unequal numbers (1 = 2 = 3), small decimals (1e-7 is not 0.0), units (3 m is not 3 km) and words,
    which are compared as words. Prose, different boxes, unbalanced braces, numbers side by side, digits other than
    ASCII 0 to 9 (x², ½), and answers that take more than `timeout_s` of CPU time or 2 GiB are invalid. If that holds
    for the reference, scoring fails.
    """

    name, needs, range = "maths", ("text", "references.answer"), (0.0, 1.0)
    source = "math-verify (github.com/huggingface/Math-Verify)"
    batch_size = 256

    def __init__(self, timeout_s: float = 5.0, form: AnswerFormat = "auto") -> None:
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise RewardError(f"maths: timeout_s is {timeout_s}; expected a number of seconds above 0")
        self.timeout_s, self.form = timeout_s, form

    def score_batch(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Score all answers, as many at once as there are workers."""
        threads = ThreadPoolExecutor(max(1, min(len(items), POOL.size, os.cpu_count() or 1)))
        try:
            return list(threads.map(partial(attempt, self._score), items))
        finally:
            threads.shutdown(cancel_futures=True)  # so that Ctrl-C does not wait for the whole batch

    def _score(self, item: RewardInput) -> float:
        gold = _gold(item.references["answer"])
        answer = extract_formula(final_answer(item.text or "", resolve_form(item, self.form)))
        if _WORDS.fullmatch(gold):  # "blue" is not a product of b, l, u and e, to which "lueb" would be equal
            return float(_as_words(gold) == _as_words(answer))
        _check_prose(answer)
        _check_dropped(answer, gold)
        return float(POOL.equal(gold, answer, self.timeout_s))


def extract_formula(text: str) -> str:
    """Return the one formula that a text states as its answer, in LaTeX that math-verify parses correctly.

    Raises:
        InvalidAnswer: there is no formula, or several, or one that is ambiguous.
    """
    if len(text) > MAX_CHARACTERS:
        raise InvalidAnswer(f"the answer has {len(text)} characters; at most {MAX_CHARACTERS} are read as a formula")
    finals = list(dict.fromkeys(first_sentence(final) for final in stated_answers(text)))
    if len(finals) > 1:
        raise InvalidAnswer(f"{len(finals)} different answers are stated: {', '.join(finals)[:60]!r}")
    part = finals[0] if finals else strip_bold(text).strip()
    inside = list(dict.fromkeys(next(g for g in m.groups() if g).strip() for m in _MATHS.finditer(part)))
    if len(inside) > 1:
        raise InvalidAnswer(f"{len(inside)} different formulas stand in {part[:60]!r}")
    return _readable(inside[0] if inside else part)


def _readable(formula: str) -> str:
    formula = require_ascii_digits(formula).strip().removesuffix(".")
    if not formula:
        raise InvalidAnswer("the answer is empty")
    if "\\boxed" in formula or any(mark in formula.replace("\\$", "") for mark in ("$", "\\(", "\\[")):
        raise InvalidAnswer(f"{formula[:60]!r} has a formula inside other text")
    _check_braces(formula)
    for pattern, plain in _REWRITTEN:
        formula = pattern.sub(plain, formula)
    if _TWO_NUMBERS.search(formula):
        raise InvalidAnswer(f"two numbers stand side by side in {formula[:60]!r}")
    return formula


def _check_braces(formula: str) -> None:
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", formula):
        depth += 1 if brace == "{" else -1
        if not 0 <= depth <= MAX_DEPTH:
            break
    if depth:
        raise InvalidAnswer(f"the braces in {formula[:60]!r} do not close, or are nested deeper than {MAX_DEPTH}")


def _check_prose(formula: str) -> None:
    """Raise InvalidAnswer for a sentence: math-verify parses it as a product of its letters, or drops words."""
    if len(_PROSE.findall(_TEXT.sub(" ", formula))) > 2:
        raise InvalidAnswer(f"{formula[:60]!r} is a sentence; put the answer into \\boxed{{...}}")


def _check_dropped(answer: str, gold: str) -> None:
    """Raise InvalidAnswer if math-verify would drop a part that is not in the gold: 3 \\approx 4, 3_5."""
    texts = set(_TEXT.findall(gold))
    bases = _BASE.findall(answer)
    if (
        any(relation not in gold for relation in _RELATION.findall(answer))
        or (bases and bases != _BASE.findall(gold))
        or any(_SAYS_MORE.search(text) for text in _TEXT.findall(answer) if text not in texts)
        or (_TAKEN_BACK.search(answer) and not _TAKEN_BACK.search(gold))
    ):
        raise InvalidAnswer(f"{answer[:60]!r} has more than one formula that can be compared")


def _gold(answer: Any) -> str:
    try:
        if isinstance(answer, str):
            if _WORDS.fullmatch(answer.strip()):
                return answer.strip()
            _check_prose(gold := extract_formula(answer))
            return gold
        if isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer):
            return _readable(str(answer))
    except InvalidAnswer as err:
        raise ScoringFailed(f"references.answer is {answer!r:.60}: {err}", "reference") from None
    raise ScoringFailed(f"references.answer is {answer!r:.60}; expected a number or the text of a formula", "reference")


def _as_words(text: str) -> str:
    return " ".join(_TEXT.sub(r"\1", text).casefold().split())
