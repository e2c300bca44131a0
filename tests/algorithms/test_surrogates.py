"""Every surrogate but PPO's own, which `test_policy_losses` holds, and ratios that rows share."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.algorithms import (
    aggregate,
    aggregation_weights,
    cispo_policy_loss,
    clipped_policy_loss,
    importance_log_ratio,
    reinforce_policy_loss,
    sapo_policy_loss,
    topr_policy_loss,
    vespo_policy_loss,
)
from mmrl.checks import DtypeError, ShapeError
from tests.algorithms.test_policy_losses import batch

SURROGATES = {
    "clip": partial(clipped_policy_loss, clip_low=0.1, clip_high=0.3),
    "dual": partial(clipped_policy_loss, clip_low=0.1, clip_high=0.3, dual=1.5),
    "cispo": partial(cispo_policy_loss, clip_low=None, clip_high=0.2),
    "cispo, with a floor": partial(cispo_policy_loss, clip_low=0.2, clip_high=0.2),
    "reinforce": reinforce_policy_loss,
    "sapo": sapo_policy_loss,
    "topr": topr_policy_loss,
    "vespo": vespo_policy_loss,
}
IMPORTANCE = ["token", "sequence", "trajectory"]
every = pytest.mark.parametrize("name", SURROGATES)
each_importance = pytest.mark.parametrize("importance", IMPORTANCE)


def one(ratio, advantage, surrogate):
    """Loss, gradient by the log-prob, and whether it is marked, of a single decision with log-prob -3."""
    log_probs = torch.tensor([[-3.0]], dtype=torch.float64, requires_grad=True)
    old = log_probs.detach() - math.log(ratio)
    got = surrogate(log_probs, old, torch.tensor([[advantage]]).double(), torch.ones(1, 1).bool())
    got.loss.sum().backward()
    assert got.ratio.item() == pytest.approx(ratio)
    return got.loss.item(), log_probs.grad.item(), got.clipped.item()


# By hand -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ratio", "advantage", "gradient", "marked"),
    [
        ("dual", 1.4, -2.0, 2.8, False),  # pushed down
        ("dual", 1.6, -2.0, 0.0, True),  # too far away to be pushed on
        ("dual", 0.8, -2.0, 0.0, True),
        ("dual", 1.6, 2.0, 0.0, True),
        ("cispo", 1.1, 2.0, -2.2, False),
        ("cispo", 1.5, 2.0, -2.4, True),  # counts for 1.2, and goes on learning
        ("cispo", 1.5, -2.0, 2.4, True),
        ("cispo", 0.5, 2.0, -1.0, False),  # no floor
        ("cispo, with a floor", 0.5, 2.0, -1.6, True),
        ("reinforce", 5.0, 2.0, -2.0, False),
        ("reinforce", 0.1, -2.0, 2.0, False),  # bad: pushed down, however unlikely already
        ("topr", 5.0, 2.0, -2.0, False),  # good: imitated, however likely
        ("topr", 0.1, 2.0, -2.0, False),
        ("topr", 0.1, -2.0, 0.2, False),  # bad and unlikely already: left in peace
        ("topr", 5.0, -2.0, 2.0, True),  # bad: counts for 1 at most
        ("sapo", 1.0, 2.0, -2.0, False),
        ("sapo", 2.0, 1.0, -2 * 4 * 0.7310586 * 0.2689414, False),  # 4 ratio sigmoid(1) (1 - sigmoid(1))
        ("vespo", 1.0, 2.0, -2.0, False),
        ("vespo", 2.0, 2.0, -2.0 * 4 * math.exp(-3), False),  # e^3 2^2 e^-6
        ("vespo", 2.0, -2.0, 2.0 * 8 * math.exp(-2), False),  # e^2 2^3 e^-4
    ],
)
def test_surrogate_gradients_by_hand(name, ratio, advantage, gradient, marked):
    _, got, clipped = one(ratio, advantage, SURROGATES[name])
    assert got == pytest.approx(gradient, rel=1e-6)
    assert clipped is marked


def test_surrogate_values_by_hand():
    assert one(1.6, -2.0, SURROGATES["dual"])[0] == pytest.approx(3.0)  # 1.5 times 2
    assert one(1.5, 2.0, SURROGATES["cispo"])[0] == pytest.approx(1.2 * -2.0 * -3.0)
    assert one(2.0, 1.0, SURROGATES["sapo"])[0] == pytest.approx(-4 / (1 + math.exp(-1)))
    assert one(2.0, -1.0, SURROGATES["sapo"])[0] == pytest.approx(4 / 1.05 / (1 + math.exp(-1.05)))
    assert one(0.5, -2.0, SURROGATES["topr"])[0] == pytest.approx(0.5 * 2.0 * -3.0)


def test_shared_ratios_by_hand():
    moved = torch.tensor([[0.2, 0.4, 9.0], [-1.0, 9.0, 9.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    ratio = partial(importance_log_ratio, moved, torch.zeros(2, 3), mask)
    torch.testing.assert_close(ratio("token"), torch.tensor([[0.2, 0.4, 0], [-1.0, 0, 0]]))
    torch.testing.assert_close(ratio("sequence"), torch.tensor([[0.3, 0.3, 0], [-1.0, 0, 0]]))
    torch.testing.assert_close(ratio("trajectory"), torch.tensor([[0.6, 0.6, 0], [-1.0, 0, 0]]))


# Finite differences --------------------------------------------------------------------------------------------------


def integral(name, x, gain):
    """Return the potential of a surrogate's gradient at log-ratios x: the weight, integrated over x, times -gain.

    A weight without a gradient makes the loss's own value no guide to its gradient. These are worked out apart from it.
    """
    ratio = x.exp()
    if name.startswith("cispo"):
        low, high = (0.8 if "floor" in name else 0.0), 1.2
        mean = ratio.clamp(low, high)
        above = high * (x - math.log(high)).clamp(min=0)
        return -gain * (mean + above + (low * (x - math.log(low)).clamp(max=0) if low else 0.0))
    if name == "reinforce":
        return -gain * x
    if name == "topr":
        return -gain * torch.where(gain < 0, torch.where(x < 0, ratio, 1 + x), x)
    k, rate = torch.where(gain < 0, 3.0, 2.0).double(), torch.where(gain < 0, 2.0, 3.0).double()
    gamma = torch.special.gammainc(k, rate * ratio) * torch.lgamma(k).exp()
    return -gain * rate.exp() * rate**-k * gamma


@pytest.mark.parametrize("name", ["cispo", "cispo, with a floor", "reinforce", "topr", "vespo"])
@each_importance
def test_weights_against_finite_differences(name, importance):
    log_probs, old, advantages, mask = batch()
    row = advantages[:, :1].expand_as(mask)  # one advantage a row, as a shared ratio has one weight a row

    def potential(x):
        if importance == "token":
            return integral(name, (x - old).where(mask, 0.0), row)[mask].sum()
        shared = (x - old).where(mask, 0.0).sum(1)
        count = mask.sum(1) if importance == "sequence" else torch.ones_like(shared)
        return (integral(name, shared / count, row[:, 0]) * count).sum()

    SURROGATES[name](log_probs, old, row, mask, importance=importance).loss.sum().backward()
    torch.testing.assert_close(log_probs.grad, differences(potential, log_probs.detach()), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", ["dual", "sapo"])
def test_functions_of_the_ratio_against_finite_differences(name):
    log_probs, old, advantages, mask = batch()
    assert torch.autograd.gradcheck(lambda x: SURROGATES[name](x, old, advantages, mask).loss, (log_probs,))


@pytest.mark.parametrize("name", ["clip", "dual", "sapo"])
def test_sequence_ratios_have_the_gradient_of_gspo(name):
    """The paper's own loss, the mean over rows of a function of exp(mean log-ratio), differentiated as it stands."""
    log_probs, old, advantages, mask = batch()
    row = advantages[:, :1]

    def gspo(x):
        shared = (x - old).where(mask, 0.0).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        one_each = torch.ones_like(row, dtype=torch.bool)
        return SURROGATES[name](shared, torch.zeros_like(shared), row, one_each).loss.mean()

    terms = SURROGATES[name](log_probs, old, row.expand_as(mask), mask, importance="sequence").loss
    loss = aggregate(terms, mask, "sequence")
    loss.backward()
    assert loss.item() == pytest.approx(gspo(log_probs.detach()).item())
    expected = differences(gspo, log_probs.detach())
    torch.testing.assert_close(log_probs.grad, expected, atol=1e-7, rtol=1e-6)
    assert expected.abs().max() > 0.01
    other = SURROGATES[name](log_probs, old, row.expand_as(mask), mask).loss  # the control: each token's own ratio
    (unlike,) = torch.autograd.grad(aggregate(other, mask, "sequence"), log_probs)
    assert (unlike - expected).abs().max() > 1e-3


