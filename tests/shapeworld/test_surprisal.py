"""The surprisal of answers: by hand, and as the entropy of a model that is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_errors import Status
from mmrl.rewards.core.reward_io import RewardContext, reward_input
from mmrl_shapeworld.reasoning.surprisal import Surprisal

SAMPLE = Sample("s", prompt="3+5=")
CHANCES = {"a": 0.5, "b": 0.3, "c": 0.2}


class Letters:
    """A model whose letters are independent, and which ends after each with the probability 1."""

    def log_probs(self, texts):
        return [np.log(np.array([*(CHANCES[letter] for letter in each.text), 1.0], np.float32)) for each in texts]


def scored(*texts):
    items = [reward_input(SAMPLE, text, 0, f"{row}") for row, text in enumerate(texts)]
    return Surprisal().score(items, RewardContext(models={"policy": Letters()}))


def test_it_is_the_sum_over_tokens():
    values = scored("a", "bc", "").values
    assert values["surprisal"].tolist() == pytest.approx([-math.log(0.5), -math.log(0.06), 0.0], abs=1e-6)
    # The end of each is a token too, and certain.
    assert values["surprisal_token"].tolist() == pytest.approx([-math.log(0.5) / 2, -math.log(0.06) / 3, 0], abs=1e-6)


def test_its_expectation_is_the_entropy():
    """Two letters of entropy h each have 2 h in all; a wrong model of uniform letters would give 2 log 3."""
    pairs = ["".join(pair) for pair in itertools.product("abc", repeat=2)]
    weights = np.array([CHANCES[first] * CHANCES[second] for first, second in pairs])
    one = -sum(chance * math.log(chance) for chance in CHANCES.values())
    assert weights @ scored(*pairs).values["surprisal"] == pytest.approx(2 * one, abs=1e-6)
    assert 2 * one < 2 * math.log(3) - 0.1


def test_it_needs_a_model():
    found = Surprisal().score([reward_input(SAMPLE, "a", 0, "x")])
    assert found.status["surprisal"] == [Status.ERROR] and "no model policy" in found.detail[0]["surprisal"]
