"""Algorithms on noised samples, on a flow whose velocity is known: gradients by hand, and where training ends."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from mmrl.algorithms import matching_error, weighted_error
from mmrl.config.algorithms.answer_weights import BestOfConfig, ExponentialConfig
from mmrl.config.algorithms.base import KLConfig
from mmrl.config.algorithms.forward_process import AWMConfig, DiffusionNFTConfig, FlowRWRConfig
from mmrl.config.algorithms.preference import DPOConfig, OnlineDPOConfig
from mmrl.config.algorithms.supervised import RejectionSFTConfig, SFTConfig
from mmrl.data.prompts import PromptSampler
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rollout_request import RolloutRequest
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.velocity_regression import VelocityRegression
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator
from mmrl.training.rollouts.online import OnlineRollouts
from mmrl.training.rollouts.row_selection import BestAndWorst, EveryPair, RowSelection, positive_advantage_rows
from mmrl.training.run.timers import Phases
from tests.training.conftest import TARGET, Nearness, samples
from tests.training.gaussian_flow import SPREAD, GaussianFlow

CONFIGS = {
    "nft": DiffusionNFTConfig(num_noise_levels=2, kl=KLConfig(kind="velocity_mse", coef=0.1)),
    "awm": AWMConfig(num_noise_levels=2, old_kl=0.1, kl=KLConfig(kind="velocity_mse", coef=0.1), weighting="ghuber"),
    "rwr": FlowRWRConfig(num_noise_levels=2, kl=KLConfig(kind="velocity_mse", coef=0.1)),
    "sft": SFTConfig(num_noise_levels=2),
    "dpo": DPOConfig(num_noise_levels=2, beta=0.5),
    "ipo": DPOConfig(num_noise_levels=2, loss="ipo", beta=0.5),
    "bco": DPOConfig(num_noise_levels=2, loss="bco", beta=0.5),
    "kto": DPOConfig(num_noise_levels=2, loss="kto", beta=0.5),
}
SIGNED = ("nft", "awm", "dpo", "ipo", "bco", "kto")  # the others take advantages >= 0


def velocity_batch(policy, advantages, group_size=4, seed=0):
    """Rows with these advantages; NaN: could not be scored."""
    requests = [
        RolloutRequest(sample, group_size, g) for g, sample in enumerate(samples(len(advantages) // group_size))
    ]
    rollout, worth = policy.rollout(requests, seed), torch.tensor(advantages)
    return MicroBatch(rollout, worth.nan_to_num(0.0), worth.isfinite(), worth.new_zeros(len(worth), 0))


def gradient(objective, policy, batch, seed=3):
    policy.mean.grad = None
    gauges = MetricAccumulator()
    objective.backward(batch, 1.0, seed, gauges)
    return 0.0 if policy.mean.grad is None else policy.mean.grad.item(), gauges.values()


def apart(policy, by=0.3):
    """Away from what it was: the reference, and the old policy of an objective that exists already."""
    policy.mean.data += by
    return policy


def moved_objective(name, dtype=torch.float32):
    policy = GaussianFlow()
    policy.mean.data = policy.mean.data.to(dtype)
    objective = VelocityRegression(policy, CONFIGS[name])
    return apart(policy), objective


@pytest.mark.parametrize("name", CONFIGS)
def test_velocity_losses_have_gradients_for_scored_rows_only(name):
    policy, objective = moved_objective(name)
    worth = [1.0, 0.2, -0.4, -0.8] if name in SIGNED else [1.0, 0.2, 0.4, 2.0]
    found, gauges = gradient(objective, policy, velocity_batch(policy, worth))
    assert abs(found) > 1e-4 and math.isfinite(gauges["loss"])
    batch = velocity_batch(policy, [*worth[:3], math.nan])
    least = [
        gradient(objective, policy, replace(batch, advantages=batch.advantages + wild))[0]
        for wild in (torch.tensor([0.0, 0.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 0.0, 7.0]))
    ]
    assert least[0] == least[1] != pytest.approx(found)
    assert gradient(objective, policy, velocity_batch(policy, [math.nan] * 4))[0] == 0.0


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "nft"])  # whose denominators are detached
def test_velocity_gradient_equals_finite_differences(name):
    """With the old policy, the reference and the noise held."""
    policy, objective = moved_objective(name, torch.float64)
    batch = velocity_batch(policy, [1.0, 0.2, -0.4, -0.8] if name in SIGNED else [1.0, 0.2, 0.4, 2.0])
    exact, _ = gradient(objective, policy, batch)
    start, step, ends = policy.mean.data.clone(), 1e-3, []
    for sign in (1, -1):
        policy.mean.data = start + sign * step
        ends.append(gradient(objective, policy, batch)[1]["loss"])
    assert exact == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-2, abs=1e-4)


def test_penalties_have_gradients_for_the_policy_only():
    """Without an advantage only the distances are left, and they pull back to where the policy was."""
    for penalty in ({"old_kl": 1.0}, {"kl": KLConfig(kind="velocity_mse", coef=1.0)}):
        policy = GaussianFlow()
        objective = VelocityRegression(apart(policy, 0.0), AWMConfig(num_noise_levels=2, **penalty))
        assert gradient(objective, policy, velocity_batch(policy, [0.0] * 4))[0] == 0.0
        assert gradient(objective, apart(policy), velocity_batch(policy, [0.0] * 4))[0] > 0.0


def test_awm_on_policy_is_the_policy_gradient_of_the_error():
    """Ratio 1: the gradient is that of advantage x error, for any clip; past the clip a good sample is left."""
    policy = GaussianFlow()
    objective = VelocityRegression(policy, AWMConfig(num_noise_levels=1))
    batch = velocity_batch(policy, [2.0, 1.0, -1.0, -2.0])
    found, gauges = gradient(objective, policy, batch)
    ((sigma, noise),) = objective.noise_levels(batch.rollout.clean, 3)
    noisy = (1 - sigma) * batch.rollout.clean + sigma * noise
    error = matching_error(policy.predict_velocity(batch.rollout, noisy, sigma), batch.rollout.clean, noise)
    policy.mean.grad = None
    (batch.advantages / 5.0 * error).mean().backward()
    assert found == pytest.approx(policy.mean.grad.item(), rel=1e-5)
    assert gauges["ratio_max"] == 1.0 and gauges["old_distance"] == 0.0
    tight = VelocityRegression(policy, AWMConfig(num_noise_levels=1, clip={"low": 1e-6, "high": 1e-6}))
    _, gauges = gradient(tight, apart(policy), batch)
    assert 0 < gauges["clip_fraction"] < 1


def test_old_velocity_is_reused_for_unchanged_parameters():
    class Counting(GaussianFlow):
        requests = 0

        def predict_velocity(self, rollout, noisy, sigma):
            self.requests += 1
            return super().predict_velocity(rollout, noisy, sigma)

    policy = Counting()
    objective = VelocityRegression(policy, DiffusionNFTConfig(num_noise_levels=1))
    batch = velocity_batch(policy, [1.0, 0.2, -0.4, -0.8])
    saved, _ = gradient(objective, policy, batch)
    assert policy.requests == 1
    objective._old.is_live = lambda: False
    paid, _ = gradient(objective, policy, batch)
    assert policy.requests == 3 and saved == paid


def test_pairs_share_their_noise_and_groups_do_not():
    seen = []

    class Watching(GaussianFlow):
        def predict_velocity(self, rollout, noisy, sigma):
            seen.append((noisy - (1 - sigma) * rollout.clean) / sigma)
            return super().predict_velocity(rollout, noisy, sigma)

    policy = Watching()
    gradient(
        VelocityRegression(policy, DPOConfig(num_noise_levels=1)),
        policy,
        velocity_batch(policy, [1.0, -1.0, 1.0, -1.0], 2),
    )
    noise = seen[0][:, 0]
    torch.testing.assert_close(noise[0::2], noise[1::2])
    assert abs(noise[0] - noise[2]) > 1e-3


def test_every_pair_past_the_margin_counts():
    policy = GaussianFlow()
    batch = velocity_batch(policy, [1.0, 0.5, -1.0, 1.0, 0.0, 0.0], 3)
    assert VelocityRegression(policy, OnlineDPOConfig()).loss_normalizer(batch) == 3 + 2
    assert VelocityRegression(policy, OnlineDPOConfig(margin=0.6)).loss_normalizer(batch) == 2 + 2
    assert VelocityRegression(policy, DPOConfig()).loss_normalizer(velocity_batch(policy, [1.0, math.nan], 2)) == 0


def test_dpo_gradient_starts_at_half_weight_towards_the_chosen():
    """At the reference the log-ratios are 0: the gradient is beta / 4 that of the difference of errors."""
    policy = GaussianFlow()
    batch = velocity_batch(policy, [1.0, -1.0], 2)
    batch.rollout.clean[:] = torch.tensor([[1.0], [-1.0]])
    objective = VelocityRegression(policy, DPOConfig(num_noise_levels=1, beta=2.0, weighting="epsilon"))
    found, gauges = gradient(objective, policy, batch)
    ((sigma, noise),) = objective.noise_levels(batch.rollout.clean[:1], 3)
    noisy = (1 - sigma) * batch.rollout.clean + sigma * noise
    velocity = policy.predict_velocity(batch.rollout, noisy, sigma)
    w, low = weighted_error(matching_error(velocity, batch.rollout.clean, noise.expand(2, 1)), sigma, "epsilon")
    policy.mean.grad = None
    (2.0 / 4 * (w - low)).backward()
    assert found == pytest.approx(policy.mean.grad.item(), rel=1e-5) and found < 0
    assert gauges["loss"] == pytest.approx(math.log(2))


def test_running_reward_mean_is_updated_and_saved():
    policy, objective = moved_objective("kto")
    gradient(objective, policy, velocity_batch(policy, [1.0, -1.0, 0.5, -0.5]))
    objective.finish_iteration(1)
    saved = objective.state_dict()
    assert saved["usual_reward"][1] == 2 * 2 * 6  # rows of 6 pairs at 2 noise levels
    fresh = VelocityRegression(policy, CONFIGS["kto"])
    fresh.load_state_dict(saved)
    batch = velocity_batch(policy, [1.0, -1.0, 0.5, -0.5], seed=9)
    assert gradient(fresh, policy, batch)[0] == gradient(objective, policy, batch)[0]


def test_imitation_rejects_negative_advantages_and_missing_latents():
    policy = GaussianFlow()
    objective = VelocityRegression(policy, SFTConfig())
    with pytest.raises(ValueError, match="imitation takes advantages >= 0"):
        objective.loss_normalizer(velocity_batch(policy, [1.0, -1.0, 0.0, 0.0]))
    batch = velocity_batch(policy, [1.0, 1.0, 0.0, 0.0])
    with pytest.raises(ValueError, match="keep their last latent"):
        objective.backward(replace(batch, rollout=replace(batch.rollout, clean=None)), 1.0, 0, MetricAccumulator())


# Where training ends --------------------------------------------------------------------------------------------------


class Linear(Nearness):
    """The number itself: exp(r / T) of it shifts a Gaussian by SPREAD^2 / T."""

    name, range = "linear", (-100.0, 100.0)

    def score_one(self, item):
        return float(item.text)


def run(config, reward, choose=None, advantage=None, iterations=25, lr=0.04, frozen=False):
    """Train the mean; `frozen` draws from where it began, so that the fixed point of a regression is seen."""
    policy = GaussianFlow()
    objective = VelocityRegression(policy, config)
    suite = RewardSuite([(reward, 1.0)], min_valid_share=0.5)
    sampling_weights = policy.reference if frozen else objective.sampling_weights
    source = OnlineRollouts(
        policy=policy,
        sampling_weights=sampling_weights,
        prompts=PromptSampler(samples(), 2, seed=0),
        suite=suite,
        advantage_estimator=AdvantageEstimator(advantage or config.advantage, suite.weights),
        group_size=32,
        micro_batch=64,
        seed=0,
    )
    if choose is not None:
        source = RowSelection(source, policy, choose, 64)
    optimizer = torch.optim.Adam(policy.parameters_to_train().values(), lr=lr)
    for step in range(iterations):
        optimizer.zero_grad()
        for number, batch in enumerate(source.collect(step, 0.0, Phases()).micro_batches):
            objective.backward(batch, 1.0, seed=100 * step + number, metrics=MetricAccumulator())
        optimizer.step()
        policy.version = step + 1
        objective.finish_iteration(step + 1)
    return policy.mean.item()


@pytest.mark.integration
def test_reward_weighting_of_present_answers_goes_beyond_the_tilted_distribution():
    """Each iteration tilts once more, where answers are not those of the reference."""
    config = FlowRWRConfig(advantage=ExponentialConfig(temperature=1.0, normalise=True))
    assert run(config, Linear(), iterations=50) > 1.5 * SPREAD**2


@pytest.mark.integration
@pytest.mark.parametrize("temperature", [0.5, 1.0])  # lower ones need more than 32 draws for their mean
def test_reward_weighting_converges_to_the_tilted_distribution(temperature):
    """N(0, SPREAD^2) times exp(x / T) is N(SPREAD^2 / T, SPREAD^2)."""
    advantage = ExponentialConfig(temperature=temperature, normalise=True)
    mean = run(FlowRWRConfig(advantage=advantage, samples_from="reference"), Linear(), iterations=50)
    assert mean == pytest.approx(SPREAD**2 / temperature, abs=0.12)


@pytest.mark.integration
def test_best_of_group_converges_to_the_expected_maximum():
    """The largest of 32 standard normal numbers is 2.07 on average."""
    config = RejectionSFTConfig(advantage=BestOfConfig(keep=1))
    mean = run(config, Linear(), choose=positive_advantage_rows, iterations=60, lr=0.05, frozen=True)
    assert mean == pytest.approx(2.07 * SPREAD, abs=0.15)


@pytest.mark.integration
def test_the_best_of_the_reference_stay_what_they_are_while_the_best_of_the_policy_run_away():
    """The reference's largest of 32 is 2.07 on average, however often its draws are learnt from."""
    means = {
        source: run(
            RejectionSFTConfig(advantage=BestOfConfig(keep=1), samples_from=source),
            Linear(),
            choose=positive_advantage_rows,
            iterations=60,
            lr=0.05,
        )
        for source in ("reference", "policy")
    }
    assert means["reference"] == pytest.approx(2.07 * SPREAD, abs=0.15)
    assert means["policy"] > 1.5 * means["reference"]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("config", "choose"),
    [
        (AWMConfig(), None),
        (OnlineDPOConfig(beta=2.0), BestAndWorst()),
        (OnlineDPOConfig(beta=0.1, loss="ipo"), BestAndWorst()),
        (OnlineDPOConfig(beta=2.0, loss="kto", pairing="all"), EveryPair()),
    ],
    ids=lambda each: getattr(each, "loss", None) or getattr(each, "name", ""),
)
def test_training_moves_the_flow_to_the_target(config, choose):
    assert run(config, Nearness(), choose) > 0.4 * TARGET