def test_trajectory_ratios_have_the_gradient_of_their_product():
    log_probs, old, advantages, mask = batch()
    row = advantages[:, :1]

    def importance_sampled(x):
        return -((x - old).where(mask, 0.0).sum(1, keepdim=True).exp() * row).mean()

    terms = clipped_policy_loss(log_probs, old, row.expand_as(mask), mask, 0.999, 1e9, importance="trajectory").loss
    aggregate(terms, mask, "constant", constant=1.0).backward()
    expected = differences(importance_sampled, log_probs.detach())
    torch.testing.assert_close(log_probs.grad, expected, atol=1e-7, rtol=1e-6)


def test_gspo_token_uses_the_advantage_of_each_decision():
    """Section 4.3 of the paper: sg[s] p / sg[p], so the gradient at a token is -s times *its* advantage."""
    log_probs, old, advantages, mask = batch()
    terms = clipped_policy_loss(log_probs, old, advantages, mask, 0.999, 1e9, importance="sequence").loss
    terms.sum().backward()
    ratio = ((log_probs - old).where(mask, 0.0).sum(1, keepdim=True) / mask.sum(1, keepdim=True)).exp()
    torch.testing.assert_close(log_probs.grad, (-ratio * advantages).where(mask, 0.0).detach())


def differences(function, x, step=1e-6):
    """Central, in float64."""
    found = torch.zeros_like(x)
    for index in range(x.numel()):
        push = torch.zeros_like(x).flatten()
        push[index] = step
        up, down = (function(x + sign * push.view_as(x)).item() for sign in (1, -1))
        found.view(-1)[index] = (up - down) / (2 * step)
    return found


