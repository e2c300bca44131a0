"""Rewards for lengths, against trl, torch's cosine schedule and by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from trl.rewards import get_soft_overlong_punishment

from mmrl.rewards import RewardError, Status
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.rules.lengths import CosineLength, Length, SoftOverlong, answer_length, cosine_interpolate

from .single_answer import ask, outcome, value

WORD_REWARD = f"{Path(__file__).with_name('word_reward.py')}:WordReward"


def tokens(count):
    return {"tokens": count}


def test_lengths_are_counted_in_tokens_words_or_characters():
    item = ask("两个 red circles", metadata={"tokens": [5, 6, 7]})
    assert [answer_length(item, unit) for unit in ("tokens", "words", "characters")] == [3, 4, 14]
    assert answer_length(ask("", metadata=tokens(0)), "tokens") == 0


def test_missing_tokens_are_scorer_failures():
    for metadata in ({}, {"tokens": "3"}, {"tokens": -1}, {"tokens": 2.5}, {"tokens": True}):
        for reward in (Length(target=3), SoftOverlong(10, 5), CosineLength(10, of=WORD_REWARD)):
            assert outcome(reward, "right", metadata=metadata)[1] is Status.ERROR
    output = SoftOverlong(10, 5).score([ask("right")])
    assert output.failures[0]["soft_overlong"].kind == "missing"


@pytest.mark.parametrize(
    ("length", "target", "limit"), [(0, 0, 1), (5, 0.5, 1), (10, 1, 1), (15, 0.5, 0.5), (20, 0, 0), (10**9, 0, 0)]
)
def test_targets_are_two_sided_and_limits_one_sided(length, target, limit):
    assert value(Length(target=10), "x", metadata=tokens(length)) == pytest.approx(target)
    assert value(Length(limit=10), "x", metadata=tokens(length)) == pytest.approx(limit)
    assert value(Length(limit=10, slack=5), "x", metadata=tokens(length)) == float(length <= 10)


def test_samples_may_set_their_target():
    assert value(Length(), "x", metadata=tokens(5), length=10) == 0.5
    assert value(Length(unit="words"), "one two", length=2) == 1
    assert outcome(Length(), "x", metadata=tokens(5))[1] is Status.ERROR
    for wrong in (0, -3, "10", 2.5, True):
        assert outcome(Length(), "x", metadata=tokens(5), length=wrong)[1] is Status.ERROR


def test_lengths_off_by_one_in_millions_are_not_perfect():
    assert value(Length(target=10**9), "x", metadata=tokens(10**9 - 1)) < 1
    assert value(Length(limit=10**9), "x", metadata=tokens(10**9 + 1)) < 1


def test_500_random_lengths_equal_numpy_interpolation():
    rng = np.random.default_rng(0)
    for _ in range(500):
        length, target, slack = rng.integers(1, 3000, 3).tolist()
        expected = np.interp(length, [0, target, 2 * target], [0, 1, 0])
        assert value(Length(target=target), "x", metadata=tokens(length)) == pytest.approx(expected, abs=1e-6)
        expected = np.interp(length, [target, target + slack], [1, 0])
        assert value(Length(limit=target, slack=slack), "x", metadata=tokens(length)) == pytest.approx(
            expected, abs=1e-6
        )


def test_1000_random_lengths_equal_soft_overlong_punishment_of_trl():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(1000):
        limit = int(rng.integers(1, 200))
        cache, length = int(rng.integers(0, limit + 1)), int(rng.integers(0, 300))
        expected = get_soft_overlong_punishment(limit, cache)([[0] * length])[0]
        score = value(SoftOverlong(limit, cache), "x", metadata={"tokens": [0] * length})
        assert score == pytest.approx(expected, abs=1e-6)
        seen.add(-1 if expected == -1 else 0 if expected == 0 else 0.5)
    assert seen == {-1, 0, 0.5}


def test_answers_without_tokens_are_never_overlong():
    assert value(SoftOverlong(10, 10), "", metadata=tokens(0)) == 0
    assert value(SoftOverlong(10, 0, "characters"), "x" * 11) == -1


def test_500_points_of_the_cosine_equal_the_schedule_of_torch():
    for first, last in ((1.0, 0.5), (0.25, 0.75)):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=first)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=500, eta_min=last)
        for length in range(500):
            assert cosine_interpolate(first, last, length / 500) == pytest.approx(schedule.get_last_lr()[0], abs=1e-9)
            optimizer.step()
            schedule.step()


def cosine(text, length, **settings):
    return outcome(CosineLength(100, of=WORD_REWARD, **settings), text, metadata=tokens(length))


def test_cosine_prefers_short_right_and_long_wrong_answers():
    right = [cosine("right", length)[0] for length in range(0, 100, 5)]
    wrong = [cosine("wrong", length)[0] for length in range(0, 100, 5)]
    assert right == sorted(right, reverse=True) and wrong == sorted(wrong)
    assert min(right) > 0.5 > -0.5 > max(wrong)
    assert right[0] == 1 and wrong[0] == -1 and right[10] == pytest.approx(0.75) and wrong[10] == pytest.approx(-0.75)


def test_answers_past_the_limit_score_as_exceeded():
    for text in ("right", "wrong"):
        assert [cosine(text, length) for length in (100, 101, 10**9)] == [(-1, Status.OK)] * 3
    assert cosine("right", 100, exceeded=-0.25) == (-0.25, Status.OK)


def test_right_answers_are_defined_by_another_reward_and_right_at():
    assert cosine("half", 50)[0] == pytest.approx(-0.75)
    assert cosine("half", 50, right_at=0.5)[0] == pytest.approx(0.75)
    assert cosine("most", 50, right_at=0.9)[0] == pytest.approx(0.75)  # scores are float32, where 0.9 is a little less
    reward = CosineLength(100, of="count_exact", unit="words")
    assert value(reward, "<answer>3</answer>", 3) > 0.5
    assert value(reward, "<answer>4</answer>", 3) < -0.5
    assert value(reward, "<answer>3 or 4</answer>", 3) < -0.5  # invalid there is wrong here
    assert outcome(reward, "<answer>3</answer>")[1] is Status.ERROR  # no reference


def test_failures_of_the_other_reward_are_passed_on_per_row():
    reward = CosineLength(100, of=WORD_REWARD, unit="characters")
    output = reward.score([ask("right"), ask("down"), ask("wrong"), ask("strange")])
    assert output.status["cosine_length"] == [Status.OK, Status.ERROR, Status.OK, Status.ERROR]
    failure = output.failures[1]["cosine_length"]
    assert failure.kind == "http_503" and failure.transient
    with pytest.raises(ScoringFailed):
        reward.score_one(ask("down"))
    assert reward.score_one(ask("right")) > 0.9


def test_fingerprint_depends_on_the_other_reward():
    prints = {
        CosineLength(100, of="count_exact").fingerprint(),
        CosineLength(100, of="count_graded").fingerprint(),
        CosineLength(100, of="format").fingerprint(),
        CosineLength(100, of="format", of_args={"strict": False}).fingerprint(),
        CosineLength(200, of="count_exact").fingerprint(),
    }
    assert len(prints) == 5
    assert CosineLength(100, of="count_exact").fingerprint() in prints


@pytest.mark.parametrize(
    "build",
    [
        lambda: Length(target=0),
        lambda: Length(target=2.5),
        lambda: Length(target=True),
        lambda: Length(target=10, limit=10),
        lambda: Length(target=10, slack=5),
        lambda: Length(limit=-1),
        lambda: Length(target=10, unit="bytes"),
        lambda: SoftOverlong(0, 0),
        lambda: SoftOverlong(10, 11),
        lambda: SoftOverlong(10, -1),
        lambda: SoftOverlong(10, 5, "bytes"),
        lambda: CosineLength(0, of="format"),
        lambda: CosineLength(10, of="no_such_reward"),
        lambda: CosineLength(10, of="format", of_args={"no": 1}),
        lambda: CosineLength(10, of="compressibility", right_at=float("inf")),
        lambda: CosineLength(10, of="format", correct_short=2.0),
        lambda: CosineLength(10, of="format", correct_long=-0.9),
        lambda: CosineLength(10, of="format", wrong_short=float("nan")),
        lambda: CosineLength(10, of="format", unit="bytes"),
    ],
)
def test_invalid_arguments_are_rejected(build):
    with pytest.raises(RewardError):
        build()
