"""Credit of single turns against sums written out by hand."""

from __future__ import annotations

import pytest
import torch

from mmrl.algorithms.advantages import grpo_advantages
from mmrl.algorithms.turn_credit import at_last_turn, credit_by_turn, potential_rewards, turn_groups, turn_returns
from mmrl.checks import ShapeError

PRESENT = torch.tensor([[True, True, True], [True, True, False], [True, False, False], [True, True, True]])


def random_rewards(seed: int = 0) -> torch.Tensor:
    rewards = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rewards.where(PRESENT, 0.0)


@pytest.mark.parametrize("discount", [0.0, 0.5, 1.0])
def test_returns_are_discounted_sums(discount):
    rewards = random_rewards()
    found = turn_returns(rewards, PRESENT, discount)
    for row, count in enumerate(PRESENT.sum(1).tolist()):
        for turn in range(3):
            if turn >= count:
                assert found[row, turn].isnan()
                continue
            expected = sum(discount ** (later - turn) * rewards[row, later] for later in range(turn, count))
            assert float(found[row, turn]) == pytest.approx(float(expected), abs=1e-12)


def test_returns_end_before_a_broken_turn():
    """UI-S1's rule, turn by turn from the last: a broken turn keeps its reward, and passes nothing on."""
    rewards, broken = random_rewards(), torch.rand(PRESENT.shape, generator=torch.Generator().manual_seed(3)) < 0.4
    found = turn_returns(rewards, PRESENT, 0.5, broken)
    for row in range(len(rewards)):
        after = 0.0
        for turn in reversed(range(int(PRESENT[row].sum()))):
            own = float(rewards[row, turn])
            value = own if broken[row, turn] else own + 0.5 * after
            assert float(found[row, turn]) == pytest.approx(value)
            after = 0.0 if broken[row, turn] else value
    none = turn_returns(rewards, PRESENT, 0.5, torch.zeros_like(PRESENT))
    torch.testing.assert_close(none, turn_returns(rewards, PRESENT, 0.5), equal_nan=True)


def test_an_unknown_reward_makes_earlier_returns_unknown():
    rewards = torch.tensor([[1.0, torch.nan, 3.0]])
    found = turn_returns(rewards, torch.ones(1, 3, dtype=torch.bool), 1.0)
    assert found.isnan().tolist() == [[True, True, False]]


def test_discounts_outside_zero_and_one_are_refused():
    with pytest.raises(ValueError, match=r"discount: expected a number in \[0, 1\], got 1.5"):
        turn_returns(random_rewards(), PRESENT, 1.5)
    with pytest.raises(ShapeError):
        turn_returns(random_rewards(), PRESENT[:, :2], 1.0)


def test_outcomes_stand_at_last_turns():
    outcome = torch.tensor([1.0, 2.0, 3.0, torch.nan])
    found = at_last_turn(outcome, PRESENT)
    assert found[:3].tolist() == [[0, 0, 1], [0, 2, 0], [3, 0, 0]]
    assert found[3, :2].tolist() == [0, 0]
    assert found[3, 2].isnan()
    returned = turn_returns(at_last_turn(outcome, PRESENT), PRESENT, 0.5)
    assert returned[0].tolist() == [0.25, 0.5, 1.0]


def test_a_turn_is_compared_with_the_same_turn_of_its_group_alone():
    rewards, groups = random_rewards().float(), torch.tensor([3, 3, 8, 3])
    returns = turn_returns(rewards, PRESENT, 1.0)
    numbers = turn_groups(groups, 3)
    flat = grpo_advantages(returns.flatten(), numbers.flatten(), std="group", ddof=0, eps=0.0).view(4, 3)
    for turn in range(3):
        rows = [row for row in (0, 1, 3) if PRESENT[row, turn]]
        values = returns[rows, turn]
        expected = (values - values.mean()) / values.std(correction=0)
        torch.testing.assert_close(flat[rows, turn], expected)
    assert flat[2].tolist() == [0, 0, 0]  # alone in its group
    assert (flat[~PRESENT] == 0).all()


def test_two_groups_never_share_a_number():
    numbers = turn_groups(torch.tensor([10, 2, 10, 5]), 4)
    assert len(numbers.unique()) == 3 * 4
    assert torch.equal(numbers[0], numbers[2])


@pytest.mark.parametrize("discount", [0.9, 1.0])
def test_shaping_by_a_potential_takes_a_constant_from_every_return(discount):
    rewards, potentials = random_rewards(1), random_rewards(2)
    plain = turn_returns(rewards, PRESENT, discount)
    shaped = turn_returns(rewards + potential_rewards(potentials, PRESENT, discount), PRESENT, discount)
    torch.testing.assert_close((plain - shaped)[PRESENT], potentials[PRESENT])


def test_shaping_leaves_the_best_policy_where_it_was():
    """A chain of three states with two actions: every deterministic policy, ranked by its return, shaped and plain."""
    generator = torch.Generator().manual_seed(3)
    reward = torch.randn(3, 2, generator=generator, dtype=torch.float64)  # of state and action
    following = torch.tensor([[1, 2], [2, 2], [3, 3]])  # 3: the end
    potential = torch.cat([torch.randn(3, generator=generator, dtype=torch.float64), torch.zeros(1)])
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(8):
        actions = [number >> state & 1 for state in range(3)]
        states, rewards, state = [], [], 0
        while state != 3:
            states.append(state)
            rewards.append(reward[state, actions[state]])
            state = int(following[state, actions[state]])
        present = torch.ones(1, len(states), dtype=torch.bool)
        steps = torch.stack(rewards)[None]
        extra = potential_rewards(potential[states][None], present, 0.9)
        for shaped in (True, False):
            found[shaped].append(float(turn_returns(steps + extra if shaped else steps, present, 0.9)[0, 0]))
    difference = torch.tensor(found[False]) - torch.tensor(found[True])
    torch.testing.assert_close(difference, torch.full((8,), float(potential[0])), check_dtype=False)
    assert max(found[False]) > min(found[False])


def test_decisions_get_the_advantage_of_their_turn():
    channel = torch.tensor([[0, 0, 1, 2], [0, 1, 1, 0]])
    mask = torch.tensor([[True, True, True, True], [True, True, True, False]])
    advantages = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]])
    assert credit_by_turn(advantages, channel, mask).tolist() == [[1, 1, 2, 3], [4, 5, 5, 0]]
