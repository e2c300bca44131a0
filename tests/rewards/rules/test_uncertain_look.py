"""Looking pays where the answers of a group disagree: by hand, and against looking everywhere."""

from __future__ import annotations

import json

import pytest

from mmrl.rewards import RewardInput, Status, load
from mmrl.rewards.core.reward_errors import RewardError

REFERENCES = {"answer": [[0, 0, 32, 32]], "space": "pixel", "size": [64, 64]}
LEFT, RIGHT, WHOLE, CORNER = [0, 0, 32, 64], [32, 0, 64, 64], [0, 0, 64, 64], [0, 0, 16, 16]


def answer(looked, *boxes):
    look = f"<look>{json.dumps(looked)}</look>" if looked is not None else ""
    return f"{look}<answer>{json.dumps(list(boxes))}</answer>"


def scores(*texts, references=REFERENCES, **args):
    items = [RewardInput(str(n), 0, "?", text=text, references=references) for n, text in enumerate(texts)]
    output = load("uncertain_look", **args).score(items)
    return output.values["uncertain_look"].tolist(), output.status["uncertain_look"]


def test_the_harmonic_mean_of_precision_and_recall_of_the_variance():
    # half of the answers cover the right half, all cover the left: the variance is 1 on the right, 0 on the left
    values, status = scores(
        answer([RIGHT], WHOLE), answer([LEFT], WHOLE), answer([WHOLE], LEFT), answer([[32, 0, 64, 32]], LEFT)
    )
    assert values == pytest.approx([1, 0, 2 * 0.5 / 1.5, 2 * 0.5 / 1.5])
    assert set(status) == {Status.OK}


def test_a_quarter_of_the_answers_is_less_uncertain_than_half():
    texts = [answer([CORNER], CORNER), *[answer([CORNER]) for _ in range(3)]]
    values, _ = scores(*texts)
    assert values == pytest.approx([2 * 0.75 / 1.75] * 4)  # 4 · ¼ · ¾, all of it looked at


def test_groups_that_agree_and_answers_that_do_not_look_have_nothing():
    assert scores(answer([WHOLE], LEFT), answer([LEFT], LEFT))[0] == [0, 0]
    assert scores(answer(None, LEFT), answer([], WHOLE))[0] == [0, 0]


def test_an_answer_that_cannot_be_read_covers_nothing_and_may_look():
    values, status = scores("<look>[[0, 0, 64, 64]]</look><answer>none</answer>", answer([WHOLE], WHOLE), "<look>")
    assert values[0] == pytest.approx(values[1]) and values[1] > 0.9
    assert status == [Status.OK, Status.OK, Status.INVALID]


def test_other_spaces_and_tags():
    references = {"answer": [[0, 0, 500, 500]], "space": "norm_1000"}
    texts = [
        "<see>[[500, 0, 1000, 1000]]</see><answer>[[0, 0, 1000, 1000]]</answer>",
        "<answer>[[0, 0, 500, 1000]]</answer>",
    ]
    assert scores(*texts, references=references, tag="see")[0] == [1, 0]
    with pytest.raises(RewardError, match="not a tag name"):
        load("uncertain_look", tag="<look>")
    assert scores(answer([LEFT], LEFT), references={"answer": 3, "space": "pixel"})[1] == [Status.ERROR]
