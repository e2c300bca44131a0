"""A reward model of replies to calculations, fitted to noisy preferences; it never sees the thoughts before a reply.

Raters see two replies to a calculation and prefer the one whose digit is nearer to the answer, on the circle of the ten
digits. One label in five is wrong. The reward of a reply is its score in a Bradley-Terry model of these labels, which
has one score for each distance, and one for a reply that is no digit.
"""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np

from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl_shapeworld.reasoning.calculations import FAMILIES

MODULUS = FAMILIES["sums"].modulus
KINDS = MODULUS // 2 + 2
"""Distances 0 to 5, and the kind of a reply that is no digit."""
WRONG = 0.2
"""The share of wrong labels."""
STEPS, RATE = 400, 1.0
"""Steps of gradient ascent of the fit, and their size."""


class ReplyPreference(Reward):
    """The score of a reply by a Bradley-Terry model of noisy preferences, with a mean of 0 and a deviation of 1."""

    name, needs, range = "reply_preference", ("text", "references.answer"), (-4.0, 4.0)
    source = "Bradley-Terry on 1,000 labels, one in five wrong"

    def __init__(self, labels: int = 1000, seed: int = 0) -> None:
        """
        Args:
            labels: the number of pairs that were judged.
            seed: the seed of the pairs and of the errors of their labels.
        """
        if labels < KINDS:
            raise RewardError(f"reply_preference: labels is {labels}; it is {KINDS} or above")
        self.scores = fitted_scores(labels, seed)
        self._state = f"{labels} {seed}"

    def score_one(self, item: RewardInput) -> float:
        answer = item.references["answer"]
        if not isinstance(answer, int) or not 0 <= answer < MODULUS:
            raise ScoringFailed(f"references['answer'] is {answer!r:.60}, not a digit: take shapeworld:sums-train")
        return self.scores[kind_of(reply_of(item.text or ""), answer)]

    def fingerprint(self) -> str:
        """Return the digest of this reward and of its labels."""
        return hashlib.sha256((super().fingerprint() + self._state).encode()).hexdigest()


def reply_of(text: str) -> str:
    """Return what stands after the thoughts.

    >>> reply_of("<think>8 6</think>6"), reply_of("6")
    ('6', '6')
    """
    return text.rpartition("</think>")[2].strip()


def kind_of(reply: str, answer: int) -> int:
    """Return the distance of a reply's digit from the answer on the circle, 0 to 5, or 6 for a reply that is no digit.

    >>> kind_of("9", 0), kind_of("wait", 0)
    (1, 6)
    """
    if len(reply) != 1 or reply not in "0123456789":
        return KINDS - 1
    apart = abs(int(reply) - answer)
    return min(apart, MODULUS - apart)


@cache
def fitted_scores(labels: int, seed: int) -> tuple[float, ...]:
    """Return the score of each kind of reply, fitted to labels of pairs of different kinds, all equally likely."""
    rng = np.random.default_rng((88, seed))
    first = rng.integers(KINDS, size=labels)
    second = (first + rng.integers(1, KINDS, size=labels)) % KINDS
    right = rng.random(labels) >= WRONG
    better, worse = np.where((first < second) == right, (first, second), (second, first))
    scores = np.zeros(KINDS)
    for _ in range(STEPS):
        surprise = 1 / (1 + np.exp(scores[better] - scores[worse]))
        gradient = np.bincount(better, surprise, KINDS) - np.bincount(worse, surprise, KINDS)
        scores += RATE * gradient * KINDS / labels
    standard = (scores - scores.mean()) / scores.std()
    return tuple(standard.tolist())
