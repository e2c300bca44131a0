"""`BalanceScore`: the temperature and the threshold at which kept answers are many, right and different."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mmrl.config.controller import TEMPERATURE, THRESHOLD
from mmrl.errors import ConfigError
from mmrl.rewards.core.reward_io import TOTAL
from mmrl.training.rollouts.controllers import Controller, Probe, ProbeAnswers


@dataclass(frozen=True)
class BalanceScore(Controller):
    """The pair with the best balance score, B-STaR (arXiv:2412.17256), section 3.

    Set `advantage.keep` to the number of answers to a prompt: the score takes all that reach the threshold for kept.

    Raises:
        ConfigError: there are no candidates, or a temperature or `wanted` is not above 0.
    """

    moves: ClassVar[Sequence[str]] = (TEMPERATURE, THRESHOLD)
    temperatures: tuple[float, ...] = (0.6, 0.8, 1.0, 1.2)
    thresholds: tuple[float, ...] = (1.0,)
    """An answer is kept if its total reward is at least this."""
    wanted: int = 4
    """The number of different right answers to a prompt that is enough."""
    right: str = TOTAL
    """The reward that is at least 1 for right answers."""

    def __post_init__(self) -> None:
        if not self.temperatures or not self.thresholds:
            raise ConfigError("data.controller: balance_score needs at least one temperature and one threshold")
        if min(self.temperatures) <= 0 or self.wanted < 1:
            raise ConfigError(
                "data.controller: balance_score needs temperatures above 0 and a wanted number of 1 or more"
            )

    def choose(self, probe: Probe, number: int) -> Mapping[str, float]:
        """Return the candidates with the highest score; of equal ones, the first."""
        best, chosen = -np.inf, (self.temperatures[0], self.thresholds[0])
        for temperature in self.temperatures:
            answers = probe(temperature)
            for threshold in self.thresholds:
                score = balance_score(answers, threshold, self.wanted, self.right)
                if score > best:
                    best, chosen = score, (temperature, threshold)
        return dict(zip(self.moves, chosen, strict=True))


def balance_score(answers: ProbeAnswers, threshold: float, wanted: int, right: str = TOTAL) -> float:
    """Return the mean over prompts of min(u / wanted, 1) u / n.

    n is the number of different texts among the kept answers to a prompt, those with a total of at least `threshold`,
    and u the number of these that are right. A prompt without a kept answer has 0. Of equal texts one alone is counted
    in n as in u, as the authors do, who select no text twice (hkust-nlp/B-STaR train_code/determine_hyper.py@a0f5d95):
    otherwise a right answer would lower the score whenever it is written again.

    >>> rewards = np.array([[1.0, 1.0, 1.0, 0.0]])
    >>> balance_score(ProbeAnswers([["a", "a", "b", "c"]], {"total": rewards}), 1.0, wanted=4)
    0.5
    """
    if right not in answers.rewards:
        known = ", ".join(sorted(answers.rewards))
        raise ConfigError(f"data.controller: no reward is named {right!r}; there are {known}")
    kept = np.nan_to_num(answers.rewards[TOTAL], nan=-np.inf) >= threshold
    good = kept & (np.nan_to_num(answers.rewards[right], nan=-np.inf) >= 1)
    scores = []
    for texts, keep, fine in zip(answers.texts, kept, good, strict=True):
        different = len({text for text, each in zip(texts, keep, strict=True) if each})
        right_ones = len({text for text, each in zip(texts, fine, strict=True) if each})
        scores.append(min(right_ones / wanted, 1.0) * right_ones / different if different else 0.0)
    return float(np.mean(scores))
