"""GRAO's credit against its objective as the paper states it, differentiated."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms.aligned_groups import aligned_group_credit


def objective(likelihoods, advantages, groups, reference, imitation, alignment):
    """Equation 3 of arXiv:2508.07750, summed over groups times their numbers of own answers."""
    total = torch.zeros(())
    for group in groups.unique():
        (first,) = ((groups == group) & reference).nonzero()[:, 0].tolist()
        for row in ((groups == group) & ~reference).nonzero()[:, 0].tolist():
            explored = advantages[row] * likelihoods[row]
            imitated = imitation * advantages[first] * likelihoods[first]
            aligned = alignment * advantages[row] * (likelihoods[row] - likelihoods[first])
            total = total + explored + imitated + aligned
    return total


@given(
    advantages=st.lists(st.floats(-3, 3, width=32), min_size=8, max_size=8),
    imitation=st.floats(0, 2),
    alignment=st.floats(0, 2),
    order=st.permutations(range(8)),
)
def test_credit_is_the_gradient_of_the_three_terms(advantages, imitation, alignment, order):
    order = torch.tensor(order)
    groups = torch.tensor([0, 0, 0, 0, 0, 7, 7, 7])[order]
    reference = torch.tensor([True, False, False, False, False, False, True, False])[order]
    values = torch.tensor(advantages)
    likelihoods = torch.randn(8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    objective(likelihoods, values, groups, reference, imitation, alignment).backward()
    credit = aligned_group_credit(values, groups, reference, imitation, alignment)
    torch.testing.assert_close(credit, likelihoods.grad, atol=1e-4, rtol=1e-4)


def test_by_hand():
    # rewards 1 (reference), 0, 0, 1: mean 1/2, spread 1/2
    advantages = torch.tensor([1.0, -1.0, -1.0, 1.0])
    reference = torch.tensor([True, False, False, False])
    credit = aligned_group_credit(advantages, torch.zeros(4, dtype=torch.long), reference, 0.5, 0.6)
    # the reference: 3 (0.5 * 1 - 0.6 * -1/3) = 3 * 0.7
    torch.testing.assert_close(credit, torch.tensor([2.1, -1.6, -1.6, 1.6]))


def test_a_group_without_a_reference_keeps_its_advantages():
    advantages = torch.tensor([1.0, -1.0, 0.5])
    none = torch.zeros(3, dtype=torch.bool)
    assert torch.equal(aligned_group_credit(advantages, torch.tensor([0, 0, 1]), none, 0.5, 0.6), advantages)


def test_unscored_answers_have_no_part():
    advantages = torch.tensor([1.0, -1.0, torch.nan, -1.0])
    reference = torch.tensor([True, False, False, False])
    groups = torch.zeros(4, dtype=torch.long)
    credit = aligned_group_credit(advantages, groups, reference, 0.5, 0.6)
    kept = torch.tensor([0, 1, 3])
    alone = aligned_group_credit(advantages[kept], groups[kept], reference[kept], 0.5, 0.6)
    assert credit[2] == 0 and torch.equal(credit[kept], alone)
    unscored = aligned_group_credit(torch.tensor([torch.nan, 1.0, -1.0]), groups[:3], reference[:3], 0.5, 0.6)
    assert unscored.tolist() == [0.0, 1.0, -1.0]  # there is nothing to align with


def test_each_term_counts_and_a_wrong_sign_is_seen():
    advantages, groups = torch.tensor([1.5, -1.0, -0.5]), torch.zeros(3, dtype=torch.long)
    reference = torch.tensor([True, False, False])
    both = aligned_group_credit(advantages, groups, reference, 0.5, 0.6)
    assert aligned_group_credit(advantages, groups, reference, 0.0, 0.0).tolist() == [0.0, -1.0, -0.5]
    no_imitation = aligned_group_credit(advantages, groups, reference, 0.0, 0.6)
    no_alignment = aligned_group_credit(advantages, groups, reference, 0.5, 0.0)
    assert both[0] > no_imitation[0] > 0 and both[0] > no_alignment[0] > 0
    assert torch.equal(both[1:], no_imitation[1:]) and torch.equal(no_alignment[1:], advantages[1:])
    flipped = 2 * (0.5 * advantages[0] + 0.6 * advantages[1:].mean())  # J(y) - J(o) in the third term
    assert both[0] != flipped


def test_arguments_are_checked():
    groups, none = torch.zeros(2, dtype=torch.long), torch.zeros(2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"expected two numbers >= 0, got -0.5, 0"):
        aligned_group_credit(torch.zeros(2), groups, none, -0.5, 0.0)
    with pytest.raises(ValueError, match="reference"):
        aligned_group_credit(torch.zeros(2), groups, none[:1], 0.5, 0.0)
