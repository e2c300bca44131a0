"""Preference chains: by hand, against a search through all subsets, and what must not matter."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms.preference_chains import chain_advantages, chain_ranks

NAN = float("nan")
ONE = torch.zeros(5, dtype=torch.long)
TABLES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=7)


def test_a_chain_by_hand():
    """a < b < d by both rewards; c and e disagree with b, so the chain of three has ranks 0, 1, 2 of spread 0.8165."""
    rewards = torch.tensor([[0.1, 0.2], [0.5, 0.6], [0.6, 0.1], [0.9, 0.9], [1.0, 0.0]])
    assert chain_ranks(rewards).tolist() == [0, 1, -1, 2, -1]
    expected = torch.tensor([-1.224745, 0.0, 0.0, 1.224745, 0.0])
    torch.testing.assert_close(chain_advantages(rewards, ONE, eps=0.0), expected)


def test_equal_answers_share_a_rank_and_count_each():
    """Three equal pairs of rewards weigh more than a chain of two ranks without them: ranks 0, 0, 0, 1, and one off."""
    rewards = torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.5, 1.0], [0.2, 0.0]])
    assert chain_ranks(rewards).tolist() == [0, 0, 0, 1, -1]
    mean, spread = 0.25, (3 / 16) ** 0.5
    expected = torch.tensor([-mean, -mean, -mean, 1 - mean, 0.0]) / spread
    torch.testing.assert_close(chain_advantages(rewards, ONE, eps=0.0), expected)


def test_rewards_that_contradict_one_another_teach_nothing():
    rewards = torch.tensor([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    assert not chain_advantages(rewards, torch.zeros(3, dtype=torch.long)).any()
    assert not chain_advantages(torch.ones(3, 2), torch.zeros(3, dtype=torch.long)).any()


def test_the_trivial_answer_that_a_sum_prefers_is_not_on_the_chain():
    """Nothing done keeps all of a picture. By the sum it is the best; the others agree that an edit done is better."""
    done = torch.tensor([0.0, 0.3, 0.5, 0.8, 0.4])
    kept = torch.tensor([3.0, 1.0, 1.2, 1.4, 1.1])
    rewards = torch.stack([done, kept], 1)
    assert rewards.sum(1).argmax() == 0
    assert chain_ranks(rewards).tolist() == [-1, 0, 2, 3, 1]


def test_unscored_answers_take_no_part_and_groups_are_apart():
    rewards = torch.tensor([[0.0, 0.0], [NAN, 1.0], [1.0, 1.0], [5.0, 5.0], [4.0, 4.0]])
    groups = torch.tensor([7, 7, 7, 2, 2])
    torch.testing.assert_close(chain_advantages(rewards, groups, eps=0.0), torch.tensor([-1.0, 0.0, 1.0, 1.0, -1.0]))
    assert not chain_advantages(torch.full((2, 2), NAN), groups[:2]).any()


@given(TABLES)
def test_no_chain_holds_more_answers_than_the_one_that_is_found(rows):
    rewards = torch.tensor(rows, dtype=torch.float32)
    ranks = chain_ranks(rewards).tolist()
    on_chain = [row for row, rank in enumerate(ranks) if rank >= 0]
    longest = max(
        len(chosen)
        for size in range(1, len(rows) + 1)
        for chosen in combinations(range(len(rows)), size)
        if all(ordered(rows[a], rows[b]) for a, b in combinations(chosen, 2))
    )
    assert len(on_chain) == longest
    for a, b in combinations(on_chain, 2):
        low, high = sorted((a, b), key=lambda row: ranks[row])
        assert all(x <= y for x, y in zip(rows[low], rows[high], strict=True))
        assert (ranks[a] == ranks[b]) == (rows[a] == rows[b])


@given(TABLES, st.floats(0.1, 9.0), st.floats(-3.0, 3.0))
def test_the_scale_and_the_order_of_the_rewards_do_not_matter(rows, scale, shift):
    rewards = torch.tensor(rows, dtype=torch.float64)
    groups = torch.zeros(len(rows), dtype=torch.long)
    advantages = chain_advantages(rewards, groups)
    changed = rewards * torch.tensor([scale, 1.0, 1.0]) + torch.tensor([0.0, shift, 0.0])
    torch.testing.assert_close(chain_advantages(changed, groups), advantages)
    assert abs(float(advantages.sum())) < 1e-6


def ordered(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(x <= y for x, y in pairs) or all(x >= y for x, y in pairs)


def test_shapes_are_checked():
    with pytest.raises(ValueError):
        chain_advantages(torch.zeros(3), torch.zeros(3, dtype=torch.long))
