"""Dynamic sampling keeps what says something; adaptive allocation draws until both kinds of answers are there."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.algorithms.groups import group_spread
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import Sample
from mmrl.policy import Capability
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rollout_request import RolloutRequest, batch_requests, chunk_requests
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.rollouts.group_sampling import (
    AdaptiveGroupSampler,
    DynamicGroupSampler,
    SpreadGroupSampler,
    balanced_rows,
)
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import Exact, Right, collect, source

DYNAMIC = DynamicGroupSampler(groups=4, group_size=6, max_rounds=8)


def adaptive(**changes):
    defaults = {"group_size": 6, "max_rounds": 4, "per_round": 6, "success": 1.0, "positives": 2, "negatives": 3}
    return AdaptiveGroupSampler(**(defaults | {"seed": 0} | changes))


def rows_by_prompt(experience):
    return Counter(sample.id for batch in experience.micro_batches for sample in batch.rollout.samples)


def totals(experience, reward):
    """Return the rewards of trained answers by prompt."""
    found = {}
    for batch in experience.micro_batches:
        for sample, text in zip(batch.rollout.samples, batch.rollout.media, strict=True):
            found.setdefault(sample.id, []).append(reward(text, sample.answer))
    return found


def right(text, answer):
    return 1.0 if text == answer else 0.5 * (text[:1] == answer[:1])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 20), st.booleans())
def test_requests_are_chunked_as_by_batch_requests(sizes, rows, conditions):
    samples = [
        Sample(id=f"s{n}", conditions={"image": "a.png"} if conditions and n % 2 else {}) for n in range(len(sizes))
    ]
    calls = chunk_requests([RolloutRequest(s, n, g) for g, (s, n) in enumerate(zip(samples, sizes, strict=True))], rows)
    drawn = [request.group for call in calls for request in call for _ in range(request.n)]
    assert drawn == [group for group, n in enumerate(sizes) for _ in range(n)]
    assert all(sum(request.n for request in call) <= rows for call in calls)
    equal = [RolloutRequest(sample, sizes[0], group) for group, sample in enumerate(samples)]
    assert chunk_requests(equal, rows) == batch_requests(samples, sizes[0], rows)


@settings(max_examples=15)
@given(st.integers(0, 1000))
def test_dynamic_sampling_trains_on_informative_groups(seed):
    found = collect(source(TokenPolicy(seed=seed), seed=seed, group_sampler=DYNAMIC))
    metrics = found.metrics
    silent = [id for id, values in totals(found, right).items() if max(values) == min(values)]
    assert len(silent) == metrics["draws/filled_groups"]
    assert set(rows_by_prompt(found).values()) == {6} and len(rows_by_prompt(found)) == 4
    assert metrics["draws/rows"] == 6 * (4 + metrics["draws/dropped_groups"])
    assert all(batch.scored.all() for batch in found.micro_batches)


def test_uniform_sampling_has_uninformative_groups():
    found = totals(collect(source(reward=Exact()), 1), lambda text, answer: text == answer)
    assert any(max(values) == min(values) for values in found.values())
    found = collect(source(reward=Exact(), group_sampler=DYNAMIC, prompts=PromptSampler(questions(), 2, 0)), 1)
    assert found.metrics["draws/dropped_groups"] > 0


def test_dynamic_sampling_stops_after_its_rounds_and_fills_up():
    class Blind(Right):
        def score_one(self, item):
            return 0.25

    limited = DynamicGroupSampler(groups=2, group_size=6, max_rounds=3)
    found = collect(source(reward=Blind(), group_sampler=limited, prompts=PromptSampler(questions(), 2, 0)))
    assert found.metrics["draws/rounds"] == 3 and found.metrics["draws/filled_groups"] == 2
    assert found.metrics["draws/dropped_groups"] == 4 and len(rows_by_prompt(found)) == 2
    assert all(not batch.advantages.any() for batch in found.micro_batches)
    exhausted = collect(source(reward=Blind(), group_sampler=DYNAMIC))  # 8 questions are two rounds of 4
    assert exhausted.metrics["draws/rounds"] == 2 and exhausted.metrics["zero_variance_share"] == 1.0


def gradient(policy, experience):
    objective = PolicyGradient(policy, GRPOConfig())
    policy.logits.grad = None
    amounts = [objective.loss_normalizer(batch) for batch in experience.micro_batches]
    for batch, amount in zip(experience.micro_batches, amounts, strict=True):
        objective.backward(batch, amount / sum(amounts), 0, MetricAccumulator())
    return policy.logits.grad.clone()


def test_surplus_rows_of_policies_without_row_selection_have_no_loss():
    class Whole(TokenPolicy):
        capabilities = TokenPolicy.capabilities - {Capability.SELECT_ROWS}

    cut, whole = TokenPolicy(vocabulary=3), Whole(vocabulary=3)
    small, large = (collect(source(policy, Exact(), group_sampler=DYNAMIC), 2) for policy in (cut, whole))
    rows = [sum(batch.rollout.rows for batch in found.micro_batches) for found in (small, large)]
    assert rows[0] == 24 < rows[1]
    assert sum(batch.scored_rows for batch in large.micro_batches) == 24
    torch.testing.assert_close(gradient(cut, small), gradient(whole, large))
    assert gradient(cut, small).any()


@settings(max_examples=15)
@given(st.integers(0, 1000), st.integers(0, 3), st.integers(0, 3))
def test_adaptive_sampling_stops_at_its_targets_and_balances_rewards(seed, positives, negatives):
    draws = adaptive(positives=positives, negatives=negatives)
    policy = TokenPolicy(seed=seed, vocabulary=3)
    found = collect(source(policy, Exact(), seed=seed, group_sampler=draws))
    assert set(rows_by_prompt(found).values()) == {6}
    short = 0
    for values in totals(found, lambda text, answer: text == answer).values():
        short += sum(values) < min(positives, 3) or 6 - sum(values) < min(negatives, 3)
    assert short == found.metrics["draws/unresolved_groups"]
    assert found.metrics["draws/rows"] >= 24 and found.metrics["draws/trained_rows"] == 24
    assert found.metrics["draws/rows"] <= 24 * found.metrics["draws/rounds"] <= 24 * 4


def test_adaptive_advantages_are_relative_to_all_samples():
    policy = TokenPolicy(vocabulary=3)
    seen = {}

    class Remembering(Right):
        def score_one(self, item):
            seen.setdefault(item.group, []).append(super().score_one(item))
            return seen[item.group][-1]

    found = collect(source(policy, Remembering(), group_sampler=adaptive(success=0.5)))
    assert len({len(values) for values in seen.values()}) > 1  # uneven groups
    for batch in found.micro_batches:
        for row, group in enumerate(batch.rollout.group_index.tolist()):
            drawn = np.array(seen[group])
            own = right(batch.rollout.media[row], batch.rollout.samples[row].answer)
            expected = 0.0 if drawn.std() == 0 else (own - drawn.mean()) / (drawn.std() + 1e-4)
            assert batch.advantages[row].item() == pytest.approx(expected, abs=1e-5)


def test_adaptive_metrics_are_over_all_samples():
    fixed, picked = (collect(source(TokenPolicy(), Exact(), group_sampler=draws)) for draws in (None, adaptive()))
    assert picked.metrics["reward/exact"] == fixed.metrics["reward/exact"]
    assert picked.metrics["draws/rows"] > 24


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([0.0, 1.0, float("nan")]), min_size=1, max_size=24), st.integers(1, 8), st.integers(0, 9)
)
def test_rows_are_selected_as_balanced_as_possible(values, keep, seed):
    total, groups = torch.tensor(values), torch.arange(len(values)) % 2
    kept = balanced_rows(total >= 1, total, groups, keep, np.random.default_rng(seed))
    for group in (0, 1):
        good, bad = (int(((groups == group) & (total == value)).sum()) for value in (1.0, 0.0))
        mine = kept & (groups == group)
        splits = [(g, b) for g in range(good + 1) for b in range(bad + 1) if g + b == min(keep, good + bad)]
        best = min(splits, key=lambda split: abs(split[0] - split[1]))
        had = int((mine & (total == 1)).sum()), int((mine & (total == 0)).sum())
        assert abs(had[0] - had[1]) == abs(best[0] - best[1]) and sum(had) == sum(best) == int(mine.sum())


def test_dropped_groups_do_not_enter_spread_metrics():
    found = collect(source(reward=Exact(), group_sampler=DYNAMIC))
    trained = torch.cat([batch.rollout.group_index for batch in found.micro_batches])
    gained = torch.cat([batch.advantages for batch in found.micro_batches])
    silent = len(trained[group_spread(gained, trained) == 0].unique())
    assert silent == found.metrics["draws/filled_groups"]


class Nearly(Right):
    """Almost nothing for a wrong answer to the first question, so that its rewards hardly differ."""

    def score_one(self, item: RewardInput) -> float:
        return super().score_one(item) * (0.01 if item.id.startswith("s0/") else 1.0)


def test_groups_of_little_spread_are_left_out_of_training_and_of_the_baseline():
    sampler = SpreadGroupSampler(6, below=0.5)
    found = collect(source(reward=Nearly(), group_sampler=sampler, prompts=PromptSampler(questions(), 8, seed=0)))
    prompts = {sample.id for batch in found.micro_batches for sample in batch.rollout.samples}
    assert "s0" not in prompts and found.metrics["draws/dropped_groups"] == 8 - len(prompts)
    assert found.metrics["draws/mean_spread"] > 0


def test_without_any_spread_all_groups_stay():
    class Zero(Right):
        """The same for every answer."""

        def score_one(self, item: RewardInput) -> float:
            return 0.0

    found = collect(source(reward=Zero(), group_sampler=SpreadGroupSampler(6)))
    assert found.metrics["draws/dropped_groups"] == 0 and sum(b.rollout.rows for b in found.micro_batches) == 24
