"""Judges that compare answers: pairs in both orders, and groups put in order."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from PIL import Image

from mmrl.data.sample import Sample
from mmrl.rewards import RewardError, RewardInput, Status
from mmrl.rewards.core.reward_io import RewardContext
from mmrl.rewards.judges.judge import JudgePairs, JudgeRanking, pair_indices, shuffled_orders
from tests.rewards.judges.fake_judge_server import FakeJudge, Refuses, Says, Sure, between, in_turn, pictures, text


def pairs(server, **settings):
    return JudgePairs(model="stub", base_url=server.base_url, **{"timeout_s": 5.0} | settings)


def ranking(server, **settings):
    return JudgeRanking(model="stub", base_url=server.base_url, **{"timeout_s": 5.0} | settings)


def answered(*texts, group=0):
    return [RewardInput(id=f"{group}.{i}", group=group, prompt="a number", text=t) for i, t in enumerate(texts)]


def larger(first=0.0):
    """Return a judge that prefers the larger number, with a position bias of `first`."""

    def answer(request):
        a, b = (float(each) for each in between(request, "answer"))
        return Sure(min(1.0, max(0.0, 0.5 + (a - b) / 20 + first)), "A", "B")

    return answer


def in_order(request):
    """A judge that puts numbers in order, the largest first."""
    values = [float(each) for each in between(request, "answer")]
    return Says(" > ".join(str(i + 1) for i in sorted(range(len(values)), key=lambda i: -values[i])))


# pairs


def test_score_is_the_mean_win_rate():
    values = [3.0, 9.0, 1.0, 6.0]
    with FakeJudge(larger()) as server:
        output = pairs(server).score(answered(*map(str, values)))
    expected = [0.5 + np.mean([(x - y) / 20 for j, y in enumerate(values) if j != i]) for i, x in enumerate(values)]
    np.testing.assert_allclose(output.values["judge_pairs"], expected, rtol=1e-5)
    assert len(server.requests) == 4 * 3 and set(output.status["judge_pairs"]) == {Status.OK}


def test_position_bias_cancels_over_both_orders():
    values = ["3", "4", "1"]
    with FakeJudge(larger()) as fair, FakeJudge(larger(first=0.3)) as biased:
        np.testing.assert_allclose(
            pairs(fair).score(answered(*values)).values["judge_pairs"],
            pairs(biased).score(answered(*values)).values["judge_pairs"],
            rtol=1e-5,
        )
    with FakeJudge(Sure(1.0, "A", "B")) as server:
        assert pairs(server).score(answered(*values)).values["judge_pairs"].tolist() == [0.5] * 3


def test_pairs_send_both_images_in_both_orders():
    items = [RewardInput(id=c, group=0, prompt="x", image=Image.new("RGB", (2, 2), c)) for c in ("red", "blue")]
    with FakeJudge(lambda request: Sure(float(pictures(request)[0].getpixel((0, 0))[0] > 0), "A", "B")) as server:
        assert pairs(server).score(items).values["judge_pairs"].tolist() == [1.0, 0.0]
    assert len(server.requests) == 2
    assert all("Answer A:\n[picture]\nAnswer B:\n[picture]" in text(request) for request in server.requests)


def test_words_are_read_without_log_probabilities():
    def answer(request):
        a, b = (float(each) for each in between(request, "answer"))
        return Says("A" if a > b else "Answer: B")

    with FakeJudge(answer) as server:
        assert pairs(server, read="text").score(answered("1", "5", "3")).values["judge_pairs"].tolist() == [
            0.0,
            1.0,
            0.5,
        ]


def test_comparisons_stay_within_groups():
    items = answered("1", "2", group=0) + answered("9", "8", group=1)
    order = [2, 0, 3, 1]
    with FakeJudge(larger()) as server:
        output = pairs(server).score([items[i] for i in order])
    np.testing.assert_allclose(output.values["judge_pairs"], [0.55, 0.45, 0.45, 0.55], rtol=1e-5)
    assert len(server.requests) == 4


def test_groups_of_one_have_no_score():
    with FakeJudge(larger()) as server:
        for judge in (pairs(server), ranking(server)):
            output = judge.score(answered("1"))
            assert np.isnan(output.values[judge.name][0]) and output.failures[0][judge.name].kind == "alone"
    assert not server.requests


def test_malformed_answers_lose_without_a_request():
    with FakeJudge(larger()) as server:
        output = pairs(server).score(answered("5", "", "5"))
        np.testing.assert_allclose(output.values["judge_pairs"], [0.75, 0.0, 0.75], rtol=1e-6)
        assert output.status["judge_pairs"] == [Status.OK, Status.INVALID, Status.OK]
        assert len(server.requests) == 2
        two = pairs(server).score(answered("", "5"))
    assert two.values["judge_pairs"].tolist() == [0.0, 1.0]
    assert two.status["judge_pairs"] == [Status.INVALID, Status.OK]


def test_failed_pairs_are_left_out_of_means():
    def answer(request):
        return Refuses(503) if sorted(between(request, "answer")) == ["1", "9"] else larger()(request)

    with FakeJudge(answer) as server:
        output = pairs(server).score(answered("1", "5", "9"))
    np.testing.assert_allclose(output.values["judge_pairs"], [0.3, 0.5, 0.7], rtol=1e-5)


def test_answers_with_failed_pairs_only_are_not_scored():
    def answer(request):
        return Refuses(503) if "1" in between(request, "answer") else larger()(request)

    with FakeJudge(answer) as server:
        output = pairs(server).score(answered("1", "5", "9"))
    np.testing.assert_allclose(output.values["judge_pairs"], [np.nan, 0.3, 0.7], rtol=1e-5)
    assert output.failures[0]["judge_pairs"].kind == "http_503" and output.failures[1] == {}


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9])
def test_rounds_compare_every_answer_equally_often(size):
    everyone = set(itertools.combinations(range(size), 2))
    assert set(pair_indices(size, None)) == everyone and len(pair_indices(size, None)) == len(everyone)
    assert set(pair_indices(size, size)) == everyone
    for rounds in range(1, size // 2 + 1):
        found = pair_indices(size, rounds)
        met = [sum(i in pair for pair in found) for i in range(size)]
        assert len(set(found)) == len(found) <= rounds * size and set(found) <= everyone
        assert set(met) == {min(2 * rounds, size - 1)}


def test_rounds_need_fewer_requests():
    with FakeJudge(larger()) as server:
        pairs(server, rounds=1).score(answered(*map(str, range(8))))
    assert len(server.requests) == 2 * 8
    with pytest.raises(RewardError, match="rounds is 0"):
        pairs(server, rounds=0)


# ranking


@pytest.mark.parametrize("size", [2, 3, 5, 9])
@pytest.mark.parametrize("shuffles", [1, 3])
def test_ranking_scores_are_evenly_spaced_from_zero_to_one(size, shuffles):
    values = random.sample(range(100), size)
    with FakeJudge(in_order) as server:
        output = ranking(server, shuffles=shuffles).score(answered(*map(str, values)))
    expected = [sorted(values).index(value) / (size - 1) for value in values]
    np.testing.assert_allclose(output.values["judge_ranking"], expected, atol=1e-6)
    assert len(server.requests) == shuffles and not server.requests[0].get("logprobs")


@pytest.mark.integration
def test_shuffles_average_out_position_bias():
    """A judge that repeats the order in which answers are shown: no answer may profit in the long run."""
    with FakeJudge(Says("1 > 2 > 3")) as server:
        one = ranking(server, shuffles=1).score(answered("a", "b", "c")).values["judge_ranking"]
        many = ranking(server, shuffles=200).score(answered("a", "b", "c")).values["judge_ranking"]
    assert sorted(one.tolist()) == [0, 0.5, 1]
    np.testing.assert_allclose(many, 0.5, atol=0.12)


def test_equal_groups_have_equal_shuffles():
    assert (
        shuffled_orders(5, 3, "7 a prompt")
        == shuffled_orders(5, 3, "7 a prompt")
        != shuffled_orders(5, 3, "8 a prompt")
    )
    assert all(sorted(order) == list(range(5)) for order in shuffled_orders(5, 3, "x"))
    with FakeJudge(in_order) as server:
        for _ in range(2):
            ranking(server).score(answered("1", "2", "3"))
    assert server.requests[0] == server.requests[1]


@pytest.mark.parametrize("reply", ["", "1 > 2", "1 > 2 > 2", "1 > 2 > 3 > 4", "all alike", "yes"])
def test_replies_that_are_no_order_fail_the_group(reply):
    with FakeJudge(Says(reply)) as server:
        output = ranking(server).score(answered("1", "2", "3"))
    assert np.isnan(output.values["judge_ranking"]).all()
    assert {row["judge_ranking"].kind for row in output.failures} == {"unparseable"}


def test_failed_shuffles_are_left_out():
    with FakeJudge(in_turn(Refuses(503), Says("nonsense"), in_order)) as server:
        output = ranking(server, shuffles=3).score(answered("1", "3", "2"))
    assert output.values["judge_ranking"].tolist() == [0, 1, 0.5]


def test_malformed_answers_rank_last_and_are_not_sent():
    with FakeJudge(in_order) as server:
        output = ranking(server).score(answered("1", "", "3", " "))
        np.testing.assert_allclose(output.values["judge_ranking"], [2 / 3, 0, 1, 0], atol=1e-6)
        assert output.status["judge_ranking"] == [Status.OK, Status.INVALID] * 2
        assert ranking(server).score(answered("", "1")).values["judge_ranking"].tolist() == [0, 1]
        assert ranking(server).score(answered("", " ")).status["judge_ranking"] == [Status.INVALID] * 2
    assert len(server.requests) == 1 and len(between(server.requests[0], "answer")) == 2


def test_missing_answers_do_not_affect_others():
    items = [*answered("1", "2"), RewardInput(id="x", group=0, prompt="a number")]
    with FakeJudge(in_order) as server:
        output = ranking(server).score(items)
        assert output.values["judge_ranking"][:2].tolist() == [0, 1]
        compared = pairs(server, read="text")
        alone = ranking(server).score(items[1:])
    assert np.isnan(output.values["judge_ranking"][2]) and output.failures[2]["judge_ranking"].kind == "missing"
    assert [row["judge_ranking"].kind for row in alone.failures] == ["alone", "missing"]
    with FakeJudge(larger()) as server:
        compared = pairs(server).score(items)
    np.testing.assert_allclose(compared.values["judge_pairs"], [0.45, 0.55, np.nan], rtol=1e-5)
    with pytest.raises(RewardError, match="shuffles is 0"):
        ranking(server, shuffles=0)


# against a reference model


class GreyPainter:
    """A model that draws one grey picture for every sample."""

    def __init__(self, grey: int) -> None:
        self._grey = grey

    def pictures(self, samples, seed, draws=1):
        return [[Image.new("RGB", (4, 4), (self._grey,) * 3)] * draws for _ in samples]


def darker(request):
    """A judge that prefers the darker picture, and the first place by 0.1."""
    a, b = (float(np.asarray(each).mean()) for each in pictures(request))
    return Sure(0.5 + (b - a) / 1000 + 0.1, "A", "B")


DARK = Sample("a", prompt="something dark")


def painted(*greys, sample=DARK):
    return [
        RewardInput(str(grey), 0, "something dark", image=Image.new("RGB", (4, 4), (grey,) * 3), sample=sample)
        for grey in greys
    ]


def test_an_answer_is_compared_with_the_picture_of_a_reference():
    context = RewardContext(models={"start": GreyPainter(100)})
    with FakeJudge(darker) as server:
        reward = pairs(server, reference="start")
        output = reward.score(painted(0, 100, 200), context)
        np.testing.assert_allclose(output.values["judge_pairs"], [0.6, 0.5, 0.4], rtol=1e-5)
        assert len(server.requests) == 2 * 3 and reward.painters == reward.models == ("start",)
        np.testing.assert_allclose(reward.score(painted(0), context).values["judge_pairs"], [0.6], rtol=1e-5)
        spoilt = [*painted(0), *painted(100, sample=None), RewardInput("x", 0, "something dark", sample=Sample("a"))]
        output = reward.score(spoilt, context)
        assert [row["judge_pairs"].kind for row in output.failures[1:]] == ["missing", "missing"]
        np.testing.assert_allclose(output.values["judge_pairs"][:1], [0.6], rtol=1e-5)
        assert reward.score(painted(0)).failures[0]["judge_pairs"].kind == "no_model"  # outside of a run
        with pytest.raises(RewardError, match="rounds is of pairs in a group"):
            pairs(server, reference="start", rounds=1)
    with FakeJudge(in_turn(darker, Refuses(503))) as server:
        assert pairs(server, reference="start").score(painted(0), context).failures[0]["judge_pairs"].kind == "http_503"
