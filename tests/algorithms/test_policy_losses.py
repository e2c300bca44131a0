import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal

from mmrl.algorithms import (
    aggregate,
    aggregation_total,
    aggregation_weights,
    broadcast_to_decisions,
    clipped_policy_loss,
    dr_grpo_advantages,
    rloo_advantages,
)
from mmrl.checks import DtypeError, ShapeError

HOWS = [("token", None), ("sequence", None), ("constant", 7.0)]


def batch(rows=4, columns=5, seed=0):
    """Log-probs with a graph, old ones near them, advantages and a ragged mask; no ratio sits on a clip edge."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(rows, columns, generator=generator, dtype=torch.float64)  # noqa: E731
    mask = torch.arange(columns) < torch.randint(1, columns + 1, (rows, 1), generator=generator)
    return (draw() * 0.3).requires_grad_(), draw() * 0.3, draw(), mask


# By hand -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.05, 2.0, -2.1, False),
        (1.50, 2.0, -2.4, True),  # too likely already: no more to gain
        (0.50, 2.0, -1.0, False),  # good and now rare: not clipped, pulled back
        (0.50, -2.0, 1.8, True),  # bad and rare already
        (1.50, -2.0, 3.0, False),  # bad and more likely: not clipped, pushed down
        (1.50, 0.0, 0.0, False),
    ],
)
def test_clip_by_hand(ratio, advantage, loss, clipped):
    log_probs, old = torch.tensor([[math.log(ratio) - 3]]), torch.tensor([[-3.0]])
    got = clipped_policy_loss(log_probs, old, torch.tensor([[advantage]]), torch.ones(1, 1).bool(), 0.1, 0.2)
    assert got.loss.item() == pytest.approx(loss)
    assert got.ratio.item() == pytest.approx(ratio)
    assert got.clipped.item() is clipped


def test_clip_low_and_high_bound_opposite_sides():
    log_probs, old, advantages, mask = batch()
    there = clipped_policy_loss(log_probs, old, advantages, mask, 0.1, 0.3).loss
    back = clipped_policy_loss(log_probs, old, advantages, mask, 0.3, 0.1).loss
    assert not torch.allclose(there, back, atol=1e-2)


MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
TERMS = torch.tensor([[1.0, 2.0, 3.0], [10.0, torch.nan, torch.inf], [torch.nan, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("how", "constant", "total", "expected"),
    [
        ("token", None, None, (1 + 2 + 3 + 10) / 4),
        ("sequence", None, None, ((1 + 2 + 3) / 3 + 10) / 2),
        ("sequence", None, 3, ((1 + 2 + 3) / 3 + 10) / 3),  # as trl: a row without decisions counts
        ("constant", 5.0, None, ((1 + 2 + 3) / 5 + 10 / 5) / 2),
        ("token", None, 8, (1 + 2 + 3 + 10) / 8),
    ],
)
def test_aggregation_by_hand(how, constant, total, expected):
    assert aggregate(TERMS, MASK, how, constant, total).item() == pytest.approx(expected)


def test_aggregate_of_an_empty_mask_is_zero():
    for how, constant in HOWS:
        assert aggregate(TERMS, torch.zeros_like(MASK), how, constant).item() == 0


# Gradients -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "constant"), HOWS)
def test_clipped_loss_gradient_against_finite_differences(how, constant):
    log_probs, old, advantages, mask = batch()

    def loss(x):
        return aggregate(clipped_policy_loss(x, old, advantages, mask, 0.1, 0.3).loss, mask, how, constant)

    assert torch.autograd.gradcheck(loss, (log_probs,))


@given(st.integers(0, 10_000))
def test_clipped_decisions_have_zero_gradient(seed):
    log_probs, old, advantages, mask = batch(seed=seed)
    got = clipped_policy_loss(log_probs, old, advantages, mask, 0.1, 0.3)
    got.loss.sum().backward()
    assert torch.equal(log_probs.grad == 0, got.clipped | ~mask)
    assert not got.ratio.requires_grad and not got.clipped[~mask].any() and (got.loss[~mask] == 0).all()


def test_on_policy_gradient_is_minus_the_advantage():
    log_probs, _, advantages, mask = batch()
    clipped_policy_loss(log_probs, log_probs.detach(), advantages, mask, 1e-5, 1e-5).loss.sum().backward()
    torch.testing.assert_close(log_probs.grad, -advantages * mask)


def test_clipped_loss_ignores_padding_and_detaches_old_log_probs():
    log_probs, old, advantages, mask = batch()
    poisoned = [t.detach().where(mask, bad).requires_grad_() for t, bad in ((log_probs, torch.nan), (old, torch.inf))]
    advantages = advantages.where(mask, torch.nan).requires_grad_()
    loss = aggregate(clipped_policy_loss(*poisoned, advantages, mask, 0.1, 0.3).loss, mask, "sequence")
    loss.backward()
    assert poisoned[0].grad.isfinite().all() and (poisoned[0].grad[~mask] == 0).all() and poisoned[0].grad.any()
    assert poisoned[1].grad is None and advantages.grad is None


@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("gap", [1000.0, -1000.0])
def test_overflowing_ratios_give_finite_gradients(advantage, gap):
    log_probs = torch.tensor([[gap, 0.0]], requires_grad=True)
    advantages, mask = torch.tensor([[advantage, 1.0]]), torch.ones(1, 2, dtype=torch.bool)
    got = clipped_policy_loss(log_probs, torch.zeros(1, 2), advantages, mask, 0.2, 0.2)
    got.loss.sum().backward()
    assert got.loss.isfinite().all() and log_probs.grad.tolist() == [[0, -1]]


# A sum over decisions ------------------------------------------------------------------------------------------------


def gradient(parameter, blocks):
    """Gradient of a policy whose every decision shares `parameter`, one backward pass a block of decisions."""
    parameter.grad = None
    _, old, advantages, mask = batch()
    features = torch.randn(*mask.shape, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    for rows, columns, weights in blocks:
        here = (rows, columns)
        log_probs = (features[here] @ parameter).tanh()
        terms = clipped_policy_loss(log_probs, old[here], advantages[here], mask[here], 0.1, 0.3).loss
        (weights * terms).sum().backward()
    return parameter.grad.clone()


@pytest.mark.parametrize(("how", "constant"), HOWS)
def test_aggregated_blocks_sum_to_the_whole_batch(how, constant):
    parameter = torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64, requires_grad=True)
    mask = batch()[3]
    every, weights = slice(None), aggregation_weights(mask, how, constant)
    whole = gradient(parameter, [(every, every, weights)])
    columns = [slice(t, t + 1) for t in range(5)]
    by_column = gradient(parameter, [(every, c, weights[:, c]) for c in columns])
    torch.testing.assert_close(by_column, whole)
    total = aggregation_total(mask, how)  # rows: micro-batches that know nothing but the total of them all
    halves = [slice(0, 1), slice(1, 4)]
    assert sum(aggregation_total(mask[r], how) for r in halves) == total
    by_row = gradient(parameter, [(r, every, aggregation_weights(mask[r], how, constant, total)) for r in halves])
    torch.testing.assert_close(by_row, whole)

    assert whole.abs().min() > 1e-3
    off_by_one = gradient(parameter, [(every, c, weights.roll(1, 1)[:, c]) for c in columns])
    assert not torch.allclose(off_by_one, whole, rtol=0.01)
    each_its_own = gradient(parameter, [(r, every, aggregation_weights(mask[r], how, constant)) for r in halves])
    assert not torch.allclose(each_its_own, whole, rtol=0.01)


@pytest.mark.parametrize(("how", "constant"), HOWS)
def test_slices_have_the_terms_of_the_whole_batch(how, constant):
    log_probs, old, advantages, mask = batch()
    whole = clipped_policy_loss(log_probs, old, advantages, mask, 0.1, 0.3)
    for t in range(5):
        c = (slice(None), slice(t, t + 1))
        part = clipped_policy_loss(log_probs[c], old[c], advantages[c], mask[c], 0.1, 0.3)
        for got, expected in zip(part, whole, strict=True):
            assert torch.equal(got, expected[c])


# The policy gradient in closed form ----------------------------------------------------------------------------------

CENTRE, STD, GROUP, GROUPS = 1.0, 0.5, 8, 20_000


def estimate(theta, advantages_of, steps):
    """The loss gradient for a Gaussian walk of `steps` decisions, x' ~ N(x + theta, STD^2), rewarded -(x - CENTRE)^2.

    Groups are independent: returns the mean over groups and its standard error.
    """
    generator = torch.Generator().manual_seed(0)
    n = GROUP * GROUPS
    noise = torch.randn(n, steps, generator=generator, dtype=torch.float64)
    states = (theta + STD * noise).cumsum(1)
    before = torch.cat([torch.zeros(n, 1, dtype=torch.float64), states[:, :-1]], 1)
    mask = torch.ones(n, steps, dtype=torch.bool)
    advantages = advantages_of(-((states[:, -1] - CENTRE) ** 2), torch.arange(n) // GROUP)
    parameter = torch.full((n, 1), theta, dtype=torch.float64, requires_grad=True)  # one copy a row: per-row gradients
    log_probs = Normal(before + parameter, STD).log_prob(states)
    terms = clipped_policy_loss(
        log_probs, log_probs.detach(), broadcast_to_decisions(advantages, mask), mask, 0.2, 0.2
    ).loss
    aggregate(terms, mask, "constant", constant=1.0).backward()
    per_group = parameter.grad.reshape(GROUPS, GROUP).sum(1) * GROUPS
    return per_group.mean().item(), per_group.std().item() / GROUPS**0.5


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("theta", [0.3, 1.4])
def test_clipped_loss_gradient_is_that_of_the_expected_reward(theta, steps):
    """E[reward] = -((steps theta - CENTRE)^2 + steps STD^2), so its gradient is -2 steps (steps theta - CENTRE)."""
    truth = 2 * steps * (steps * theta - CENTRE)  # of the loss: the reward's, with its sign turned
    for advantages, bias in ((lambda r, g: r, 1), (rloo_advantages, 1), (dr_grpo_advantages, 1 - 1 / GROUP)):
        mean, error = estimate(theta, advantages, steps)
        assert abs(mean - bias * truth) < 4 * error
        assert abs(mean + bias * truth) > 20 * error  # a flipped sign is seen
    mean, error = estimate(theta, dr_grpo_advantages, steps)
    assert abs(mean - truth) > 8 * error  # the group mean's own bias is seen
    mean, error = estimate(theta, lambda r, g: rloo_advantages(r, g).roll(1), steps)
    assert abs(mean - truth) > 20 * error  # and so is the advantage of the row next to it


# Refusals ------------------------------------------------------------------------------------------------------------


def test_clipped_loss_rejects_wrong_shapes_and_dtypes():
    log_probs, old, advantages, mask = batch()
    with pytest.raises(ShapeError, match=r"advantages: expected \[B, T\] with B=4, T=5, got \[4\]"):
        clipped_policy_loss(log_probs, old, advantages[:, 0], mask, 0.2, 0.2)
    with pytest.raises(DtypeError, match="log_probs: expected float32 or float64, got bfloat16"):
        clipped_policy_loss(log_probs.bfloat16(), old, advantages, mask, 0.2, 0.2)
    with pytest.raises(DtypeError, match="mask: expected bool"):
        clipped_policy_loss(log_probs, old, advantages, mask.long(), 0.2, 0.2)
    with pytest.raises(ValueError, match="expected two numbers >= 0"):
        clipped_policy_loss(log_probs, old, advantages, mask, -0.2, 0.2)
    for how, constant in (("constant", None), ("token", 3.0), ("constant", 0.0)):
        with pytest.raises(ValueError, match="constant: expected a number"):
            aggregation_weights(mask, how, constant)
    with pytest.raises(ValueError, match="how: expected 'token', 'sequence' or 'constant', got 'mean'"):
        aggregation_weights(mask, "mean")
