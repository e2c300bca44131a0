"""Plans of several agents at three levels: each level by hand, and what is no plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.rewards import Status, load
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.rules.agent_plan import frechet

from .single_answer import ask, outcome, value

TRUTH = {"agents": ["dog", "robot"], "steps": ["walk", "grasp"], "points": [[0, 0], [10, 0]]}


def levels(text, **args):
    """The values of agents, steps and points, and the whole."""
    output = load("agent_plan", limit=10, **args).score([ask(text, TRUTH)])
    assert output.status["agent_plan"] == [Status.OK], output.detail
    return [float(output.values[f"{name}_right"][0]) for name in ("agents", "steps", "points")], float(
        output.values["agent_plan"][0]
    )


@pytest.mark.parametrize(
    "text, agents, steps, points",
    [
        ("dog, robot; walk, grasp; 0, 0, 10, 0", 1, 1, 1),
        ("Robot,DOG ;walk,grasp; 0,0,10,0", 1, 1, 1),
        ("dog; walk; 0, 0, 10, 5", 1 / 2, 1 / 2, 1 / 2),
        ("dog, cat; grasp, walk; 0, 20, 10, 0", 1 / 3, 0, 0),
        ("dog, dog, robot; walk, grasp, walk; 0, 0", 2 / 3, 2 / 3, 0),
        ("dog, robot; walk, grasp", 1, 1, 0),
        ("dog, robot; walk, grasp; 0, 0, 10", 1, 1, 0),
        ("dog, robot; walk, grasp; here", 1, 1, 0),
        ("", 0, 0, 0),
    ],
)
def test_each_level_and_their_mean(text, agents, steps, points):
    found, mean = levels(text)
    assert found == pytest.approx([agents, steps, points])
    assert mean == pytest.approx((agents + steps + points) / 3)


def test_weights_of_levels_and_the_whole_alone():
    half = "dog, robot; walk; 0, 0, 10, 0"
    assert levels(half, weights={"agents": 3, "steps": 1})[1] == pytest.approx((3 + 0.5) / 4)
    assert levels(half, final=True)[1] == 0
    assert levels("dog, robot; walk, grasp; 0, 0, 10, 9", final=True)[1] == 1
    assert levels("dog, robot; walk, grasp; 0, 0, 10, 10", final=True)[1] == 0


def test_the_discrete_frechet_distance_by_hand():
    assert frechet([(0, 0)], [(3, 4)]) == 5
    assert frechet([(0, 0), (9, 0)], [(0, 0), (9, 0)]) == 0
    there_and_back = [(0, 0), (9, 0), (0, 0), (9, 0)]
    assert frechet(there_and_back, [(0, 0), (9, 0)]) == 9  # a leash never goes back
    assert frechet([(0, 0), (1, 0), (2, 0)], [(0, 1), (2, 1)]) == pytest.approx(2**0.5)


POINTS = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=6)


@given(POINTS, POINTS)
def test_the_distance_is_symmetric_and_at_least_that_of_the_ends(first, second):
    found = frechet(first, second)
    assert found == frechet(second, first) == frechet(first[::-1], second[::-1])
    assert found >= max(frechet(first[:1], second[:1]), frechet(first[-1:], second[-1:]))


def test_what_is_no_plan_is_named():
    reward = load("agent_plan", limit=10)
    for text in ("a; b; 1, 2; c", "a; b; 1e999, 2", "a; b; nan, 2", "x" * 20_000):
        assert outcome(reward, text, TRUTH)[1] is Status.INVALID
    for broken in ("dog", {}, {**TRUTH, "points": [[1]]}, {**TRUTH, "points": [["a", 1]]}, {**TRUTH, "steps": []}):
        assert outcome(reward, "dog; walk; 1, 2", broken)[1] is Status.ERROR
    for args in ({"limit": 0}, {"limit": 1, "weights": {"speed": 1}}, {"limit": 1, "weights": {"agents": 0}}):
        with pytest.raises(RewardError):
            load("agent_plan", **args)
    assert value(reward, "<think>a; b; c; d</think>dog, robot; walk, grasp; 0, 0, 10, 0", TRUTH) == 1
