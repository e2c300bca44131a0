"""The first and the last stage of a progressive reward, and the stages between them."""

from __future__ import annotations

import math

import pytest

from mmrl.data.sample import Sample
from mmrl.rewards import Reward, RewardError, RewardSuite, Status, WeightedReward, load
from mmrl.rewards.core.reward_io import reward_input
from mmrl.rewards.rules.milestones import Parseable, Reached, RewardStage

from .single_answer import outcome, value

TABLE = r"\begin{tabular}{cc}K&T\\L&A\end{tabular}"
ONE_WRONG = r"\begin{tabular}{cc}K&T\\L&B\end{tabular}"
"""A table of seven nodes with one wrong cell: a distance of 1."""


@pytest.mark.parametrize(
    ("text", "read", "exact", "near"),
    [
        (TABLE, 1, 1, 1),
        (ONE_WRONG, 1, 0, 1),
        (r"\begin{tabular}{c}X\end{tabular}", 1, 0, 0),
        ("K T", 0, 0, 0),
        ("", 0, 0, 0),
    ],
)
def test_tables_by_hand(text, read, exact, near):
    assert value(Parseable("teds"), text, answer=TABLE) == read
    assert value(Reached("teds", 1.0), text, answer=TABLE) == exact
    assert value(Reached("teds", 0.8), text, answer=TABLE) == near


def test_malformed_answers_are_scored_and_failures_are_not():
    assert outcome(Parseable("teds"), "no table", answer=TABLE)[1] is Status.OK
    for reward in (Parseable("teds"), Reached("teds", 1.0)):
        score, status = outcome(reward, TABLE, answer="the truth is no table")[:2]
        assert math.isnan(score) and status is Status.ERROR


def test_distances_are_reached_from_above():
    class Distance(Reward):
        """The number in an answer, where 0 is best."""

        name, needs, range, direction = "distance", ("text",), (0.0, 9.0), "lower"

        def score_one(self, item):
            return float(item.text)

    reward = Reached.__new__(Reached)
    reward.inner, reward.at_least = Distance(), 2.0
    assert [value(reward, text) for text in ("1", "2", "3")] == [1, 1, 0]


def test_stages_pay_one_after_the_other():
    """By hand: form 0.2, then 0.3 times the structure, then 0.5 for the whole, where the one before is right."""
    suite = RewardSuite([
        WeightedReward(load("parseable", of="teds"), 0.2),
        WeightedReward(load("teds", structure_only=True), 0.3, after={"parseable": 1.0}),
        WeightedReward(load("reached", of="teds", at_least=1.0), 0.5, after={"teds": 1.0}),
    ])  # fmt: skip
    sample = Sample("0", prompt="Write the table.", answer=TABLE)
    texts = ["K T", r"\begin{tabular}{cc}K&T\end{tabular}", ONE_WRONG, TABLE]
    total = suite.score([reward_input(sample, text, 0, str(n)) for n, text in enumerate(texts)]).values["total"]
    half = load("teds", structure_only=True).score([reward_input(sample, texts[1], 0, "x")]).values["teds"][0]
    assert 0 < half < 1
    assert total.tolist() == pytest.approx([0, 0.2 + 0.3 * half, 0.5, 1.0])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Parseable("majority"), "parseable: majority must score single answers"),
        (lambda: Reached("teds", 1.5), r"reached: at_least is 1\.5, and teds has values in \[0, 1\]"),
        (lambda: Reached("dynamic_iou", 0.5), "reached: dynamic_iou must score single answers"),
    ],
)
def test_rewards_without_a_verdict_raise(build, message):
    with pytest.raises(RewardError, match=message):
        build()


def test_digest_is_also_that_of_the_other_reward():
    prints = {
        Reached("teds", 1.0).fingerprint(),
        Reached("numeric", 1.0).fingerprint(),
        Reached("teds", 0.5).fingerprint(),
    }
    assert len(prints) == 3


STAGES = [
    {"reward": "parseable", "args": {"of": "teds"}, "weight": 1},
    {"reward": "teds", "args": {"structure_only": True}, "weight": 2},
    {"reward": "reached", "args": {"of": "teds", "at_least": 1.0}, "weight": 5},
]


def test_one_reward_pays_the_stages_as_the_cascade_does():
    """By hand: an eighth, two eighths of the structure where the form is right, and the rest where both are."""
    reward = load("progressive", stages=STAGES)
    structure = value(load("teds", structure_only=True), r"\begin{tabular}{cc}K&T\end{tabular}", answer=TABLE)
    texts = ["K T", r"\begin{tabular}{cc}K&T\end{tabular}", ONE_WRONG, TABLE]
    expected = [0, (1 + 2 * structure) / 8, 3 / 8, 1]
    items = [reward_input(Sample("0", answer=TABLE), text, 0, str(n)) for n, text in enumerate(texts)]
    output = reward.score(items)
    assert output.values["progressive"].tolist() == pytest.approx(expected)
    assert output.values["progressive_passed"].tolist() == [0, 1, 2, 3]
    assert output.status["progressive"] == [Status.OK] * 4
    assert [value(reward, text, answer=TABLE) for text in texts] == pytest.approx(expected)


def test_stages_see_only_answers_that_come_so_far():
    class Counting(Reward):
        """A reward that keeps the answers that it saw."""

        name, needs, range = "counting", ("text",), (-1.0, 3.0)

        def __init__(self):
            self.seen = []

        def score_one(self, item):
            self.seen.append(item.text)
            return 1.0

    reward = load("progressive", stages=STAGES[:2])
    last = Counting()
    reward.stages.append(RewardStage(last, weight=0.5, passed_at=3.0))
    assert value(reward, r"\begin{tabular}{cc}K&T\end{tabular}", answer=TABLE) < 1 and not last.seen
    assert value(reward, ONE_WRONG, answer=TABLE) == 1.0 and last.seen == [ONE_WRONG]  # 1/3 + 2/3 + 1/4, at most 1
    last.seen.clear()
    assert value(reward, "K T", answer=TABLE) == 0 and not last.seen


def test_a_failure_of_a_stage_is_one_of_the_whole():
    score, status = outcome(load("progressive", stages=STAGES), TABLE, answer="the truth is no table")
    assert math.isnan(score) and status is Status.ERROR


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "there are no stages"),
        ([{"args": {}}], "a stage is {'args': {}}; expected reward"),
        ([{"reward": "teds", "weigth": 1}], "expected reward, args, weight and at_least"),
        ([{"reward": "teds", "weight": 0}], "the stage teds has the weight 0"),
        ([{"reward": "teds", "at_least": 2.0}], r"at_least 2\.0; expected a weight above 0, and a value in \[0, 1\]"),
        ([{"reward": "majority"}], "majority must score single answers"),
    ],
)
def test_stages_that_cannot_be_are_refused(stages, message):
    with pytest.raises(RewardError, match=message):
        load("progressive", stages=stages)
