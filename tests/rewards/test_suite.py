"""A suite adds rewards up and never turns a failure into a number."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import (
    InvalidAnswer,
    Reward,
    RewardContext,
    RewardError,
    RewardInput,
    RewardOutput,
    RewardSuite,
    Status,
    WeightedReward,
)
from mmrl.rewards.core.executor import Condition

FAIL, GARBAGE = "fail", "garbage"


def scripted(reward_name, low=0.0, extra=None):
    """A reward that reads its score, or how it fails, from the input's references."""

    class Scripted(Reward):
        name, needs, range = reward_name, (), (low, 100.0)

        def score_one(self, item):
            value = item.references[reward_name]
            if value == FAIL:
                raise ConnectionError("judge down")
            if value == GARBAGE:
                raise InvalidAnswer("unreadable")
            return {reward_name: value, extra: 1.0} if extra else value

    return Scripted()


def rows(**columns):
    return [
        RewardInput(id=str(i), group=0, prompt="", references=dict(zip(columns, values, strict=True)))
        for i, values in enumerate(zip(*columns.values(), strict=True))
    ]


@pytest.mark.parametrize("aggregation", ["sum", "gdpo", "pareto"])
def test_an_invalid_answer_is_never_better_off_with_a_negative_weight(aggregation):
    """An answer that cannot be read must not be spared what a penalty costs a good one."""
    suite = RewardSuite([(scripted("copied"), -1.0), (scripted("good"), 1.0)], aggregation=aggregation)
    output = suite.score(rows(copied=[GARBAGE, 60.0, 0.0], good=[5.0, 5.0, 5.0]))
    assert output.values["copied"].tolist() == [100.0, 60.0, 0.0]
    total = output.values["total"].tolist()
    assert total[0] < total[1] < total[2]
    assert output.status["total"] == [Status.INVALID, Status.OK, Status.OK]


def test_an_invalid_answer_is_not_scored_if_a_negative_weight_has_no_worst_value():
    class Unbounded(Reward):
        name, needs, range = "distance", (), (0.0, math.inf)

        def score_one(self, item):
            raise InvalidAnswer("unreadable")

    output = RewardSuite([(Unbounded(), -1.0)]).score(rows(distance=[0.0]))
    assert output.status["total"] == [Status.ERROR] and math.isnan(output.values["total"][0])
    assert output.failures[0]["distance"].kind == "unbounded" and "unreadable" in output.detail[0]["distance"]


def test_total_is_weighted_and_unknown_with_an_unknown_part():
    suite = RewardSuite([(scripted("a", low=-1.0), 2.0), (scripted("b"), -0.5)])
    output = suite.score(rows(a=[1.0, FAIL, GARBAGE, 3.0], b=[4.0, 1.0, 2.0, FAIL]))
    np.testing.assert_array_equal(output.values["a"], np.float32([1, math.nan, -1, 3]))
    np.testing.assert_array_equal(output.values["total"], np.float32([0, math.nan, -3, math.nan]))
    assert output.status["total"] == [Status.OK, Status.ERROR, Status.INVALID, Status.ERROR]
    assert suite.counts(output) == {"a": {"ok": 2, "error": 1, "invalid": 1}, "b": {"ok": 3, "error": 1}}
    assert suite.valid_share(output) == 0.5
    assert output.detail[1] == {"a": "ConnectionError: judge down"} and output.detail[0] == {}
    assert suite.names == ("a", "b") and suite.weights == {"a": 2.0, "b": -0.5}
    assert output.seconds > 0


def test_heldout_rewards_do_not_change_the_total():
    suite = RewardSuite([(scripted("a"), 1.0), (scripted("held_out"), 0.0)])
    output = suite.score(rows(a=[1.0, 2.0], held_out=[5.0, FAIL]))
    assert output.values["total"].tolist() == [1.0, 2.0] and output.status["total"] == [Status.OK] * 2
    assert np.isnan(output.values["held_out"][1]) and suite.valid_share(output) == 1.0


