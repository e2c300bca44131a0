"""A discriminator of pictures that learns in a run which of a group to choose."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from mmrl.rewards import Reward, RewardError, RewardInput, RewardSuite, load
from mmrl.rewards.learned.preference_losses import choice_loss
from mmrl.workflows.train_reward import train_reward
from tests.rewards.learned.test_train_reward import config_of, data, drawn, pair

__all__ = ["data"]  # the fixture


class Blackness(Reward):
    """1 of black, 0 of white: the opposite of what the reward model was taught first."""

    name, needs, range = "blackness", ("image",), (0.0, 1.0)

    def score_one(self, item):
        return 1 - float(np.asarray(item.image).mean() / 255)


DARK = f"{__file__}:Blackness"


def items(groups=4, of_group=4):
    rows = [(group, row) for group in range(groups) for row in range(of_group)]
    return [
        RewardInput(id=f"{n}", group=7 * group, prompt="a red circle", image=drawn(50 * row, 90 * group + row))
        for n, (group, row) in enumerate(rows)
    ]


def test_the_loss_is_minus_the_expected_advantage_of_a_choice_by_hand():
    """Odds of 1 to 3 for advantages -1 and 1: 0.5. Odds of 1, 1 and 2 for 4, 0 and 1: 1.5."""
    scores = torch.tensor([500.0, 0.0, 0.0, 500.0 + math.log(3), math.log(2)], dtype=torch.float64, requires_grad=True)
    advantages, groups = torch.tensor([-1.0, 4.0, 0.0, 1.0, 1.0]), torch.tensor([0, 1, 1, 0, 1])
    loss = choice_loss(scores, advantages, groups)
    assert loss.tolist() == pytest.approx([-0.5, -1.5])
    loss.sum().backward()  # d/ds of the mean: p (A - mean)
    expected = [-0.25 * (-1 - 0.5), -0.25 * (4 - 1.5), -0.25 * (0 - 1.5), -0.75 * (1 - 0.5), -0.5 * (1 - 1.5)]
    assert scores.grad.tolist() == pytest.approx(expected)


@pytest.fixture
def model(data, tmp_path):
    return str(train_reward(config_of(data(pair(number) for number in range(16)), "ensemble=1"), tmp_path / "m").folder)


@pytest.mark.integration
def test_choices_follow_the_rule_after_learning_and_are_saved(model):
    reward = load("cotrained_pictures", model=model, rule=DARK, updates=30, lr=3e-3, device="cpu")
    frozen = load("cotrained_pictures", model=model, rule=DARK, updates=0, device="cpu")
    before = reward.score(items()).values["cotrained_pictures"]
    assert np.array_equal(before, frozen.score(items()).values["cotrained_pictures"])
    assert (before.reshape(4, 4).argmax(1) == 3).all()  # red pictures, which are lighter
    first = reward.learn(items())
    assert first["groups"] == 4 and first["chosen"] < first["mean"]
    for _ in range(4):
        last = reward.learn(items())
    assert last["chosen"] > last["mean"] == pytest.approx(first["mean"])
    after = reward.score(items()).values["cotrained_pictures"]
    assert (after.reshape(4, 4).argmax(1) == 0).all()
    assert frozen.learn(items()) == {}
    assert np.array_equal(frozen.score(items()).values["cotrained_pictures"], before)
    fresh = load("cotrained_pictures", model=model, rule=DARK, updates=30, lr=3e-3, device="cpu")
    fresh.load_state_dict(json.loads(json.dumps(reward.state_dict())))
    assert np.array_equal(fresh.score(items()).values["cotrained_pictures"], after)
    assert fresh.state_dict() == reward.state_dict()


@pytest.mark.integration
def test_groups_of_equal_outcomes_teach_nothing(model):
    reward = load("cotrained_pictures", model=model, rule=DARK, device="cpu")
    state = reward.state_dict()["heads"]
    assert reward.learn(items(of_group=1)) == {"groups": 0.0} and reward.learn([]) == {"groups": 0.0}
    assert reward.state_dict()["heads"] == state
    suite = RewardSuite([(reward, 1.0)])
    names = {f"cotrained_pictures/{name}" for name in ("groups", "chosen", "mean")}
    assert suite.learns and suite.learn(items()).keys() == names
    suite.close()
    with pytest.raises(RewardError, match="temperature 0; expected 0 or more steps, a rate and a temperature above 0"):
        load("cotrained_pictures", model=model, rule=DARK, temperature=0)
