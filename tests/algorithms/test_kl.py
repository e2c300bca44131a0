import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal, kl_divergence

from mmrl.algorithms import gaussian_mean_distance, kl_k1, kl_k2, kl_k3, kl_weighted_k3, velocity_mse
from mmrl.checks import DtypeError, ShapeError

ESTIMATORS = [kl_k1, kl_k2, kl_k3]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Tokens --------------------------------------------------------------------------------------------------------------


def test_kl_estimators_by_hand():
    log_probs, reference, mask = torch.tensor([[0.5, 9.0]]), torch.tensor([[-0.5, 1.0]]), torch.tensor([[True, False]])
    assert kl_k1(log_probs, reference, mask).tolist() == [[1, 0]]
    assert kl_k2(log_probs, reference, mask).tolist() == [[0.5, 0]]
    torch.testing.assert_close(kl_k3(log_probs, reference, mask), torch.tensor([[0.36787944, 0.0]]))  # 1/e - 1 + 1


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_gradient_against_finite_differences(estimator):
    mask = torch.tensor([[True, False, True], [True, True, False]])
    reference = random(2, 3, seed=1)
    assert torch.autograd.gradcheck(lambda x: estimator(x, reference, mask), (random(2, 3).requires_grad_(),))


@given(st.floats(-30, 30), st.floats(-30, 30))
def test_kl_k2_and_k3_are_zero_only_at_the_reference(one, other):
    p, q, mask = torch.tensor([[one]]).double(), torch.tensor([[other]]).double(), torch.ones(1, 1).bool()
    assert kl_k2(p, q, mask).item() >= 0 and kl_k3(p, q, mask).item() >= 0
    assert all(estimator(p, p, mask).item() == 0 for estimator in ESTIMATORS)
    torch.testing.assert_close(kl_k1(p, q, mask), -kl_k1(q, p, mask))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_kl_ignores_padding_and_detaches_the_reference(estimator):
    mask = torch.tensor([[True, False, False]])
    log_probs = torch.tensor([[-1.0, torch.nan, 1e4]], requires_grad=True)
    reference = torch.tensor([[-2.0, torch.inf, -1e4]], requires_grad=True)
    estimator(log_probs, reference, mask).sum().backward()
    assert log_probs.grad[0, 0] != 0 and log_probs.grad[0, 1:].tolist() == [0, 0] and reference.grad is None


def test_kl_values_and_gradients_in_closed_form():
    """Gaussians of unlike spread: KL(p || q) and KL(q || p) have unlike values and unlike gradients."""
    n, mean = 400_000, 0.4
    parameter = torch.full((n, 1), mean, dtype=torch.float64, requires_grad=True)  # one copy a draw
    p, q = Normal(parameter, 0.8), Normal(torch.zeros(()).double(), 1.0)
    draws = (mean + 0.8 * random(n, 1)).detach()
    scalar = torch.tensor(mean, dtype=torch.float64, requires_grad=True)
    reverse = kl_divergence(Normal(scalar, 0.8), Normal(0.0, 1.0))
    forward = kl_divergence(Normal(torch.tensor(0.0, dtype=torch.float64), 1.0), Normal(scalar, 0.8))
    reverse_gradient, forward_gradient = (torch.autograd.grad(kl, scalar)[0].item() for kl in (reverse, forward))
    assert abs(reverse_gradient - forward_gradient) > 0.2

    def check(estimator, value, gradient):
        parameter.grad = None
        terms = estimator(p.log_prob(draws), q.log_prob(draws), torch.ones(n, 1, dtype=torch.bool))
        terms.sum().backward(retain_graph=True)
        for got, expected in ((terms.detach(), value), (parameter.grad, gradient)):
            if expected is not None:
                assert abs(got.mean().item() - expected) < 4 * got.std().item() / n**0.5
                assert got.std().item() / n**0.5 < 0.01  # twenty times less than what tells the two gradients apart

    check(kl_k1, reverse.item(), 0.0)
    check(kl_k2, None, reverse_gradient)  # k2's value is biased
    check(kl_k3, reverse.item(), forward_gradient)
    check(lambda p, q, mask: kl_weighted_k3(p, p.detach(), q, mask), reverse.item(), reverse_gradient)


