"""Draws, by their frequencies: a chi-square test at 1 in 10,000, on seeds that do not change."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare
from transformers import TopKLogitsWarper, TopPLogitsWarper

from mmrl.tokens import sample_tokens, scored_logits

DRAWS = 20_000
LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5, -3.0, 0.5])


def counts(logits: torch.Tensor, **choice) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return sample_tokens(logits.expand(DRAWS, -1), generator, **choice).bincount(minlength=len(logits))


def fits(found: torch.Tensor, logits: torch.Tensor) -> bool:
    probabilities = logits.double().softmax(-1)
    possible = probabilities > 0
    if found[~possible].any() or possible.sum() == 1:
        return not found[~possible].any()
    return chisquare(found[possible], DRAWS * probabilities[possible]).pvalue > 1e-4


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_sampling_frequencies_equal_probabilities(temperature):
    found = counts(scored_logits(LOGITS, temperature))
    assert fits(found, LOGITS / temperature)
    assert not fits(found, LOGITS / (1.2 * temperature))  # the test can tell


@pytest.mark.parametrize("top_k", [1, 3, 7, 50])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 1.0])
def test_top_k_and_top_p_equal_transformers(top_k, top_p):
    warped = TopPLogitsWarper(top_p)(None, TopKLogitsWarper(min(top_k, 7))(None, LOGITS[None]))[0]
    assert fits(counts(LOGITS, top_p=top_p, top_k=top_k), warped)


def test_suppressed_tokens_are_never_sampled():
    assert not counts(scored_logits(LOGITS, 1.0, torch.tensor([0, 4])))[[0, 4]].any()


def test_greedy_without_a_generator():
    assert sample_tokens(torch.stack([LOGITS, -LOGITS]), None).tolist() == [0, 5]


def test_equal_generators_give_equal_samples_without_global_state():
    before = torch.get_rng_state()
    first, again, other = (sample_tokens(LOGITS.expand(50, -1), torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert first.equal(again)
    assert not first.equal(other)
    assert before.equal(torch.get_rng_state())


def test_equal_generators_couple_similar_distributions():
    """Draws are paired: a tenth in one logit moves few of them, where independent draws would differ in most."""
    moved = LOGITS + 0.1 * torch.eye(7)[0]
    one, other = (sample_tokens(x.expand(DRAWS, -1), torch.Generator().manual_seed(3)) for x in (LOGITS, moved))
    distance = (LOGITS.softmax(-1) - moved.softmax(-1)).abs().sum() / 2
    assert (one != other).double().mean() < 1.5 * distance
