"""Advantages of decisions that rows share: against a tree that is walked node by node."""

from __future__ import annotations

import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.algorithms import branch_advantages, extreme_advantages, grpo_advantages

NAN = float("nan")


def tree(rows: int, ways: int, splits: list[int], columns: int) -> torch.Tensor:
    """[rows, columns]: the first row of each node, of trees that part at `splits`."""
    leaves = ways ** len(splits)
    table = []
    for row in range(rows):
        place, start = row % leaves, row - row % leaves
        nodes = []
        for column in range(columns):
            size = leaves // ways ** sum(column >= split for split in splits)
            nodes.append(start + place // size * size)
        table.append(nodes)
    return torch.tensor(table)


@settings(max_examples=20)
@given(st.lists(st.integers(-5, 5), min_size=8, max_size=8), st.sampled_from([[0, 2], [1, 3], [2], [0]]))
def test_tree_advantages_compare_nodes_of_one_depth(values, splits):
    leaves = 2 ** len(splits)
    rewards = torch.tensor(values, dtype=torch.float64)
    group = torch.arange(8) // 4  # a group of one tree of 4, of two of 2
    first = tree(8, 2, splits, columns=4)
    got = branch_advantages(rewards, group, first, ddof=0, eps=0.0)
    assert leaves in (2, 4)
    for column in range(4):
        for each in (0, 1):
            nodes: dict[int, list[float]] = {}
            for row in (group == each).nonzero()[:, 0].tolist():
                nodes.setdefault(int(first[row, column]), []).append(values[row])
            worth = {node: statistics.fmean(below) for node, below in nodes.items()}
            spread = statistics.pstdev(worth.values())
            for row in (group == each).nonzero()[:, 0].tolist():
                expected = 0.0
                if row in worth and max(worth.values()) > min(worth.values()):
                    expected = (worth[row] - statistics.fmean(worth.values())) / spread
                assert got[row, column].item() == pytest.approx(expected, abs=1e-9)


def test_unbranched_trees_equal_grpo_at_every_step():
    rewards, group = torch.tensor([1.0, 3.0, NAN, 2.0, 2.0, 7.0]), torch.tensor([0, 0, 0, 4, 4, 4])
    alone = torch.arange(6)[:, None].expand(6, 3)
    expected = grpo_advantages(rewards, group, std="group", ddof=1)
    torch.testing.assert_close(branch_advantages(rewards, group, alone, ddof=1), expected[:, None].expand(6, 3))


def test_tree_nodes_exclude_unscored_leaves():
    rewards, group = torch.tensor([4.0, NAN, 1.0, 0.0]), torch.zeros(4).long()
    got = branch_advantages(rewards, group, tree(4, 2, [0, 1], 2), ddof=0, eps=0.0)
    torch.testing.assert_close(got[:, 0], torch.tensor([1.0, 0.0, -1.0, 0.0]))  # worth 4 and 0.5


def test_shared_decisions_count_once():
    """The control: broadcast to all leaves, the first decision would weigh twice as much as the second."""
    got = branch_advantages(torch.tensor([0.0, 1.0, 3.0, 5.0]), torch.zeros(4).long(), tree(4, 2, [0, 1], 2))
    assert (got != 0).sum(0).tolist() == [2, 4]


def test_tree_extremes_are_selected_past_a_threshold():
    advantages = torch.tensor([0.9, -0.1, 0.4, -0.6, 0.7, 0.8, 2.0, 2.0])
    index = torch.tensor([3, 3, 3, 3, 5, 5, 9, 9])
    expected = torch.tensor([0.9, 0, 0, -0.6, 0, 0.8, 0, 0])  # 5: the worst is not below the bar; 9: nothing differs
    torch.testing.assert_close(extreme_advantages(advantages, index, 0.5), expected)
    assert not extreme_advantages(advantages, index, 3.0).any()
