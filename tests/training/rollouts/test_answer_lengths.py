"""Expected lengths of answers, and calls dealt by them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from mmrl.data.sample import Sample
from mmrl.rollout_request import RolloutRequest
from mmrl.training.rollouts.answer_lengths import DECAY, AnswerLengths
from mmrl.training.rollouts.exchange import deal_evenly
from tests.training.token_policy import TokenPolicy


def sample(source: str) -> Sample:
    return Sample(id="s0", task="t", prompt="?", source=source)


def rollout(source: str, lengths: list[int], group: int = 0):
    """A rollout of answers of these lengths to one prompt."""
    made = TokenPolicy().rollout([RolloutRequest(sample(source), len(lengths), group)], seed=0)
    return replace(made, token_ids=[[1] * length for length in lengths])


def test_a_call_costs_its_longest_answer_and_its_mean_answer():
    lengths = AnswerLengths()
    calls = [[RolloutRequest(sample("boxes"), 3, 0), RolloutRequest(sample("choice"), 1, 1)]]
    assert lengths.cost(calls[0]) == 0.0
    lengths.learn([rollout("boxes", [10, 20]), rollout("choice", [2, 2], group=1)])
    assert lengths.cost(calls[0]) == pytest.approx(20 + (3 * 15 + 1 * 2) / 4)
    unknown = [RolloutRequest(sample("clip"), 1, 0)]
    assert lengths.cost(unknown) == pytest.approx((20 + 2) / 2 + (15 + 2) / 2)


def test_means_follow_new_answers_and_are_saved():
    lengths = AnswerLengths()
    lengths.learn([rollout("boxes", [10, 20])])
    lengths.learn([rollout("boxes", [30, 30])])
    other = AnswerLengths()
    other.load_state_dict(json.loads(json.dumps(lengths.state_dict())))
    call = [RolloutRequest(sample("boxes"), 1, 0)]
    assert other.cost(call) == lengths.cost(call) == pytest.approx(DECAY * (20 + 15) + (1 - DECAY) * (30 + 30))


def test_a_group_in_two_calls_counts_once():
    lengths, whole = AnswerLengths(), AnswerLengths()
    lengths.learn([rollout("boxes", [10]), rollout("boxes", [20])])
    whole.learn([rollout("boxes", [10, 20])])
    assert lengths.state_dict() == whole.state_dict()


def test_rollouts_without_tokens_teach_nothing():
    lengths = AnswerLengths()
    lengths.learn([replace(rollout("boxes", [1]), token_ids=None)])
    assert lengths.state_dict() == {}


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("first", [0, 1, 4])
@pytest.mark.parametrize("cost", [0.0, 7.0])
def test_equal_costs_are_dealt_in_turn(count, first, cost):
    for pieces in range(8):
        assert deal_evenly([cost] * pieces, count, first) == [(first + turn) % count for turn in range(pieces)]


def test_costs_are_balanced_without_changing_how_many_calls_a_process_makes():
    generator = torch.Generator().manual_seed(0)
    excess = {"by cost": 0.0, "in turn": 0.0}
    for _ in range(200):
        costs = (torch.rand(8, generator=generator) * 20).tolist()
        for name, ranks in {"by cost": deal_evenly(costs, 2), "in turn": [0, 1] * 4}.items():
            assert sorted(ranks) == [0] * 4 + [1] * 4
            own = sum(cost for cost, rank in zip(costs, ranks, strict=True) if rank == 0)
            excess[name] += max(own, sum(costs) - own) - sum(costs) / 2
    assert excess["by cost"] < 0.4 * excess["in turn"]