# Properties ----------------------------------------------------------------------------------------------------------


@every
@each_importance
def test_on_policy_gradients_equal_reinforce(name, importance):
    log_probs, _, advantages, mask = batch()
    loss = SURROGATES[name](log_probs, log_probs.detach(), advantages, mask, importance=importance).loss
    loss.sum().backward()
    torch.testing.assert_close(log_probs.grad, (-advantages).where(mask, 0.0))


@every
@each_importance
def test_surrogates_ignore_padding_and_detach_old_log_probs(name, importance):
    log_probs, old, advantages, mask = batch()
    clean = SURROGATES[name](log_probs, old, advantages, mask, importance=importance)
    clean.loss.sum().backward()
    poisoned = [t.detach().where(mask, bad).requires_grad_() for t, bad in ((log_probs, torch.nan), (old, torch.inf))]
    advantages = advantages.where(mask, torch.nan).requires_grad_()
    got = SURROGATES[name](*poisoned, advantages, mask, importance=importance)
    got.loss.sum().backward()
    torch.testing.assert_close(poisoned[0].grad, log_probs.grad)
    assert poisoned[1].grad is None and advantages.grad is None and not got.ratio.requires_grad
    assert (got.loss[~mask] == 0).all() and (got.ratio[~mask] == 1).all() and not got.clipped[~mask].any()


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from(sorted(SURROGATES)), st.sampled_from(IMPORTANCE))
def test_surrogate_rows_are_independent_of_batch_and_padding(seed, name, importance):
    log_probs, old, advantages, mask = (t.detach() for t in batch(seed=seed))
    surrogate = partial(SURROGATES[name], importance=importance)
    whole = surrogate(log_probs, old, advantages, mask)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    shuffled = surrogate(log_probs[order], old[order], advantages[order], mask[order])
    wide = surrogate(*(torch.cat([t, torch.ones_like(t)], 1) for t in (log_probs, old, advantages)), padded(mask))
    for whole_part, shuffled_part, wide_part in zip(whole, shuffled, wide, strict=True):
        torch.testing.assert_close(shuffled_part, whole_part[order])
        torch.testing.assert_close(wide_part[:, :5], whole_part)


