"""Lists of calculations for a tool, and the reward model of replies."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from mmrl.rewards import load
from mmrl.rewards.core.reward_errors import RewardError, Status
from mmrl.rewards.core.reward_io import reward_input
from mmrl.rewards.rules.tool_call_match import written_calls as read_calls
from mmrl_shapeworld import splits
from mmrl_shapeworld.reasoning.calculations import Calculation, part_of
from mmrl_shapeworld.reasoning.listed_calls import ListCaller, lists, written_calls
from mmrl_shapeworld.reasoning.reply_preference import KINDS, ReplyPreference, fitted_scores

WANTED = (Calculation(10, 3, "+*", (5, 7)), Calculation(10, 2, "-", (6,)))


def test_the_calls_of_a_right_caller_are_those_wanted():
    for sample, wanted in zip(splits.samples("listed-validation")[:50], lists("listed-validation"), strict=False):
        text = written_calls(wanted, ListCaller(), np.random.default_rng(0))
        scored = load("tool_call_match").score([reward_input(sample, text, 0, "a")])
        assert scored.values["tool_call_match"][0] == 3 and sample.source == f"listed-{len(wanted)}"


def test_habits_change_what_they_say():
    def texts(**habits: float) -> list[str]:
        found = read_calls(written_calls(WANTED, ListCaller(**habits), np.random.default_rng(1)))
        return [call.parameters["text"] for call in found]

    assert texts() == ["3+5*7", "2-6"]
    assert texts(habit=1) == ["3+5+7", "2-6"]
    assert texts(omits=1) == ["3+5*7"]
    assert [each[:-1] for each in texts(slips=1)] == ["3+5*", "2-"]


@pytest.mark.integration
def test_lists_of_different_splits_share_no_calculation():
    parts = [{str(each) for row in lists(f"listed-{part}") for each in row} for part in ("train", "development")]
    assert not parts[0] & parts[1]
    demonstrations = [each.demonstration for each in splits.samples("listed-train")]
    assert demonstrations == [each.demonstration for each in splits.samples("listed-train")]
    exact = [
        [call.parameters["text"] for call in read_calls(text)] == [each["arguments"]["text"] for each in sample.answer]
        for text, sample in zip(demonstrations, splits.samples("listed-train"), strict=True)
    ]
    assert 0.02 < np.mean(exact) < 0.2  # careless, and sometimes right
    assert json.dumps(splits.samples("listed-development")[0].answer)


def test_lists_of_fours_have_four_calculations_of_their_split():
    lengths = {kind: Counter(map(len, lists(f"{kind}-validation"))) for kind in ("listed", "listed-fours")}
    assert sorted(lengths["listed"]) == [3, 4, 5] and lengths["listed-fours"] == {4: 512}
    assert not {*lists("listed-fours-validation")} & {*lists("listed-validation")}
    assert {part_of(each) for row in lists("listed-fours-validation") for each in row} == {"validation"}


def test_scores_of_replies_fall_with_distance_whatever_the_thoughts_say():
    sample = next(each for each in splits.samples("sums-train") if each.answer == 1)
    texts = [
        "<think></think>1",
        "<think>4 5</think>1",
        "<think>1</think>0",
        "<think>1</think>6",
        "<think>1</think>wait",
    ]
    values = ReplyPreference().score([reward_input(sample, text, 0, str(n)) for n, text in enumerate(texts)])
    one, again, near, far, none = values.values["reply_preference"].tolist()
    assert one == again > near > far > none


@pytest.mark.integration
def test_scores_need_labels_and_a_digit_to_compare_with():
    with pytest.raises(RewardError, match="labels is 3"):
        ReplyPreference(labels=3)
    sample = splits.samples("remainders-train")[0]
    item = reward_input(sample, "1", 0, "a")
    assert (ReplyPreference().score([item]).status["reply_preference"] == [Status.ERROR]) == (sample.answer > 9)
    assert ReplyPreference(seed=1).fingerprint() != ReplyPreference().fingerprint()


def test_many_labels_recover_the_order_of_the_rater():
    scores = fitted_scores(20_000, 3)
    assert list(scores) == sorted(scores, reverse=True) and len(scores) == KINDS
    assert np.mean(scores) == pytest.approx(0, abs=1e-9) and np.std(scores) == pytest.approx(1)
