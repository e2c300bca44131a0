"""In a cascade a later scorer sees the answers that earlier ones let through, and no others."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.data.sample import RewardChoice, Sample
from mmrl.rewards import (
    GroupReward,
    InvalidAnswer,
    Reward,
    RewardError,
    RewardInput,
    RewardSuite,
    ScoreCache,
    Status,
    WeightedReward,
    reward_input,
)
from mmrl.rewards.core.cascade import EARLIER_FAILED
from mmrl.rewards.core.executor import BATCHES_AT_ONCE
from mmrl.rewards.core.routing import RoutedRewards

FAIL, GARBAGE = "fail", "garbage"
NAN = math.nan


def scorer(called, low=0.0, high=1.0, lower=False):
    """A reward that reads its score from the answer's references, and remembers the ids of those that it scored."""

    class Read(Reward):
        name, needs, range, direction = called, (), (low, high), "lower" if lower else "higher"

        def __init__(self):
            self.seen = []

        def score_one(self, item):
            self.seen.append(item.id)
            value = item.references[called]
            if value == FAIL:
                raise ConnectionError("down")
            if value == GARBAGE:
                raise InvalidAnswer("unreadable")
            return value

    return Read()


def rows(**columns):
    return [
        RewardInput(id=str(i), group=0, prompt="", references=dict(zip(columns, values, strict=True)))
        for i, values in enumerate(zip(*columns.values(), strict=True))
    ]


def cascade(*later, **settings):
    guard, judge = scorer("guard"), scorer("judge", low=-1.0)
    return (
        guard,
        judge,
        RewardSuite([(guard, 1.0), WeightedReward(judge, 2.0, after={"guard": 0.5}), *later], **settings),
    )


def test_stopped_answers_get_the_worst_value_without_a_call():
    guard, judge, suite = cascade()
    output = suite.score(rows(guard=[1.0, 0.4, 0.5, GARBAGE], judge=[0.5, 1.0, -0.5, 1.0]))
    assert sorted(judge.seen) == ["0", "2"] and len(guard.seen) == 4
    np.testing.assert_array_equal(output.values["judge"], np.float32([0.5, -1, -0.5, -1]))
    np.testing.assert_array_equal(output.values["total"], np.float32([2.0, 0.4 - 2, -0.5, -2]))
    assert output.status["judge"] == [Status.OK, Status.STOPPED, Status.OK, Status.STOPPED]
    assert output.status["total"] == [Status.OK, Status.STOPPED, Status.OK, Status.INVALID]
    assert output.detail[1] == {"judge": "stopped by guard"}
    assert suite.counts(output)["judge"] == {"ok": 2, "stopped": 2} and suite.failures(output) == {}


def test_without_after_every_answer_is_scored():
    guard, judge = scorer("guard"), scorer("judge", low=-1.0)
    RewardSuite([(guard, 1.0), (judge, 2.0)]).score(rows(guard=[1.0, 0.0], judge=[0.5, 1.0]))
    assert len(judge.seen) == 2


def test_where_the_earlier_scorer_failed_nothing_is_known():
    _, judge, suite = cascade(renormalise=True)
    output = suite.score(rows(guard=[FAIL, 1.0], judge=[0.5, FAIL]))
    assert judge.seen == ["1"] and np.isnan(output.values["judge"]).all()
    assert suite.failures(output) == {"guard": {"error": 1}, "judge": {EARLIER_FAILED: 1, "error": 1}}
    assert not output.failures[0]["judge"].transient
    np.testing.assert_array_equal(output.values["total"], np.float32([NAN, 3.0]))


def test_a_stop_is_certain_even_if_another_earlier_scorer_failed():
    both, late = scorer("both"), scorer("late")
    suite = RewardSuite([(scorer("guard"), 0.0), (both, 0.0), WeightedReward(late, after={"guard": 0.5, "both": 0.5})])
    output = suite.score(rows(guard=[FAIL, 0.0, 1.0], both=[0.0, FAIL, 1.0], late=[1.0, 1.0, 1.0]))
    assert late.seen == ["2"]
    assert output.status["late"] == [Status.STOPPED, Status.STOPPED, Status.OK]


