"""The probability of the right verdict without thoughts, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mmrl.data.sample import Sample
from mmrl.rewards import RewardContext, load
from mmrl.rewards.core.reward_io import reward_input
from mmrl.rewards.core.text_scoring import TextQuery


class EvenStub:
    """A model that gives A and B the probabilities 0.6 and 0.2 after empty thoughts, and 0.5 to the end."""

    def log_probs(self, texts: Sequence[TextQuery]) -> list[np.ndarray]:
        assert all(each.prefix == "<think></think>" for each in texts)
        return [np.log(np.array([{"A": 0.6, "B": 0.2}[each.text], 0.5], np.float32)) for each in texts]


def test_both_verdicts_are_weighed_against_each_other():
    items = [reward_input(Sample(letter, prompt="?", answer=letter), "any", n, letter) for n, letter in enumerate("AB")]
    output = load("direct_verdict").score(items, RewardContext(models={"policy": EvenStub()}))
    assert output.values["direct_verdict"].tolist() == pytest.approx([0.75, 0.25])


def test_outside_of_a_run_there_is_no_model():
    items = [reward_input(Sample("A", prompt="?", answer="A"), "any", 0, "A")]
    assert load("direct_verdict").score(items).failures[0]["direct_verdict"].kind == "no_model"
