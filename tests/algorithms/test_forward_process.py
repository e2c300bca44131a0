import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms import interpolate, nft_loss, nft_old_decay, optimality
from mmrl.checks import ShapeError


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(shape=(3, 2, 4), seed=0):
    """velocity (with a graph), old_velocity, x_t, sigma [B], clean, rho [B]."""
    velocity, old, clean, noise = (random(*shape, seed=seed + i) for i in range(4))
    sigma = torch.linspace(0.2, 0.9, shape[0]).double()
    rho = torch.linspace(0.0, 1.0, shape[0]).double()
    return velocity.requires_grad_(), old, interpolate(clean, noise, sigma), sigma, clean, rho


def by_numpy(velocity, old, x_t, sigma, clean, rho, beta, floor=1e-5, scales=None):
    """The published formula, a row at a time; `scales` freezes the denominators, as `detach` does."""
    losses, used = [], []
    for b in range(len(clean)):
        loss = 0.0
        for sign, weight in ((1, rho[b]), (-1, 1 - rho[b])):
            mirrored = old[b] + sign * beta * (velocity[b] - old[b])
            x0 = x_t[b] - sigma[b] * mirrored
            used.append(max(np.abs(x0 - clean[b]).mean(), floor))
            loss += (
                weight / beta * ((x0 - clean[b]) ** 2).mean() / (used[-1] if scales is None else scales[len(used) - 1])
            )
        losses.append(loss)
    return np.array(losses), used


def as_numpy(tensors):
    return [t.detach().numpy() for t in tensors]


# Noising and optimality ----------------------------------------------------------------------------------------------


def test_interpolate_by_hand():
    clean, noise = torch.tensor([[4.0, 8.0], [4.0, 8.0]]), torch.tensor([[0.0, 4.0], [0.0, 4.0]])
    assert torch.equal(interpolate(clean, noise, 0.0), clean) and torch.equal(interpolate(clean, noise, 1.0), noise)
    assert interpolate(clean, noise, torch.tensor([0.25, 0.75])).tolist() == [[3, 7], [1, 5]]
    assert interpolate(clean.bfloat16(), noise.bfloat16(), 0.5).dtype == torch.bfloat16
    assert interpolate(torch.ones(2), torch.zeros(2), 0.25).tolist() == [0.75, 0.75]


def test_interpolate_has_derivative_noise_minus_clean():
    """d x_t / d sigma is the velocity noise - x0, which a swapped clean and noise would turn round."""
    clean, noise = random(2, 3, seed=0), random(2, 3, seed=1)
    slope = (interpolate(clean, noise, 0.75) - interpolate(clean, noise, 0.25)) / 0.5
    torch.testing.assert_close(slope, noise - clean)


def test_optimality_by_hand():
    advantages = torch.tensor([-7.0, -5.0, -1.0, 0.0, 2.5, 5.0, 99.0])
    torch.testing.assert_close(optimality(advantages, 5.0), torch.tensor([0.0, 0.0, 0.4, 0.5, 0.75, 1.0, 1.0]))
    torch.testing.assert_close(optimality(advantages, 5.0), (advantages / 10 + 0.5).clamp(0, 1))
    assert optimality(torch.tensor([1.0]), 1.0) == 1 and optimality(torch.tensor([1.0]), 2.0) == 0.75


# The loss ------------------------------------------------------------------------------------------------------------


def test_nft_by_hand():
    """For one sample of two dimensions: x0 error of v+ (2, 0), of v- (-2, 4); normalised by 1 and 3."""
    one = lambda *values: torch.tensor([values])  # noqa: E731
    got = nft_loss(one(-3.0, 1.0), one(1.0, -3.0), one(1.0, -1.0), 0.5, one(0.5, -1.5), torch.tensor([0.75]), 1.0)
    # v+ = v: x0 = 1 + 1.5, -1 - 0.5 = 2.5, -1.5; v- = 2 v_old - v = 5, -7: x0 = -1.5, 2.5
    assert got.item() == pytest.approx(0.75 * (4 / 2) / 1 + 0.25 * ((4 + 16) / 2) / 3)