def test_a_stopped_answer_is_stopped_to_the_end_whatever_the_later_thresholds():
    last = scorer("last", high=9.0, lower=True)
    _, _, suite = cascade(WeightedReward(last, 1.0, after={"judge": -1.0}))
    output = suite.score(rows(guard=[0.0, 1.0], judge=[1.0, -1.0], last=[3.0, 3.0]))
    assert last.seen == ["1"]
    np.testing.assert_array_equal(output.values["last"], np.float32([9, 3]))
    np.testing.assert_array_equal(output.values["total"], np.float32([-2 - 9, 1 - 2 - 3]))


def test_thresholds_are_upper_bounds_for_rewards_that_are_better_when_lower():
    error, judge = scorer("error", lower=True), scorer("judge")
    RewardSuite([(error, 1.0), WeightedReward(judge, after={"error": 0.3})]).score(
        rows(error=[0.1, 0.3, 0.4], judge=[1.0, 1.0, 1.0])
    )
    assert sorted(judge.seen) == ["0", "1"]


def test_with_a_negative_weight_the_worst_value_is_the_highest():
    risk = WeightedReward(scorer("risk"), -1.0, after={"guard": 0.5})
    output = RewardSuite([(scorer("guard"), 1.0), risk]).score(rows(guard=[0.0, 1.0], risk=[0.0, 0.5]))
    assert output.values["risk"].tolist() == [1.0, 0.5] and output.values["total"].tolist() == [-1.0, 0.5]


def test_gates_conditions_and_gdpo_see_the_worst_value():
    guard, judge = scorer("guard"), scorer("judge", low=-1.0)
    inputs = rows(guard=[1.0, 0.0], judge=[-0.5, 1.0])
    later = WeightedReward(judge, 1.0, after={"guard": 0.5}, gate=-0.75)
    assert RewardSuite([(guard, 1.0), later]).score(inputs).values["total"].tolist() == [0.5, -1.0]
    from mmrl.rewards.core.executor import Condition

    later = WeightedReward(judge, 1.0, after={"guard": 0.5}, counts_if=Condition("guard", 0.5))
    assert RewardSuite([(guard, 1.0), later]).score(inputs).values["total"].tolist() == [0.5, 0.0]
    total = RewardSuite([(guard, 1.0), WeightedReward(judge, after={"guard": 0.5})], aggregation="gdpo").score(inputs)
    assert total.values["total"][0] > 0 > total.values["total"][1]


def test_many_batches_at_once_never_wait_for_one_another():
    release = threading.Event()

    class Slow(Reward):
        name, needs, range = "guard", (), (0.0, 1.0)

        def score_one(self, item):
            release.wait(5)
            return 1.0

    parts = [(Slow(), 1.0)]
    for depth in range(3):
        after = {"guard": 0.5} if not depth else {f"late{depth - 1}": 0.5}
        parts.append(WeightedReward(scorer(f"late{depth}"), after=after))
    suite = RewardSuite(parts)
    pending = [suite.submit(rows(late0=[1.0], late1=[1.0], late2=[1.0])) for _ in range(3 * BATCHES_AT_ONCE)]
    release.set()
    assert [each.result().values["total"].tolist() for each in pending] == [[4.0]] * len(pending)
    joined = suite.join(pending[:2])
    assert joined.values["total"].tolist() == [4.0, 4.0]
    suite.close()


