"""A rule where it is sure, a model where it is not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from mmrl.data.sample import Sample
from mmrl.rewards import RewardError, Status, load, reward_input
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput

HERE = "tests/rewards/learned/test_hybrid.py"


class Opinion(Reward):
    """The number in `metadata.opinion`: a score without bounds; it remembers its calls."""

    name, needs, range = "opinion", ("text",), (-math.inf, math.inf)
    seen: Sequence[str] = ()

    def score_one(self, item: RewardInput) -> float:
        type(self).seen = (*self.seen, item.id)
        if "opinion" not in item.references:
            raise ScoringFailed("there is no opinion", "http_503", transient=True)
        return float(item.references["opinion"])


class Cost(Reward):
    """A value in [0, 10] of which less is better."""

    name, needs, range, direction = "cost", ("text",), (0.0, 10.0), "lower"

    def score_one(self, item: RewardInput) -> float:
        return float(item.references["opinion"])


def answers(*rows):
    """From (text, opinion, answer, confidence) to inputs, of which each may be None but the text."""
    found = []
    for n, (text, opinion, answer, sure) in enumerate(rows):
        metadata = {key: value for key, value in (("opinion", opinion), ("confidence", sure)) if value is not None}
        found.append(reward_input(Sample(str(n), answer=answer, metadata=metadata), text, n, str(n)))
    return found


def hybrid(**args):
    return load("hybrid", **{"rule": "numeric", "model": f"{HERE}:Opinion", **args})


def test_values_by_hand():
    """c r + (1 - c) / (1 + exp(-m)): the rule alone, the model alone, and both."""
    reward = hybrid()
    rows = [("6", 5, 6, None), ("7", 5, 6, None), ("6", 0, None, None), ("6", -2, 6, 0.25), ("6", 1, 6, 0.0)]
    found = reward.score(answers(*rows))
    logistic = lambda m: 1 / (1 + math.exp(-m))  # noqa: E731
    expected = [1.0, 0.0, 0.5, 0.25 + 0.75 * logistic(-2), logistic(1)]
    assert found.values["hybrid"] == pytest.approx(expected, abs=1e-6)
    assert found.values["hybrid_confidence"].tolist() == [1.0, 1.0, 0.0, 0.25, 0.0]
    assert found.values["hybrid_rule"][:2].tolist() == [1.0, 0.0] and np.isnan(found.values["hybrid_rule"][2])
    assert set(type(reward.model).seen) == {"2", "3", "4"}  # not called where the rule is sure


def test_a_rule_that_overlooks_right_answers_is_believed_if_it_confirms():
    found = hybrid(if_wrong=0.2).score(answers(("6", -9, 6, None), ("half a dozen or so", 9, 6, None)))
    assert found.values["hybrid"][0] == 1.0
    assert found.values["hybrid"][1] == pytest.approx(0.8, abs=2e-4)  # an invalid answer has the rule's worst value
    assert found.values["hybrid_confidence"].tolist() == pytest.approx([1.0, 0.2])


def test_a_bounded_model_is_scaled_by_its_range_and_direction():
    found = hybrid(model=f"{HERE}:Cost").score(answers(("6", 2, None, None), ("6", 10, None, None)))
    assert found.values["hybrid"] == pytest.approx([0.8, 0.0], abs=1e-6)


def test_a_model_that_fails_is_no_score_where_it_counts():
    found = hybrid().score(answers(("6", None, 6, None), ("6", None, None, None), ("6", 1, 6, 2.0)))
    assert found.status["hybrid"] == [Status.OK, Status.ERROR, Status.ERROR]
    assert found.failures[1]["hybrid"].kind == "http_503" and found.failures[1]["hybrid"].transient
    assert "metadata.confidence is 2.0" in str(found.detail[2])


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(RewardError, match=r"the rule .*Opinion has values without bounds"):
        hybrid(rule=f"{HERE}:Opinion")
    with pytest.raises(RewardError, match=r"if_wrong is 1\.5"):
        hybrid(if_wrong=1.5)
    with pytest.raises(RewardError, match="shortest_right compares answers"):
        hybrid(model="shortest_right")
    assert hybrid().fingerprint() != hybrid(rule_args={"absolute": 1.0}).fingerprint()
