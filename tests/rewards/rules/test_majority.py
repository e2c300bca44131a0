"""`majority`: votes of the own answers of a prompt, and of those to the prompt in other words, counted by hand."""

from __future__ import annotations

import pytest

from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_errors import RewardError, Status
from mmrl.rewards.core.reward_io import reward_input
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rewards.rules.majority import Majority

SAMPLE = Sample("a", prompt="3-9=")
START = {"label": "rephrased", "prompt": "3+1="}


def rows(plain="", rephrased="", group=0):
    """Return answers whose endings are digits; a dot is one that never ends."""
    found = [(digit, None) for digit in plain] + [(digit, START) for digit in rephrased]
    return [
        reward_input(SAMPLE, "3" if digit == "." else f"<think>x</think> {digit}", group, f"{group}/{row}", start=start)
        for row, (digit, start) in enumerate(found)
    ]


def scored(items, **settings):
    return RewardSuite([(Majority(**settings), 1.0)]).score(items)


def test_answers_that_agree_with_most_have_one():
    found = scored(rows("5545", group=0) + rows("71", group=1))
    assert found.values["majority"].tolist() == [1, 1, 0, 1, 1, 0]  # of a tie the first is the label
    assert found.values["majority_share"].tolist() == [0.75] * 4 + [0.5] * 2


def test_the_other_phrasing_is_the_label_and_back():
    """To the prompt most say 5, and to it in other words 4: an error that the own votes confirm has no reward."""
    items = rows("5554", "4445")
    assert scored(items, voters="own").values["majority"].tolist() == [1, 1, 1, 0, 1, 1, 1, 0]
    crossed = scored(items, voters="others")
    assert crossed.values["majority"].tolist() == [0, 0, 0, 1, 0, 0, 0, 1]
    assert crossed.values["majority_share"].tolist() == [0.75] * 8
    assert scored(items, voters="all").values["majority"].tolist() == [1, 1, 1, 0, 0, 0, 0, 1]  # four of each


def test_answers_that_never_end_are_invalid_and_have_no_vote():
    found = scored(rows("..5", "444."), voters="others")
    assert found.status["majority"] == [Status.INVALID] * 2 + [Status.OK] * 4 + [Status.INVALID]
    assert found.values["majority"].tolist() == [0.0] * 7
    assert found.values["majority_share"][[2, 3]].tolist() == pytest.approx([3 / 4, 1 / 3])
    without = scored(rows("5", ".."), voters="others")
    assert without.values["majority"].tolist() == [0.0] * 3 and without.values["majority_share"][0] == 0


def test_where_nobody_votes_nothing_is_scored():
    found = scored(rows("55"), voters="others")
    assert found.status["majority"] == [Status.ERROR] * 2 and "set data.starts" in found.detail[0]["majority"]
    assert scored(rows("5")).values["majority"].tolist() == [1.0]


def test_unknown_voters_are_named():
    with pytest.raises(RewardError, match="voters is 'pairs'; it is one of own, others, all"):
        Majority(voters="pairs")
