"""Plans of meta-actions: accuracy, importance and diversity, by hand."""

from __future__ import annotations

import pytest

from mmrl.rewards import RewardInput, Status, load
from mmrl.rewards.core.reward_errors import RewardError

from .single_answer import outcome, value

AXES = {"speed": {"keep": 1, "stop": 4}, "path": {"straight": 1, "left": 2, "left turn": 2}}
RARE = {"speed": "stop", "path": "straight"}


def group(*texts: str, answer=RARE, **args):
    """The rewards of a group's answers."""
    reward = load("meta_actions", axes=AXES, **args)
    items = [RewardInput(str(n), 0, "?", text=text, references={"answer": answer}) for n, text in enumerate(texts)]
    output = reward.score(items)
    assert set(output.status["meta_actions"]) == {Status.OK}, output.detail
    return output.values["meta_actions"].tolist(), output.values["plan_right"].tolist()


@pytest.mark.parametrize(
    "text, expected, right",
    [
        ("Stop, straight", (4 + 1) / 2 / 4, 1),
        ("<think>keep?</think><answer>stop straight</answer>", (4 + 1) / 2 / 4, 1),
        ("keep straight", 1 / 2 / 4, 0),
        ("stop left", 4 / 2 / 4, 0),
        ("keep, stop, straight", (2 / 3 * 4 + 1) / 2 / 4, 0),
        ("nothing", 0, 0),
        ("stopped, straightened", 0, 0),
    ],
)
def test_accuracy_times_importance(text, expected, right):
    assert group(text) == ([pytest.approx(expected)], [right])


def test_several_true_actions_are_all_to_be_named():
    answer = {"speed": ["keep", "stop"], "path": "left turn"}
    (whole, half), right = group("keep, stop, left turn", "keep, left", answer=answer, diversity=0)
    assert whole == pytest.approx((2.5 + 2) / 2 / 4)
    assert half == pytest.approx(2 / 3 * 2.5 / 2 / 4)
    assert right == [1, 0]


def test_a_group_that_agrees_loses_a_fifth_and_one_that_does_not_loses_nothing():
    right = (4 + 1) / 2 / 4
    values, _ = group("stop straight", "STOP straight!", "stop, straight")
    assert values == pytest.approx([0.8 * right] * 3)
    values, _ = group("stop straight", "stop straight", "keep straight")
    assert values == pytest.approx([0.9 * right, 0.9 * right, 1 / 8])
    values, _ = group("stop straight", "stop straight", diversity=0)
    assert values == pytest.approx([right] * 2)


def test_equal_weights_do_not_prefer_a_rare_action():
    even = {axis: dict.fromkeys(actions, 1) for axis, actions in AXES.items()}
    for answer in (RARE, {"speed": "keep", "path": "left"}):
        assert value(load("meta_actions", axes=even), " ".join(answer.values()), answer) == 1


@pytest.mark.parametrize(
    "args, message",
    [
        ({"axes": {}}, "one axis or more"),
        ({"axes": {"speed": {"keep": -1}}}, "0 or above"),
        ({"axes": {"speed": {"keep": 0}}}, "above it|above 0"),
        ({"axes": {"speed": {"keep": 1}, "path": {"Keep": 1}}}, "no name, or another"),
        ({"axes": AXES, "diversity": 2}, "a share"),
    ],
)
def test_what_makes_no_reward_is_named(args, message):
    with pytest.raises(RewardError, match=message):
        load("meta_actions", **args)


@pytest.mark.parametrize(
    "answer", ["stop", {"speed": "stop"}, {"speed": "fly", "path": "left"}, {"speed": [], "path": "left"}]
)
def test_a_plan_that_is_none_is_a_failure_of_the_scorer(answer):
    assert outcome(load("meta_actions", axes=AXES), "stop left", answer)[1] is Status.ERROR