@given(st.lists(st.tuples(*[st.one_of(st.integers(-99, 99), st.sampled_from([FAIL, GARBAGE]))] * 2), max_size=8))
def test_total_is_known_exactly_if_every_part_is(pairs):
    suite = RewardSuite([(scripted("a", low=-100), 0.5), (scripted("b", low=-100), 2.0)])
    output = suite.score(rows(a=[a for a, _ in pairs], b=[b for _, b in pairs]))
    for row, pair in enumerate(pairs):
        total = output.values["total"][row]
        if FAIL in pair:
            assert np.isnan(total)
        else:
            a, b = (-100 if v == GARBAGE else v for v in pair)
            assert total == pytest.approx(0.5 * a + 2 * b)


class Broken(Reward):
    """Overrides `score`, as rewards with a model do, in ways that a suite must survive or refuse."""

    name, range = "broken", (0.0, 1.0)

    def __init__(self, answer):
        self.answer = answer

    def score_one(self, item):
        raise NotImplementedError

    def score(self, batch, context=None):
        return self.answer(batch, context)


def output_of(values, status, **further):
    return RewardOutput({"broken": np.float32(values)}, {"broken": status}, [{} for _ in values], **further)


def test_failed_scorers_are_errors_in_every_row():
    suite = RewardSuite([(Broken(lambda batch, context: 1 / 0), 1.0), (scripted("a"), 1.0)])
    output = suite.score(rows(a=[1.0, 2.0]))
    assert np.isnan(output.values["total"]).all() and suite.counts(output)["broken"] == {"error": 2}
    assert output.values["a"].tolist() == [1, 2] and "ZeroDivisionError" in output.detail[0]["broken"]


def test_values_beside_failures_and_nan_beside_ok_are_failures():
    answer = output_of([1.0, math.nan, 0.0, math.inf], [Status.OK, Status.OK, Status.TIMEOUT, Status.OK])
    suite = RewardSuite([(Broken(lambda batch, context: answer), 1.0)])
    output = suite.score(rows(a=[1.0] * 4))
    np.testing.assert_array_equal(output.values["broken"], np.float32([1, math.nan, math.nan, math.nan]))
    assert output.status["broken"] == [Status.OK, Status.ERROR, Status.TIMEOUT, Status.ERROR]
    assert suite.failures(output) == {"broken": {"error": 2, "timeout": 1}}


def test_events_are_weighted_and_merged_with_the_context():
    def answer(batch, context):
        return output_of([context.progress] * 2, [Status.OK] * 2, events=[[(0, 1.0), (3, 2.0)], []])

    suite = RewardSuite([(scripted("a"), 1.0), (Broken(answer), 0.5)])
    output = suite.score(rows(a=[1.0, 2.0]), RewardContext(progress=0.25))
    assert output.events == [[(0, 0.5), (3, 1.0)], []]
    assert output.values["total"].tolist() == [1.125, 2.125]


@pytest.mark.parametrize(
    "answer, message",
    [
        (output_of([1.0], [Status.OK]), r"broken.score gave 1 rows of values\[broken\] for a batch of 2"),
        (RewardOutput({}, {}, [{}, {}]), "gave nothing, but not its own name"),
        (RewardOutput({"broken": np.zeros(2)}, {}, [{}, {}]), "statuses of"),
        (output_of([1.0, 1.0], [Status.OK] * 2, events=[[]]), "1 rows of events"),
    ],
)
def test_malformed_outputs_raise(answer, message):
    with pytest.raises(RewardError, match=message):
        RewardSuite([(Broken(lambda batch, context: answer), 1.0)]).score(rows(a=[1.0, 2.0]))


@pytest.mark.parametrize(
    "parts, message",
    [
        ([("a", 1.0), ("a", 2.0)], "two rewards called a"),
        ([("total", 1.0)], "no reward may be called 'total'"),
        ([("a", 0.0)], "no reward of the suite has a weight other than 0"),
        ([], "no reward of the suite"),
        ([("a", math.nan)], "weights must be finite"),
    ],
)
def test_invalid_suites_raise(parts, message):
    with pytest.raises(RewardError, match=message):
        RewardSuite([(scripted(name), weight) for name, weight in parts])


def test_duplicate_extra_scores_raise():
    suite = RewardSuite([(scripted("a", extra="strict"), 1.0), (scripted("b", extra="strict"), 1.0)])
    with pytest.raises(RewardError, match="b gives scores called 'strict', a name that is already taken"):
        suite.score(rows(a=[1.0], b=[1.0]))


