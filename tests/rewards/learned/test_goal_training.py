"""The contrast of states: by hand, what moves and what does not, and a reward model that is trained with it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.config.reward_model import GoalConfig, RewardTrainingConfig
from mmrl.errors import ConfigError, DataError
from mmrl.rewards.learned.goal_training import JudgedCourses, goal_contrast_loss, train_goal_head
from mmrl.rewards.learned.head_training import JudgedPairs, train_pair_head
from mmrl.rewards.learned.score_head import HeadShape
from mmrl.workflows.train_reward import train_reward
from mmrl_shapeworld.partial_runs import auc, written_part
from tests.rewards.learned.test_train_reward import config_of, data, pair, picture, score

__all__ = ["data"]
SHORT = RewardTrainingConfig(steps=60, batch=16)


def test_the_contrast_is_that_of_the_paper():
    state, goal, other = torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 1.0]]), torch.tensor([[-2.0, 0.0]])
    near, far = math.sqrt(0.5), -1.0
    expected = math.log(1 + math.exp(-near)) + math.log(1 + math.exp(far))
    assert goal_contrast_loss(state, goal, other).item() == pytest.approx(expected)
    assert goal_contrast_loss(5 * state, goal, 0.1 * other).item() == pytest.approx(expected)  # lengths do not matter
    assert goal_contrast_loss(state, other, goal).item() > expected
    leaves = [torch.randn(4, 6, requires_grad=True) for _ in range(3)]
    goal_contrast_loss(*leaves).sum().backward()
    assert all(leaf.grad is not None and leaf.grad.abs().sum() > 0 for leaf in leaves)


def courses(seed: int = 0) -> JudgedCourses:
    """Courses whose first feature tells the better one from the first state on; the second, in the last state alone."""
    noise = 0.3 * torch.randn(2, 64, 3, 8, generator=torch.Generator().manual_seed(seed))
    noise[0, :, :, 0] += 1
    noise[0, :, 2, 1] += 1
    return JudgedCourses(noise[0], noise[1])


@pytest.mark.integration
def test_the_weight_0_is_the_loss_of_the_pairs_alone_and_another_brings_states_together():
    shape, found = HeadShape(features=8, hidden=16), courses()
    plain = train_goal_head(found, shape, SHORT, GoalConfig(weight=0.0), 3)
    pairs = JudgedPairs(found.chosen[:, 2], found.rejected[:, 2], torch.ones(64, 1))
    same = train_pair_head(pairs, shape, SHORT, 3)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), same.parameters(), strict=True))
    contrast = train_goal_head(found, shape, SHORT, GoalConfig(weight=2.0), 3)
    new = courses(1)

    def gap(head):
        with torch.no_grad():
            first, last, worse = (
                head.represent(each) for each in (new.chosen[:, 0], new.chosen[:, 2], new.rejected[:, 0])
            )
        cosine = torch.nn.functional.cosine_similarity
        return (cosine(first, last) - cosine(first, worse)).mean().item()

    assert gap(contrast) > gap(plain) + 0.1
    with pytest.raises(ValueError, match="goals need a hidden layer"):
        train_goal_head(found, HeadShape(features=8, hidden=0), SHORT, GoalConfig(), 0)
    with pytest.raises(ValueError, match="two states or more"):
        JudgedCourses(found.chosen[:, :1], found.rejected[:, :1])


@pytest.mark.integration
def test_pairs_with_states_become_a_reward_model(data, tmp_path):
    def with_states(number):
        states = {"chosen": [picture(90, 100 + number)], "rejected": [picture(40, 200 + number)]}
        return pair(number, metadata={"states": states})

    path = data(with_states(number) for number in range(16))
    done = train_reward(config_of(path, "goals={}", "ensemble=1"), tmp_path / "model")
    assert done.quality.accuracy == {"overall": 1.0}
    values = score(done.folder)["learned"]
    assert values[0] > values[1] > values[2]
    with pytest.raises(DataError, match=r"'p0': metadata.states.chosen is None; goals need earlier pictures"):
        train_reward(config_of(data([pair(0)]), "goals={}"), tmp_path / "b")
    with pytest.raises(ConfigError, match="goals are of pairs of pictures with one axis"):
        train_reward(config_of(path, "goals={}", "axes=[one, two]"), tmp_path / "c")


def test_half_written_pictures_are_blank_below():
    full = Image.fromarray(np.zeros((32, 32, 3), np.uint8))
    half = np.asarray(written_part(full, 4))
    assert (half[:16] == 0).all() and (half[16:] == 245).all()
    right = torch.tensor([[True, False, False]])
    assert auc(torch.tensor([[2.0, 1.0, 2.0]]), right) == pytest.approx(0.75)
