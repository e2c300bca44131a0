"""Two forms of one judge of edits: what is drawn from its probabilities, how it is measured, and that it learns."""

from __future__ import annotations

import pytest
import torch

from mmrl_shapeworld import judged_edits
from mmrl_shapeworld.judged_edits import (
    QUESTIONS,
    JudgedEdits,
    ahead,
    drawn_edits,
    judged_forms,
    sampled_rewards,
    trained_head,
)


def chance() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_rewards_have_the_mean_and_the_variance_of_what_they_are_drawn_from():
    yes = torch.tensor([[0.9, 0.5, 0.5, 0.1]])
    ticked = sampled_rewards(yes.logit(), "checklist", 20_000, 1, chance())[:, 0]
    assert ticked.mean() == pytest.approx(yes.mean().item(), abs=0.005)
    assert ticked.var() == pytest.approx((yes * (1 - yes)).sum().item() / QUESTIONS**2, rel=0.05)
    scores = torch.tensor([[0.1, 0.2, 0.4, 0.2, 0.1]])  # 1 to 5, as 0 to 1: mean 1/2, variance 1.2 / 16
    for calls in (1, 4):
        drawn = sampled_rewards(scores.log(), "score", 20_000, calls, chance())[:, 0]
        assert drawn.mean() == pytest.approx(0.5, abs=0.01)
        assert drawn.var() == pytest.approx(1.2 / 16 / calls, rel=0.05)
    with pytest.raises(ValueError, match="one call of each question"):
        sampled_rewards(yes, "checklist", 1, 4, chance())


def test_a_right_edit_is_ahead_of_the_wrong_ones_to_its_own_request():
    right = torch.tensor([[True, False, False], [False, False, True]])
    rewards = torch.tensor([[[0.5, 0.25, 0.5], [0.0, 0.75, 0.5]]])
    assert ahead(rewards, right) == pytest.approx((1 + 0.5 + 1 + 0) / 4)
    assert ahead(rewards + torch.tensor([[[0.0], [9.0]]]), right) == ahead(rewards, right)  # requests are not compared


def edits(requests: int) -> JudgedEdits:
    answers = torch.rand(requests, 6, QUESTIONS, generator=chance()) < 0.5
    return JudgedEdits(2.0 * answers.float() - 1, answers, answers.all(-1))


@pytest.mark.slow
def test_both_forms_of_a_judge_learn_what_its_features_tell():
    seen = edits(64)
    for form in ("checklist", "score"):
        head = trained_head(seen, form, 0)
        with torch.no_grad():
            rewards = sampled_rewards(head(seen.features.flatten(0, 1))[0], form, 1, 1, chance())
        error = (rewards[0] - seen.answers.float().mean(-1).flatten()).abs().mean()
        assert error < 0.1 < (0.5 - seen.answers.float().mean(-1)).abs().mean()  # what no judge at all would err


@pytest.mark.integration
def test_edits_of_the_shipped_editor_are_judged(monkeypatch):
    monkeypatch.setattr(judged_edits, "TRAINING", ("formed-train", 4))
    monkeypatch.setattr(judged_edits, "STEPS", 3)
    found = drawn_edits("formed-development", 2)
    assert found.answers.shape == (2, 6, QUESTIONS) and found.right.shape == (2, 6)
    assert not (found.right & ~found.answers.all(-1)).any()  # success is a yes to every question, and more
    assert found.answers[:, :3, 0].sum() > found.answers[:, 3:, 0].sum()  # named rightly, then the other thing
    monkeypatch.setattr(judged_edits, "drawn_edits", lambda *_: found)
    judged = judged_forms(0, "formed-development", "score", 2)
    assert len(judged["variance"]) == len(judged["error"]) == 12 and len(judged["auc"]) == 1
    assert judged == judged_forms(0, "formed-development", "score", 2)