def test_stopped_answers_are_not_cached_and_scored_ones_are(tmp_path):
    cache = ScoreCache(str(tmp_path / "scores.sqlite"))
    inputs = rows(guard=[1.0, 0.0], judge=[0.5, 1.0])
    _, first, suite = cascade(cache=cache)
    suite.score(inputs)
    assert first.seen == ["0"]
    judge = scorer("judge", low=-1.0)
    again = RewardSuite([(scorer("guard"), 0.0), WeightedReward(judge, after={"guard": 0.0})], cache=cache)
    assert again.score(inputs).values["judge"].tolist() == [0.5, 1.0]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-1, 1)), min_size=1, max_size=12), st.floats(0, 1))
def test_the_order_of_a_batch_does_not_matter_and_scored_answers_keep_their_scores(values, threshold):
    guard, judge = zip(*values, strict=True)
    parts = [(scorer("guard"), 1.0), WeightedReward(scorer("judge", low=-1.0), after={"guard": threshold})]
    suite, plain = RewardSuite(parts), RewardSuite([(scorer("guard"), 1.0), (scorer("judge", low=-1.0), 1.0)])
    inputs = rows(guard=guard, judge=judge)
    output, backwards = suite.score(inputs), suite.score(inputs[::-1])
    np.testing.assert_array_equal(output.values["total"], backwards.values["total"][::-1])
    passed = np.float32(guard) >= np.float32(threshold)
    np.testing.assert_array_equal(output.values["total"][passed], plain.score(inputs).values["total"][passed])
    assert (output.values["judge"][~passed] == -1).all()
    suite.close(), plain.close()


class Ranking(GroupReward):
    """Compares answers."""

    name, needs, range = "ranking", (), (0.0, 1.0)

    def score_group(self, items):
        return [0.5] * len(items)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([("a", {"b": 1.0}), ("b", {})], r"a: after names b, which must stand before it in the suite \(nothing does\)"),
        ([("a", {}), ("b", {"b": 1.0})], r"b: after names b, .* \(a\)"),
        ([("a", {}), ("b", {"a": NAN})], r"b: after\.a is nan; it must be a finite number"),
    ],
)
def test_cascades_that_cannot_work_are_refused(parts, message):
    with pytest.raises(RewardError, match=message):
        RewardSuite([WeightedReward(scorer(name), after=after) for name, after in parts])


def test_rewards_that_compare_answers_or_have_no_worst_value_cannot_come_later():
    with pytest.raises(RewardError, match="ranking compares the answers to a prompt, and after would hide some"):
        RewardSuite([(scorer("a"), 1.0), WeightedReward(Ranking(), after={"a": 1.0})])
    with pytest.raises(RewardError, match="b has no worst value, which after gives"):
        RewardSuite([(scorer("a"), 1.0), WeightedReward(scorer("b", low=-math.inf), after={"a": 1.0})])
    RewardSuite([(Ranking(), 1.0), WeightedReward(scorer("b"), after={"ranking": 0.5})]).close()


def test_samples_that_name_their_own_rewards_take_no_part_in_the_runs_cascade():
    guard, judge = scorer("guard"), scorer("judge")
    kinds = {"guard": guard, "judge": judge}
    rewards = RoutedRewards(
        [WeightedReward(guard), WeightedReward(judge, after={"guard": 0.5})],
        [(RewardChoice("judge"),)],
        load=lambda name, **args: kinds[name],
    )
    samples = [
        Sample(id="stopped", prompt="p", metadata={"guard": 0.0, "judge": 1.0}),
        Sample(id="own", prompt="p", metadata={"guard": 0.0, "judge": 0.75}, rewards=(RewardChoice("judge"),)),
        Sample(id="passed", prompt="p", metadata={"guard": 1.0, "judge": 0.5}),
    ]
    batch = [reward_input(sample, "x", 0, sample.id) for sample in samples]
    output = rewards.join([rewards.submit(batch), rewards.submit(batch[:1])])
    assert sorted(judge.seen) == ["own", "passed"]
    np.testing.assert_array_equal(output.values["total"], np.float32([0, 0.75, 1.5, 0]))
    assert rewards.counts(output)["judge"] == {"stopped": 2, "ok": 2}
    rewards.close()