def test_weighted_kl_is_unbiased_for_samples_of_an_older_policy():
    n = 400_000
    parameter = torch.full((n, 1), 0.4, dtype=torch.float64, requires_grad=True)  # one copy a draw
    p, older, q = Normal(parameter, 0.8), Normal(torch.tensor(0.2).double(), 0.9), Normal(torch.zeros(()).double(), 1.0)
    draws, mask = 0.2 + 0.9 * random(n, 1), torch.ones(n, 1, dtype=torch.bool)
    scalar = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    truth = kl_divergence(Normal(scalar, 0.8), Normal(0.0, 1.0))
    (gradient,) = torch.autograd.grad(truth, scalar)
    terms = kl_weighted_k3(p.log_prob(draws), older.log_prob(draws), q.log_prob(draws), mask)
    terms.sum().backward()
    for got, expected in ((terms.detach(), truth.item()), (parameter.grad, gradient.item())):
        assert abs(got.mean().item() - expected) < 4 * got.std().item() / n**0.5
    plain = kl_k3(p.log_prob(draws), q.log_prob(draws), mask).detach()  # the control: biased on those draws
    assert abs(plain.mean().item() - truth.item()) > 20 * plain.std().item() / n**0.5


def test_weighted_kl_by_hand_and_against_finite_differences():
    one, mask = torch.tensor([[0.5, 9.0]]), torch.tensor([[True, False]])
    old, reference = torch.tensor([[0.0, 1.0]]), torch.tensor([[-0.5, torch.nan]])
    expected = torch.tensor([[0.36787944 * 1.6487213, 0.0]])  # (1/e - 1 + 1) times e^0.5
    torch.testing.assert_close(kl_weighted_k3(one, old, reference, mask), expected)
    whole = torch.ones(2, 3, dtype=torch.bool)
    inputs = (random(2, 3).requires_grad_(), random(2, 3, seed=1), random(2, 3, seed=2), whole)
    assert torch.autograd.gradcheck(kl_weighted_k3, inputs)


# Flows ---------------------------------------------------------------------------------------------------------------


def test_gaussian_mean_distance_is_the_divergence_per_dimension():
    mean, reference, std = random(3, 2, 4, 4), random(3, 2, 4, 4, seed=1), torch.tensor([0.1, 1.0, 3.0]).double()
    spread = std[:, None, None, None]
    truth = kl_divergence(Normal(mean, spread), Normal(reference, spread)).mean((1, 2, 3))
    torch.testing.assert_close(gaussian_mean_distance(mean, reference, std), truth)
    assert not torch.allclose(gaussian_mean_distance(mean, reference, std.roll(1)), truth, rtol=0.1)


def test_velocity_mse_by_hand():
    assert velocity_mse(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [3.0, 0.0]])).tolist() == [
        2,
        4.5,
    ]


def test_gaussian_mean_distance_gradients_against_finite_differences():
    mean, reference, std = random(3, 2, 2).requires_grad_(), random(3, 2, 2, seed=1), torch.tensor([0.5, 1, 2]).double()
    assert torch.autograd.gradcheck(lambda m: gaussian_mean_distance(m, reference, std), (mean,))
    assert torch.autograd.gradcheck(lambda m: velocity_mse(m, reference), (mean,))


def test_deterministic_rows_are_zero_with_finite_gradients():
    mean = torch.ones(2, 3, requires_grad=True)
    got = gaussian_mean_distance(mean, torch.zeros(2, 3), torch.tensor([0.0, 1.0]))
    got.sum().backward()
    assert got.tolist() == [0, 0.5]
    assert mean.grad[0].tolist() == [0, 0, 0] and (mean.grad[1] > 0).all()


@pytest.mark.parametrize("distance", [velocity_mse, lambda a, b: gaussian_mean_distance(a, b, torch.ones(2))])
def test_distances_are_computed_in_float32(distance):
    one, other = random(2, 4096).bfloat16(), random(2, 4096, seed=1).bfloat16()
    got, truth = distance(one, other), distance(one.double(), other.double())
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), truth, rtol=1e-5, atol=0)


@pytest.mark.parametrize("distance", [velocity_mse, lambda a, b: gaussian_mean_distance(a, b, torch.ones(2))])
def test_distances_detach_the_reference(distance):
    policy, reference = random(2, 4).requires_grad_(), random(2, 4, seed=1).requires_grad_()
    distance(policy, reference).sum().backward()
    assert (policy.grad != 0).all() and reference.grad is None


def test_kl_rejects_wrong_shapes():
    with pytest.raises(ShapeError, match="reference_velocity"):
        velocity_mse(torch.ones(2, 3), torch.ones(2, 1))  # would broadcast
    with pytest.raises(ShapeError, match=r"std: expected \[B\] with B=2, got \[2, 1\]"):
        gaussian_mean_distance(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 1))
    with pytest.raises(DtypeError, match="log_probs"):
        kl_k3(torch.ones(1, 1).half(), torch.ones(1, 1), torch.ones(1, 1).bool())