def test_an_empty_batch():
    suite = RewardSuite([(scripted("a"), 1.0)])
    output = suite.score([])
    assert output.values["total"].shape == (0,) and suite.valid_share(output) == 1.0 and output.events == []


def test_conditional_rewards_count_where_the_outcome_reaches_the_threshold():
    bonus = WeightedReward(scripted("bonus"), 0.5, counts_if=Condition("outcome", 1.0))
    suite = RewardSuite([(scripted("outcome"), 1.0), bonus])
    output = suite.score(rows(outcome=[1.0, 0.5, 0.0, 2.0, FAIL, 0.0], bonus=[4.0, 4.0, 4.0, FAIL, 4.0, FAIL]))
    np.testing.assert_array_equal(output.values["total"], np.float32([3, 0.5, 0, math.nan, math.nan, 0]))
    np.testing.assert_array_equal(output.values["bonus"], np.float32([4, 4, 4, math.nan, 4, math.nan]))
    assert output.status["total"] == [Status.OK] * 3 + [Status.ERROR] * 2 + [Status.OK]


def test_the_outcome_may_be_measured_alone_and_be_better_when_lower():
    class Distance(Reward):
        name, needs, range, direction = "distance", (), (0.0, 9.0), "lower"

        def score_one(self, item):
            return item.references["distance"]

    suite = RewardSuite([(Distance(), 0.0), WeightedReward(scripted("a"), counts_if=Condition("distance", 0.3))])
    output = suite.score(rows(distance=[0.1, 0.3, 0.4], a=[5.0, 5.0, 5.0]))
    assert output.values["total"].tolist() == [5, 5, 0]


def test_events_of_conditional_rewards_are_withheld_with_their_values():
    def answer(batch, context):
        return output_of([1.0, 1.0], [Status.OK] * 2, events=[[(0, 1.0)], [(3, 2.0)]])

    conditional = WeightedReward(Broken(answer), 0.5, counts_if=Condition("a", 1.0))
    output = RewardSuite([(scripted("a"), 1.0), conditional]).score(rows(a=[1.0, 0.0]))
    assert output.events == [[(0, 0.5)], []] and output.values["total"].tolist() == [1.5, 0.0]


def test_the_floor_of_a_gate_counts_with_conditional_rewards_that_add_nothing():
    bonus = WeightedReward(scripted("bonus", low=2.0), counts_if=Condition("outcome", 1.0))
    gate = WeightedReward(scripted("check"), 0.0, gate=1.0)
    output = RewardSuite([(scripted("outcome"), 1.0), bonus, gate]).score(rows(outcome=[1], bonus=[3], check=[0]))
    assert output.values["total"].tolist() == [0.0]


@pytest.mark.parametrize(
    ("condition", "aggregation", "message"),
    [
        (Condition("b", 1.0), "sum", "counts_if names b, which is no other reward"),
        (Condition("c", 1.0), "sum", r"counts_if names c, which is no other reward of the suite \(a\)"),
        (Condition("a", 1.0), "gdpo", "not with 'gdpo'"),
    ],
)
def test_conditions_that_cannot_decide_are_refused(condition, aggregation, message):
    with pytest.raises(RewardError, match=message):
        RewardSuite([(scripted("a"), 1.0), WeightedReward(scripted("b"), counts_if=condition)], aggregation=aggregation)


def test_thresholds_of_conditions_are_finite():
    with pytest.raises(RewardError, match=r"counts_if\.at_least is nan; it must be a finite number"):
        WeightedReward(scripted("b"), counts_if=Condition("a", math.nan))


@pytest.mark.parametrize("part", [scripted("length"), ("maths", 1.0), (1.0, scripted("length"))])
def test_a_part_that_is_no_pair_of_reward_and_weight_is_named(part):
    with pytest.raises(RewardError, match=r"^a suite is made of pairs \(reward, weight\), such as .*, not of "):
        RewardSuite([part])


def test_an_answer_that_is_no_reward_input_is_named():
    with pytest.raises(RewardError, match=r"^a suite scores a list of RewardInput, and one of its items is a str$"):
        RewardSuite([(scripted("length"), 1.0)]).score(["an answer"])
