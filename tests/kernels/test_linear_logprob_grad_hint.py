"""Gradients that are computed together with the log-probs, from a hint of the objective's derivative."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from torch import Tensor

from mmrl_kernels.ops.linear_logprob import autograd, linear_logprob, linear_logprob_entropy, sizes


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sizes.CHUNK_BYTES, "cpu", 1000)
    monkeypatch.setattr(sizes, "FEWEST_ROWS", 1)


class Update:
    """A clipped policy gradient of 31 tokens, some past the clip and some that nothing is learnt from."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.operands = [torch.randn(31, 8), torch.randn(57, 8), torch.randn(57)]
        self.operands = [each.to(dtype).requires_grad_() for each in self.operands]
        self.targets, self.suppressed = torch.randint(1, 57, (31,)), torch.tensor([0])
        self.gain = torch.randn(31).where(torch.arange(31) % 4 > 0, 0.0)
        with torch.no_grad():
            self.old = self.score() + 0.2 * torch.randn(31)

    def score(self, **options: object) -> Tensor:
        hidden, weight, bias = self.operands
        return linear_logprob(hidden, weight, self.targets, bias=bias, suppressed=self.suppressed, **options)

    def terms(self, log_probs: Tensor, rows: Tensor | slice) -> Tensor:
        ratio, gain = (log_probs - self.old[rows]).exp(), self.gain[rows]
        return -torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)

    def grad_hint(self, log_probs: Tensor, rows: Tensor) -> Tensor:
        with torch.enable_grad():
            free = log_probs.detach().requires_grad_()
            return torch.autograd.grad(self.terms(free, rows).sum(), free)[0]

    def gradients(self, scale: float = 1.0, **options: object) -> tuple[Tensor, ...]:
        return torch.autograd.grad(scale * self.terms(self.score(**options), slice(None)).sum(), self.operands)


@pytest.fixture
def never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd, "_backward", None)


@pytest.mark.parametrize("scale", [1.0, 1024.0, -0.3])
def test_grad_hint_gives_equal_gradients_without_recomputing_logits(scale, monkeypatch):
    update = Update()
    expected = update.gradients(scale)
    monkeypatch.setattr(autograd, "_backward", None)
    torch.testing.assert_close(
        update.gradients(scale, grad_hint=update.grad_hint), expected, rtol=1e-5, atol=1e-5 * abs(scale)
    )


@pytest.mark.parametrize("wrong", [torch.zeros_like, torch.ones_like, lambda t: t * math.nan, lambda t: t.flip(0)])
def test_wrong_grad_hint_gives_right_gradients(wrong):
    update = Update()
    found = update.gradients(grad_hint=lambda log_probs, rows: wrong(update.grad_hint(log_probs, rows)))
    torch.testing.assert_close(found, update.gradients(), rtol=0, atol=0)


def test_wrong_grad_hint_warns_once_and_frees_prepared_gradients_first(caplog, monkeypatch):
    autograd._tell_of_another.cache_clear()
    update, prepared, stored = Update(), [], []
    forward, again = autograd._forward, autograd._backward

    def recording(*arguments):
        found = forward(*arguments)
        prepared.append(weakref.ref(found[2]))
        return found

    def looked_at(*arguments):
        stored.append(prepared[-1]() is not None)
        return again(*arguments)

    monkeypatch.setattr(autograd, "_forward", recording)
    monkeypatch.setattr(autograd, "_backward", looked_at)
    for _ in range(2):
        update.gradients(grad_hint=lambda log_probs, rows: torch.ones_like(log_probs))
    assert stored == [False, False]
    assert caplog.text.count("the incoming gradient differs from grad_hint") == 1


def test_grad_hint_with_a_later_loss_scale_is_exact_in_float16():
    torch.manual_seed(0)
    hidden, weight = torch.randn(64, 16).half().requires_grad_(), torch.randn(57, 16).half().requires_grad_()
    targets, slope = torch.randint(57, (64,)), 1e-6 * torch.randn(64)
    scaled = 65536 * slope
    expected = torch.autograd.grad(linear_logprob(hidden, weight, targets), [hidden, weight], scaled)
    hinted = linear_logprob(hidden, weight, targets, grad_hint=lambda log_probs, rows: slope[rows])
    for found, right in zip(torch.autograd.grad(hinted, [hidden, weight], scaled), expected, strict=True):
        assert found.dtype == torch.float16
        assert (found - right).float().norm() < 2e-3 * right.float().norm()


def test_grad_hint_allows_a_second_backward_pass():
    update = Update()
    loss = update.terms(update.score(grad_hint=update.grad_hint), slice(None)).sum()
    first = torch.autograd.grad(loss, update.operands, retain_graph=True)
    kept = [each.clone() for each in first]
    torch.testing.assert_close(torch.autograd.grad(loss, update.operands), kept, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("never_again")
def test_grad_hint_ignores_values_of_zero_gradient_rows():
    update = Update()
    with torch.no_grad():
        update.operands[0][update.gain == 0] = math.nan
    found = update.gradients(grad_hint=lambda log_probs, rows: update.grad_hint(log_probs, rows).nan_to_num(0.0))
    assert all(each.isfinite().all() for each in found[1:])


@pytest.mark.usefixtures("never_again")
def test_grad_hint_supports_entropies_and_half_precision():
    update = Update(torch.bfloat16)
    hidden, weight, bias = update.operands
    log_probs, entropy = linear_logprob_entropy(
        hidden, weight, update.targets, bias=bias, suppressed=update.suppressed, grad_hint=update.grad_hint
    )
    assert not entropy.requires_grad and torch.equal(log_probs, update.score())
    found = torch.autograd.grad(update.terms(log_probs, slice(None)).sum(), update.operands)
    assert [each.dtype for each in found] == [torch.bfloat16] * 3


@pytest.mark.usefixtures("never_again")
def test_frozen_layer_ignores_grad_hint():
    update = Update()
    update.operands[1:] = [each.detach() for each in update.operands[1:]]
    loss = update.terms(update.score(grad_hint=lambda log_probs, rows: 1 / 0), slice(None)).sum()
    assert torch.autograd.grad(loss, update.operands[0])[0].abs().sum() > 0


def test_grad_hint_is_not_called_under_no_grad():
    update = Update()
    with torch.no_grad():
        assert not update.score(grad_hint=lambda log_probs, rows: 1 / 0).requires_grad
