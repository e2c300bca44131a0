"""The drafter of n-grams: counts by hand, what it forgets, and draws with the policy's noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.tokens.ngram_drafter import NGramDrafter
from mmrl.tokens.sampling import sample_with_noise


def taught(*answers: list[int], order: int = 3, most: int = 9, relearn: bool = True) -> NGramDrafter:
    drafter = NGramDrafter(order, most, relearn)
    for answer in answers:
        drafter.learn([7], answer)
    return drafter


def test_counts_are_those_of_the_longest_context_that_was_seen():
    drafter = taught([1, 2, 3], [1, 2, 4], [5, 2, 3])
    assert drafter.counts([1, 2]) == {3: 1, 4: 1}
    assert drafter.counts([9, 2]) == {3: 2, 4: 1}
    assert drafter.counts([7]) == {1: 2, 5: 1}
    assert drafter.counts([9]) == drafter.counts([]) == {1: 2, 2: 3, 3: 2, 4: 1, 5: 1}
    assert taught().counts([1]) == {}


def test_greedy_guesses_go_on_from_guesses():
    drafter = taught([1, 2, 3, 4], [1, 2, 3, 4])
    assert drafter.draft([7], 4) == [1, 2, 3, 4]
    assert drafter.draft([2], 2) == [3, 4]
    assert taught().draft([7], 4) == []


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=8), st.integers(1, 3), st.integers(2, 4))
def test_old_answers_are_forgotten_as_if_they_had_never_been(answers, most, order):
    assert taught(*answers, most=most, order=order)._counts == taught(*answers[-most:], order=order)._counts
    assert (
        taught(*answers, most=most, order=order, relearn=False)._counts == taught(*answers[:most], order=order)._counts
    )


def test_with_the_policys_noise_an_equal_distribution_draws_the_same_token():
    """Counts of 1, 2 and 5 are the logits log 1, log 2 and log 5."""
    drafter = NGramDrafter(2, 99)
    for token, count in enumerate((1, 2, 5)):
        for _ in range(count):
            drafter.learn([7], [token])
    noise = torch.empty(4000, 3).exponential_(generator=torch.Generator().manual_seed(0))
    logits = torch.tensor([1.0, 2.0, 5.0]).log().expand(4000, 3)
    drawn = sample_with_noise(logits, noise).tolist()
    assert [drafter.draft([7], 1, [each])[0] for each in noise.numpy()] == drawn
    assert np.bincount(drawn) / 4000 == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=0.025)