@given(st.integers(0, 1000), st.sampled_from([0.1, 0.5, 1.0, 2.0]), st.sampled_from([(1, 1), (3, 5), (2, 2, 3, 2)]))
def test_nft_against_numpy(seed, beta, shape):
    all_inputs = inputs(shape, seed)
    truth, _ = by_numpy(*as_numpy(all_inputs), beta)
    np.testing.assert_allclose(nft_loss(*all_inputs, beta).detach().numpy(), truth, rtol=1e-10)


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_nft_gradient_against_finite_differences(beta):
    velocity, *rest = inputs()
    nft_loss(velocity, *rest, beta).sum().backward()
    base, others = velocity.detach().numpy().copy(), as_numpy(rest)
    _, scales = by_numpy(base, *others, beta)
    numeric, step = np.zeros_like(base), 1e-6
    for place in np.ndindex(base.shape):
        ends = []
        for sign in (1, -1):
            moved = base.copy()
            moved[place] += sign * step
            ends.append(by_numpy(moved, *others, beta, scales=scales)[0].sum())
        numeric[place] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(velocity.grad.numpy(), numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("beta", [0.1, 1.0, 3.0])
def test_nft_gradient_at_the_old_policy_in_closed_form(beta):
    """v+ = v- = v there: the advantage weighs a step from v to the sample's own velocity, for every beta."""
    velocity, _, x_t, sigma, clean, rho = inputs((5, 4, 3))
    nft_loss(velocity, velocity, x_t, sigma, clean, rho, beta).sum().backward()
    v, s, r = velocity.detach(), sigma[:, None, None], rho[:, None, None]
    towards = (x_t - clean) / s - v  # noise - x0 - v
    scale = (s * towards).abs().mean((1, 2), keepdim=True)
    truth = -2 * (2 * r - 1) * s**2 * towards / (12 * scale)
    torch.testing.assert_close(velocity.grad, truth)
    assert velocity.grad[2].abs().max() < 1e-15 < velocity.grad[1].abs().max()  # rho = 1/2 teaches nothing


@pytest.mark.parametrize("rho", [0.0, 1.0])
def test_nft_terms_have_gradients_for_the_policy_alone(rho):
    velocity, old, x_t, sigma, clean, _ = inputs()
    old = old.requires_grad_()
    nft_loss(velocity, old, x_t, sigma, clean, torch.full((3,), rho).double(), 0.5).sum().backward()
    assert (velocity.grad != 0).all() and old.grad is None


def test_nft_negative_samples_have_the_opposite_gradient():
    velocity, _, x_t, sigma, clean, _ = inputs()
    gradients = []
    for rho in (0.0, 1.0):
        loss = nft_loss(velocity, velocity, x_t, sigma, clean, torch.full((3,), rho).double(), 1.0).sum()
        gradients.append(torch.autograd.grad(loss, velocity)[0])
    torch.testing.assert_close(gradients[0], -gradients[1])


def test_nft_rows_are_independent():
    velocity, old, x_t, sigma, clean, rho = inputs()
    base, order = nft_loss(velocity, old, x_t, sigma, clean, rho, 0.5), torch.tensor([2, 0, 1])
    permuted = nft_loss(*(t[order] for t in (velocity, old, x_t, sigma, clean, rho)), 0.5)
    torch.testing.assert_close(permuted, base[order])
    for row in range(3):
        alone = nft_loss(*(t[row : row + 1] for t in (velocity, old, x_t, sigma, clean, rho)), 0.5)
        torch.testing.assert_close(alone, base[row : row + 1])
    same = nft_loss(velocity, old, x_t, 0.4, clean, rho, 0.5)
    torch.testing.assert_close(same, nft_loss(velocity, old, x_t, torch.full((3,), 0.4).double(), clean, rho, 0.5))
    swapped = nft_loss(velocity, old, x_t, sigma, clean, rho.flip(0), 0.5)
    assert not torch.allclose(swapped, base, rtol=0.01)


def test_nft_is_zero_and_finite_at_a_perfect_prediction():
    clean, noise = random(2, 3, seed=0), random(2, 3, seed=1)
    velocity = (noise - clean).requires_grad_()
    x_t, rho = interpolate(clean, noise, 0.5), torch.tensor([0.0, 1.0]).double()
    nft_loss(velocity, velocity, x_t, 0.5, clean, rho, 1.0).sum().backward()
    assert velocity.grad.abs().max() < 1e-9


def test_nft_widens_half_precision():
    single = [t.detach().bfloat16() for t in inputs((2, 512))]
    got = nft_loss(*single, 0.7)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), nft_loss(*(t.double() for t in single), 0.7), rtol=1e-5, atol=0)


# On Gaussian data, where everything is known -------------------------------------------------------------------------

SIGMA, MEAN, STD = 0.6, 0.5, 0.8


def noised_gaussians(rows, dimensions):
    """Clean x0 ~ N(MEAN, STD^2), x_t, the posterior mean of x0 given x_t, and the posterior variance."""
    clean = MEAN + STD * random(rows, dimensions, seed=0)
    x_t = interpolate(clean, random(rows, dimensions, seed=1), SIGMA)
    gain = STD**2 * (1 - SIGMA) / (STD**2 * (1 - SIGMA) ** 2 + SIGMA**2)
    posterior = MEAN + gain * (x_t - (1 - SIGMA) * MEAN)
    return clean, x_t, posterior, STD**2 * (1 - gain * (1 - SIGMA))


