"""Pairwise judges: no place is preferred, offsets cannot be had, and what no difference of scores can say is learnt."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.reward_model import RewardTrainingConfig
from mmrl.rewards.learned.head_training import JudgedPairs, axis_logits, train_pair_head
from mmrl.rewards.learned.pairwise_head import pairwise_logits, train_pairwise_head, win_rates
from mmrl.rewards.learned.score_head import HeadShape, ScoreHead
from mmrl_shapeworld.reasoning.pairwise_runs import ahead

SHORT = RewardTrainingConfig(steps=200, batch=64, lr=1e-2)


def test_a_swap_turns_the_sign_and_rates_are_a_half_on_average():
    torch.manual_seed(0)
    head = ScoreHead(HeadShape(features=8, hidden=6))
    first, second = torch.randn(5, 4), torch.randn(5, 4)
    with torch.no_grad():
        found = pairwise_logits(head, first, second)
        assert torch.allclose(found, -pairwise_logits(head, second, first), atol=1e-6)
        assert found.abs().sum() > 0
        rates = win_rates(head, first)
        others = [n for n in range(5) if n != 2]
        by_hand = pairwise_logits(head, first[2:3].expand(4, -1), first[others]).sigmoid().mean()
        assert rates[2].item() == pytest.approx(by_hand.item(), abs=1e-6)
        assert rates.mean().item() == pytest.approx(0.5, abs=1e-6)
    with pytest.raises(ValueError, match="one answer alone"):
        win_rates(head, first[:1])


def cycle(count: int, seed: int) -> JudgedPairs:
    """Pairs of a game in which stone beats scissors, scissors beat paper and paper beats stone."""
    chance = torch.Generator().manual_seed(seed)
    winner = torch.randint(3, (count,), generator=chance)
    hands = torch.eye(3)
    side = torch.where(torch.rand(count, 1, generator=chance) < 0.5, 1.0, -1.0)
    better, worse = hands[winner], hands[(winner + 1) % 3]
    return JudgedPairs(better.where(side > 0, worse), worse.where(side > 0, better), side)


@pytest.mark.integration
def test_a_judge_learns_preferences_that_go_in_a_circle_and_scores_cannot():
    train, new = cycle(256, 0), cycle(200, 1)
    judge = train_pairwise_head(train, 16, SHORT, 0)
    scores = train_pair_head(train, HeadShape(features=3, hidden=16), SHORT, 0)
    with torch.no_grad():
        right = (pairwise_logits(judge, new.chosen, new.rejected) * new.sides[:, 0] > 0).float().mean().item()
        by_score = (axis_logits(scores, new)[:, 0] * new.sides[:, 0] > 0).float().mean().item()
    assert right == 1.0 and by_score < 0.8
    again = train_pairwise_head(train, 16, SHORT, 0)
    assert all(torch.equal(a, b) for a, b in zip(judge.parameters(), again.parameters(), strict=True))
    with pytest.raises(ValueError, match="needs a hidden layer"):
        train_pairwise_head(train, 0, SHORT, 0)


def test_offsets_of_prompts_do_not_change_the_order_within_them():
    scores, right = torch.tensor([[1.0, 0.0, 2.0], [5.0, 6.0, 4.0]]), torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert ahead(scores, right) == pytest.approx(3 / 4)
    assert ahead(scores + torch.tensor([[9.0], [-9.0]]), right) == ahead(scores, right)
