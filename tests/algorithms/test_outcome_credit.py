"""OREAL's credit: both outcomes by hand, the importance of tokens against the authors' formulas."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms.outcome_credit import outcome_credit, token_importance

MASK = torch.tensor([[True, True, False], [True, False, False], [True, True, True]])
RIGHT = torch.tensor([True, False, False])
ADVANTAGES = torch.tensor([1.0, -0.5, -0.5])  # rloo of one right answer of three


def objective(log_probs, advantages, right, mask, negatives):
    """The two means over tokens, as train_oreal.py of the authors has them, with the log-ratio's gradient."""
    up = (log_probs * advantages[:, None] * (mask & right[:, None])).sum() / (mask & right[:, None]).sum()
    down = (log_probs * advantages[:, None] * (mask & ~right[:, None])).sum() / (mask & ~right[:, None]).sum()
    return up + negatives * down


def test_credit_is_the_gradient_of_both_means():
    log_probs = torch.zeros(3, 3, requires_grad=True)
    objective(log_probs, ADVANTAGES, RIGHT, MASK, 0.5).backward()
    credit = outcome_credit(ADVANTAGES, RIGHT, MASK, 0.5)
    torch.testing.assert_close(credit / MASK.sum(), log_probs.grad)
    assert credit[0, 0] == pytest.approx(1.0 * 6 / 2) and credit[1, 0] == pytest.approx(0.5 * -0.5 * 6 / 4)


def test_unshaped_negatives_count_one_each():
    shaped, plain = (outcome_credit(ADVANTAGES, RIGHT, MASK, 1.0, shaped=each) for each in (True, False))
    assert torch.equal(shaped[0], plain[0]) and torch.equal(2 * shaped[1:], plain[1:])
    hard = torch.tensor([0.0, 0.0, 0.0])  # no answer is right: a wrong answer says nothing that shaping would keep
    none = torch.zeros(3, dtype=torch.bool)
    assert not outcome_credit(hard, none, MASK, 1.0).any()
    assert (outcome_credit(hard, none, MASK, 1.0, shaped=False)[MASK] == -1).all()


def test_without_negatives_right_answers_are_cloned_alone():
    credit = outcome_credit(ADVANTAGES, RIGHT, MASK, 0.0)
    assert (credit[0][MASK[0]] > 0).all() and not credit[1:].any()


@given(st.lists(st.floats(-6, 6, width=32), min_size=5, max_size=5), st.integers(1, 5), st.floats(0, 0.9))
def test_importance_is_that_of_the_authors(logits, length, threshold):
    row = torch.tensor([logits])
    mask = torch.arange(5)[None] < length
    found = token_importance(row, mask, threshold)
    for t in range(5):
        p = torch.sigmoid(row[0, : t + 1].mean())
        for values, probability in ((found.right, p), (found.wrong, 1 - p)):
            expected = ((probability - threshold) / (1 - threshold)).clamp(0, 1) if t < length else torch.tensor(0.0)
            torch.testing.assert_close(values[0, t], expected, atol=1e-5, rtol=1e-4)


def test_importance_weighs_each_outcome_by_its_own():
    importance = token_importance(torch.tensor([[2.0, -4.0, 0.0]]).expand(3, 3), MASK)
    credit = outcome_credit(ADVANTAGES, RIGHT, MASK, 0.5, importance)
    plain = outcome_credit(ADVANTAGES, RIGHT, MASK, 0.5)
    torch.testing.assert_close(credit[0], plain[0] * importance.right[0])
    torch.testing.assert_close(credit[1:], plain[1:] * importance.wrong[1:])
    assert credit[0, 0] > 0 and credit[0, 1] == 0 and credit[2, 0] == 0 and credit[2, 1] < 0


def test_a_padded_decision_has_no_part():
    logits = torch.tensor([[1.0, 2.0, 100.0], [1.0, -50.0, 3.0], [0.0, 0.0, 1.0]])
    kept = token_importance(logits, MASK)
    other = token_importance(logits.masked_fill(~MASK, 7.0), MASK)
    assert torch.equal(kept.right, other.right) and torch.equal(kept.wrong, other.wrong)


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"negatives: expected a number >= 0, got -1"):
        outcome_credit(ADVANTAGES, RIGHT, MASK, -1.0)
    with pytest.raises(ValueError, match=r"threshold: expected a number in \[0, 1\), got 1"):
        token_importance(torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), 1.0)