def test_nft_increases_a_linear_reward():
    """In one dimension: A = a (x0 - MEAN), v = v_old(x_t) + theta at theta = 0.

    With e = E[x0 | x_t] - x0 the gradient is -2 sigma E[A sign(e)] / clip, and E[(x0 - MEAN) sign(e)] = -E|e|.
    """
    rows, slope, clip = 400_000, 0.5, 5.0
    clean, x_t, posterior, variance = noised_gaussians(rows, 1)
    theta = torch.zeros(rows, 1, dtype=torch.float64, requires_grad=True)  # one copy a row: per-row gradients
    old = (x_t - posterior) / SIGMA
    rho = optimality(slope * (clean[:, 0] - MEAN), clip)
    nft_loss(old + theta, old, x_t, SIGMA, clean, rho, beta=0.7).sum().backward()
    truth = 2 * SIGMA * slope * math.sqrt(2 * variance / math.pi) / clip
    error = theta.grad.std().item() / rows**0.5
    assert abs(theta.grad.mean().item() - truth) < 4 * error
    assert truth > 20 * error  # so descent lowers v, and x0 = x_t - sigma v rises, as the reward asks


@pytest.mark.integration
def test_nft_gradient_is_the_reward_weighted_velocity():
    """Many dimensions, the first one rewarded: rho = Phi(k (x0 - MEAN)).

    E[(2 rho - 1)(noise - x0 - v_old)] = 2 E[rho (noise - x0 - v_old)] is the paper's 2 P(good) (v_good - v_old): here
    -2 Cov(rho, x0 | x_t) / sigma, and by Stein's lemma Cov(rho, x0 | x_t) averages to variance * E[rho'(x0)].
    """
    rows, dimensions, steepness = 20_000, 128, 1.5
    clean, x_t, posterior, variance = noised_gaussians(rows, dimensions)
    theta = torch.zeros(rows, dimensions, dtype=torch.float64, requires_grad=True)
    old = (x_t - posterior) / SIGMA
    rho = torch.special.ndtr(steepness * (clean[:, 0] - MEAN))
    nft_loss(old + theta, old, x_t, SIGMA, clean, rho, beta=1.0).sum().backward()
    slope = steepness / math.sqrt(2 * math.pi * (1 + (steepness * STD) ** 2))  # E[rho'(x0)]
    reward_weighted = -2 * variance * slope / SIGMA
    scale = math.sqrt(2 * variance / math.pi)  # E|e|; a sample's own differs by 1 / root(dimensions)
    truth = -2 * SIGMA**2 * reward_weighted / (dimensions * scale)
    mean, error = theta.grad.mean(0), theta.grad.std(0) / rows**0.5
    assert abs(mean[0].item() - truth) < 4 * error[0].item() + 0.02 * abs(truth)
    assert abs(mean[0].item() + truth) > 20 * error[0].item()  # a flipped sign is seen
    assert (mean[1:].abs() < 5 * error[1:]).all()  # no reward, no direction


# The old policy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ((0, 0.0, 0.0), {0: 0.0, 500: 0.0}),
        ((0, 0.001, 0.5), {0: 0.0, 1: 0.001, 300: 0.3, 500: 0.5, 9000: 0.5}),
        ((75, 0.0075, 0.999), {0: 0.0, 74: 0.0, 75: 0.0, 76: 0.0075, 175: 0.75, 9000: 0.999}),
    ],
)
def test_decay_schedules_equal_the_published_values(schedule, expected):
    flat, rate, cap = schedule
    for step, decay in expected.items():
        assert nft_old_decay(step, flat=flat, rate=rate, cap=cap) == pytest.approx(decay)


# Refusals ------------------------------------------------------------------------------------------------------------


def test_forward_process_rejects_wrong_shapes():
    velocity, old, x_t, sigma, clean, rho = inputs()
    with pytest.raises(ShapeError, match="x_t"):
        nft_loss(velocity, old, x_t[:, :1], sigma, clean, rho, 1.0)  # would broadcast
    with pytest.raises(ShapeError, match=r"rho: expected \[B\] with B=3, got \[3, 1\]"):
        nft_loss(velocity, old, x_t, sigma, clean, rho[:, None], 1.0)
    with pytest.raises(ShapeError, match=r"sigma: expected \[B\] with B=3, got \[2\]"):
        nft_loss(velocity, old, x_t, sigma[:2], clean, rho, 1.0)
    with pytest.raises(ValueError, match="beta: expected a number > 0"):
        nft_loss(velocity, old, x_t, sigma, clean, rho, 0.0)
    with pytest.raises(ValueError, match="clip: expected a number > 0"):
        optimality(torch.ones(2), 0.0)
