"""A constant number of tokens is learnt from: which answers are chosen, and with which advantages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.build.config_checks import check
from mmrl.config import load_config
from mmrl.errors import ConfigError
from mmrl.training.rollouts.token_budget import TokenBudget, rows_within
from tests.training.token_policy import TokenPolicy
from tests.training.token_run import Right, collect, source


def chosen(lengths, budget, order=None, among=None):
    count = len(lengths)
    among = [True] * count if among is None else among
    order = range(count) if order is None else order
    return rows_within(torch.tensor(lengths), torch.tensor(among), torch.tensor(list(order)), budget).tolist()


def test_the_first_rows_of_an_order_that_come_nearest_to_the_budget():
    assert chosen([4, 4, 4, 4], 8) == [True, True, False, False]
    assert chosen([4, 4, 4, 4], 11) == [True, True, True, False]  # 12 is nearer than 8
    assert chosen([4, 4, 4, 4], 9) == [True, True, False, False]
    assert chosen([9, 2, 3], 5, order=[2, 1, 0]) == [False, True, True]
    assert chosen([9, 2, 3], 99) == [True, True, True]
    assert chosen([9, 2, 3], 1) == [True, False, False]  # at least one
    assert chosen([9, 2, 3], 5, among=[False, True, True]) == [False, True, True]
    assert chosen([9], 5, among=[False]) == [False]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(1, 200), st.integers(0, 1000))
def test_the_sum_differs_by_at_most_half_a_row(lengths, budget, seed):
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist()
    found = chosen(lengths, budget, order)
    total = sum(each for each, taken in zip(lengths, found, strict=True) if taken)
    if sum(lengths) >= budget:
        assert abs(total - budget) <= max(lengths) / 2 or (found.count(True) == 1 and total > budget)
    else:
        assert all(found)
    taken = [found[row] for row in order]
    assert taken == sorted(taken, reverse=True)


class Equal(Right):
    """The same reward for all answers."""

    name = "equal"

    def score_one(self, item):
        return 0.5


def rows_of(experience):
    return {
        (batch.rollout.samples[row].id, batch.rollout.media[row], round(batch.advantages[row].item(), 5))
        for batch in experience.micro_batches
        for row in range(batch.rollout.rows)
    }


def test_updates_have_equally_many_tokens_and_the_advantages_of_whole_groups():
    policy = TokenPolicy(spread=1.5)
    plain, within = source(policy), source(policy, token_budget=TokenBudget(20, seed=5))
    counts = []
    for iteration in range(6):
        whole, found = collect(plain, iteration), collect(within, iteration)
        tokens = sum(int(batch.rollout.mask.sum()) for batch in found.micro_batches)
        counts.append(tokens)
        assert found.metrics["token_budget/tokens"] == tokens
        assert rows_of(found) < rows_of(whole)  # no advantage depends on which answers are chosen
        assert all(advantage for _, _, advantage in rows_of(found))  # and none of the budget is spent on 0
        assert found.metrics["reward/total"] == whole.metrics["reward/total"]
        live = sum(int((batch.advantages != 0).sum()) for batch in whole.micro_batches)
        rows = sum(batch.rollout.rows for batch in found.micro_batches)
        assert rows + found.metrics["token_budget/left_out"] == live > rows
    longest = policy.logits.shape[1]
    assert all(abs(each - 20) <= longest / 2 for each in counts)


def test_iterations_and_seeds_choose_differently():
    policy = TokenPolicy(spread=1.5)
    collected = [rows_of(collect(source(policy, token_budget=TokenBudget(20, seed)))) for seed in (1, 1, 2)]
    assert collected[0] == collected[1] != collected[2]


def test_where_nothing_is_learnt_all_stays():
    policy = TokenPolicy(spread=1.5)
    found = collect(source(policy, reward=Equal(), token_budget=TokenBudget(20, seed=1)))
    assert sum(batch.rollout.rows for batch in found.micro_batches) == 24
    assert found.metrics["token_budget/tokens"] == 0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm.aggregate=sequence", "an equal number of tokens is for a mean over tokens"),
        ("training.updates=2", "data.token_budget: it is that of an iteration"),
        ("data.replay={name: selective}", "data.replay adds or leaves out answers by another rule"),
        ("run.overlap.stream=true", "run.overlap.stream learns from groups one by one"),
        ("algorithm.name=sft", "data.token_budget: sft learns from demonstrations in the data set"),
    ],
)
def test_what_a_budget_cannot_go_with_is_refused(override, message):
    budget = ["data.token_budget=512", "algorithm={name: grpo, aggregate: token}"]
    check(load_config("shapes-vlm", budget))
    with pytest.raises(ConfigError, match=message):
        check(load_config("shapes-vlm", [*budget, override]))


def test_pictures_have_no_tokens():
    with pytest.raises(ConfigError, match="only answers in text differ in their number of tokens"):
        check(load_config("quickstart", ["data.token_budget=512"]))
