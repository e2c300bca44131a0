"""Scores that bunch are spread about their mean, in order, and others stay as they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import InvalidAnswer, Reward, RewardError, RewardInput, ScoringFailed, Status, load
from mmrl.rewards.core import registry
from mmrl.rewards.rules.adaptive_spread import AdaptiveSpread, spread_scores

BOUNDS = (0.0, 1.0)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.50, 0.52], [0.41, 0.61]),  # a deviation of 0.01 becomes 0.1
        ([0.50, 0.501], [0.4905, 0.5105]),  # by a factor of at most 20
        ([0.2, 0.8], [0.2, 0.8]),  # spread enough
        ([0.9, 0.9, 0.9], [0.9, 0.9, 0.9]),
        ([0.7], [0.7]),
        ([0.98, 1.0], [0.89, 1.0]),  # clipped
    ],
)
def test_scores_by_hand(scores, expected):
    np.testing.assert_allclose(spread_scores(np.array(scores), 0.1, 20.0, BOUNDS), expected, atol=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.01, 0.5))
def test_order_and_bounds_are_kept(scores, least):
    spread = spread_scores(np.array(scores), least, 20.0, BOUNDS)
    assert (spread >= 0).all() and (spread <= 1).all()
    order = np.argsort(scores, kind="stable")
    assert (np.diff(spread[order]) >= -1e-12).all()


class Close(Reward):
    """Reads a number, and how reading fails."""

    name, needs, range = "close", ("text",), (0.0, 1.0)

    def score_one(self, item):
        if item.text == "garbage":
            raise InvalidAnswer("no number")
        if item.text == "down":
            raise ScoringFailed("the encoder is down", "connection")
        return float(item.text)


@pytest.fixture
def close(monkeypatch):
    monkeypatch.setitem(registry.REWARDS.registered, "close", Close)
    return AdaptiveSpread("close")


def test_groups_are_spread_apart_and_faults_move_nothing(close):
    texts = ["0.50", "0.52", "garbage", "down", "0.2", "0.8"]
    output = close.score([RewardInput(str(n), int(n > 3), "", text=text) for n, text in enumerate(texts)])
    np.testing.assert_allclose(output.values["adaptive_spread"], [0.41, 0.61, -1, np.nan, 0.2, 0.8], atol=1e-6)
    assert output.status["adaptive_spread"][2:4] == [Status.INVALID, Status.ERROR]
    assert output.failures[3]["adaptive_spread"].kind == "connection"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"of": "format", "least": 0.0}, "least is 0.0"),
        ({"of": "format", "most": 0.5}, "most 0.5"),
        ({"of": "ocr_cer"}, "ocr_cer must score single answers"),
        ({"of": "gated_length", "of_args": {"limit": 5}}, "gated_length must score single answers"),
        ({"of": "compressibility"}, "compressibility must score single answers"),
    ],
)
def test_rewards_that_cannot_be_spread_are_refused(arguments, message):
    with pytest.raises(RewardError, match=message):
        load("adaptive_spread", **arguments)