def padded(mask):
    return torch.cat([mask, torch.zeros_like(mask)], 1)


@every
@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("gap", [1000.0, -1000.0])
def test_overflowing_ratios_give_finite_gradients(name, advantage, gap):
    log_probs = torch.tensor([[gap, 0.0]], requires_grad=True)
    advantages, mask = torch.tensor([[advantage, 1.0]]), torch.ones(1, 2, dtype=torch.bool)
    got = SURROGATES[name](log_probs, torch.zeros(1, 2), advantages, mask, importance="token")
    got.loss.sum().backward()
    assert got.loss.isfinite().all() and log_probs.grad.isfinite().all()
    assert log_probs.grad[0, 1].item() == pytest.approx(-1)


@each_importance
def test_column_blocks_sum_for_per_decision_surrogates_only(importance):
    log_probs, old, advantages, mask = batch()
    weights = aggregation_weights(mask, "sequence")

    def loss(columns):
        parts = (t[:, columns] for t in (log_probs, old, advantages, mask))
        return (weights[:, columns] * cispo_policy_loss(*parts, None, 0.2, importance=importance).loss).sum()

    whole = torch.autograd.grad(loss(slice(None)), log_probs)[0]
    cut = sum(torch.autograd.grad(loss(slice(t, t + 1)), log_probs)[0] for t in range(5))
    assert torch.allclose(whole, cut) == (importance == "token")


# Refusals ------------------------------------------------------------------------------------------------------------


@every
def test_surrogates_reject_wrong_shapes_and_dtypes(name):
    log_probs, old, advantages, mask = batch()
    with pytest.raises(ShapeError, match=r"advantages: expected \[B, T\] with B=4, T=5, got \[4\]"):
        SURROGATES[name](log_probs, old, advantages[:, 0], mask)
    with pytest.raises(DtypeError, match="log_probs: expected float32 or float64, got bfloat16"):
        SURROGATES[name](log_probs.bfloat16(), old, advantages, mask)
    with pytest.raises(ValueError, match="importance: expected 'token', 'sequence' or 'trajectory', got 'turn'"):
        SURROGATES[name](log_probs, old, advantages, mask, importance="turn")


def test_surrogates_reject_invalid_settings():
    inputs = batch()
    with pytest.raises(ValueError, match="dual: expected a number > 1, got 1"):
        clipped_policy_loss(*inputs, 0.1, 0.1, dual=1.0)
    with pytest.raises(ValueError, match="clip_low, clip_high: expected two numbers >= 0"):
        cispo_policy_loss(*inputs, None, -0.1)
    with pytest.raises(ValueError, match="positive, negative: expected two numbers > 0, got"):
        sapo_policy_loss(*inputs, 1.0, 0.0)
    with pytest.raises(ValueError, match="positive, negative: expected numbers > 0"):
        vespo_policy_loss(*inputs, positive=(2.0, 0.0))
