"""The entropy of critical reasoning tokens: by hand, at a word and behind it, and answers that have none."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from mmrl.data.sample import Sample
from mmrl.rewards import load
from mmrl.rewards.core.executor import WeightedReward
from mmrl.rewards.core.reward_errors import RewardError, Status
from mmrl.rewards.core.reward_io import RewardContext, RewardInput, reward_input
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rewards.core.text_scoring import TextQuery
from mmrl.rewards.rules.critical_entropy import CriticalEntropy

SAMPLE = Sample("s", prompt="3+5*7=", answer=56)


class Doubts:
    """A model whose next token is uniform over as many tokens as the text before it has letters `a`, and one more."""

    def entropies(self, texts: Sequence[TextQuery]) -> list[np.ndarray]:
        assert all(not each.text for each in texts)
        return [np.log(np.array([1 + each.prefix.count("a")], np.float32)) for each in texts]


def scored(*texts: str, reward: CriticalEntropy | None = None):
    rows = [reward_input(SAMPLE, text, 0, f"s/{row}") for row, text in enumerate(texts)]
    return (reward or CriticalEntropy(["Wait", "But"])).score(rows, RewardContext(models={"policy": Doubts()}))


def test_it_is_the_mean_over_the_tokens_that_begin_a_critical_word():
    found = scored("a Wait aa But", "Wait", "aa But But")
    expected = [(math.log(2) + math.log(5)) / 2, 0.0, math.log(3)]  # the a of Wait is before But
    assert found.values["critical_entropy"].tolist() == pytest.approx(expected, abs=1e-6)
    assert found.values["critical_entropy_words"].tolist() == [2, 1, 2]


def test_after_a_word_the_next_token_counts():
    after = CriticalEntropy(["Wait"], place="after")
    found = scored("a Wait a", "Wait", reward=after)
    assert found.values["critical_entropy"].tolist() == pytest.approx([math.log(3), math.log(2)], abs=1e-6)


def test_of_overlapping_words_the_longest_is_one_place():
    found = scored("a Wait, a", reward=CriticalEntropy(["Wait", "Wait, a"]))
    assert found.values["critical_entropy_words"].tolist() == [1]


def test_an_answer_without_a_critical_word_is_not_measured_and_no_failure():
    found = scored("wait a", "Wait")
    assert found.status["critical_entropy"] == [Status.NOT_APPLICABLE, Status.OK]
    assert math.isnan(found.values["critical_entropy"][0]) and not any(found.failures)


def test_as_a_measure_it_leaves_the_total_and_the_valid_share_alone():
    rewards = [WeightedReward(load("numeric")), WeightedReward(CriticalEntropy(["Wait"]), 0.0)]
    suite = RewardSuite(rewards, min_valid_share=1.0)
    rows = [reward_input(SAMPLE, text, 0, f"s/{row}") for row, text in enumerate(("56", "a Wait 57"))]
    output = suite.score(rows, RewardContext(models={"policy": Doubts()}))
    suite.close()
    assert output.values["total"].tolist() == [1.0, 0.0]
    assert output.status["critical_entropy"] == [Status.NOT_APPLICABLE, Status.OK] and not any(output.failures)
    assert output.values["critical_entropy"][1] == pytest.approx(math.log(2), abs=1e-6)


def test_it_needs_a_model_and_words():
    found = CriticalEntropy().score([RewardInput("s", 0, "", text="Wait", sample=SAMPLE)])
    assert (
        found.status["critical_entropy"] == [Status.ERROR] and "no model policy" in found.detail[0]["critical_entropy"]
    )
    for words in ("Wait", [], [""]):
        with pytest.raises(RewardError, match="it is a list of texts"):
            CriticalEntropy(words)
    with pytest.raises(RewardError, match="place is 'before'; it is at or after"):
        CriticalEntropy(place="before")
