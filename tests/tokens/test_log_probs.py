"""Log-probabilities and entropies of tokens, against torch.distributions in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical

from mmrl.checks import ShapeError
from mmrl.tokens import scored_logits, token_log_probs
from mmrl.tokens.log_probs import head_log_probs


def drawn(seed: int, rows: int = 3, columns: int = 4, words: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, columns, words, generator=generator)
    return logits, torch.randint(words, (rows, columns), generator=generator)


@settings(max_examples=12)
@given(st.integers(0, 10_000), st.floats(0.05, 4))
def test_log_probs_and_entropies_equal_a_categorical_distribution(seed, temperature):
    logits, tokens = drawn(seed)
    truth = Categorical(logits=logits.double() / temperature)
    log_probs, entropy, mean = token_log_probs(scored_logits(logits, temperature), tokens)
    torch.testing.assert_close(log_probs.double(), truth.log_prob(tokens), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(entropy.double(), truth.entropy(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mean.double(), truth.logits.mean(-1), atol=2e-5, rtol=1e-5)


def test_log_prob_gradients_equal_a_categorical_distribution():
    logits, tokens = drawn(0)
    own, expected = logits.clone().requires_grad_(), logits.double().requires_grad_()
    token_log_probs(scored_logits(own, 0.6), tokens)[0].sum().backward()
    Categorical(logits=expected / 0.6).log_prob(tokens).sum().backward()
    torch.testing.assert_close(own.grad.double(), expected.grad, atol=1e-6, rtol=1e-6)


def test_suppressed_tokens_renormalise_the_others():
    logits, _ = drawn(1)
    tokens = torch.full((3, 4), 2)
    allowed = [0, 2, 4, 5, 6]
    truth = Categorical(logits=logits[..., allowed].double())
    log_probs, entropy, mean = token_log_probs(scored_logits(logits, 1.0, torch.tensor([1, 3])), tokens)
    torch.testing.assert_close(log_probs.double(), truth.log_prob(torch.tensor(1)), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy.double(), truth.entropy(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mean.double(), truth.logits.mean(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("biased", [True, False])
def test_means_from_states_are_those_of_logits(biased):
    generator = torch.Generator().manual_seed(6)
    states, weight = torch.randn(5, 8, generator=generator), torch.randn(11, 8, generator=generator)
    bias = torch.randn(11, generator=generator) if biased else None
    tokens, suppressed = torch.tensor([0, 3, 4, 9, 10]), torch.tensor([1, 7])
    found = head_log_probs(states, weight, bias, tokens, 0.7, suppressed)
    logits = torch.nn.functional.linear(states, weight, bias)
    wanted = token_log_probs(scored_logits(logits, 0.7, suppressed)[None], tokens[None])
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs[0], atol=1e-5, rtol=1e-5)
    with_them = token_log_probs(scored_logits(logits, 0.7)[None], tokens[None]).mean_log_probs[0]
    assert not torch.allclose(found.mean_log_probs, with_them, atol=1e-2)  # tokens that are never sampled do not count


def test_suppressed_tokens_have_no_probability_and_finite_gradients():
    logits, tokens = drawn(2)
    logits.requires_grad_()
    log_probs, entropy, _ = token_log_probs(scored_logits(logits, 1.0, torch.tensor([3])), torch.full_like(tokens, 3))
    assert (log_probs == -math.inf).all()
    assert entropy.isfinite().all()
    log_probs.where(torch.zeros(3, 4, dtype=torch.bool), 0.0).sum().backward()
    assert (logits.grad == 0).all()


def test_entropies_and_means_have_no_gradient():
    logits, tokens = drawn(3)
    found = token_log_probs(logits.requires_grad_(), tokens)
    assert found.log_probs.requires_grad and not found.entropy.requires_grad and not found.mean_log_probs.requires_grad


def test_temperature_zero_scores_at_one():
    logits, _ = drawn(4)
    torch.testing.assert_close(scored_logits(logits, 0), logits)


def test_half_precision_is_scored_in_float32():
    logits, tokens = drawn(5)
    halved = logits.bfloat16()
    scored = scored_logits(halved, 0.7)
    assert scored.dtype == torch.float32
    truth = Categorical(logits=halved.double() / 0.7).log_prob(tokens)
    torch.testing.assert_close(token_log_probs(scored, tokens)[0].double(), truth, atol=1e-5, rtol=1e-5)


def test_negative_temperatures_raise():
    with pytest.raises(ValueError, match=r"temperature: expected a number >= 0, got -1"):
        scored_logits(torch.zeros(1, 2), -1.0)


def test_tokens_of_another_shape_raise():
    with pytest.raises(ShapeError, match="tokens"):
        token_log_probs(torch.zeros(2, 3, 5), torch.zeros(2, 4, dtype=torch.long))
