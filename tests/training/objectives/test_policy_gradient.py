"""The policy gradient on tokens: presets, gradients that no cut changes, penalties, gauges, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from mmrl.config.algorithms.policy_gradient import (
    BNPOConfig,
    CISPOConfig,
    DAPOConfig,
    DrGRPOConfig,
    GDPOConfig,
    GRPOConfig,
    GSPOConfig,
    LUSPOConfig,
    PolicyGradientConfig,
    TOPRConfig,
    VESPOConfig,
)
from mmrl.errors import ConfigError
from mmrl.policy import Capability
from mmrl.rollout_request import RowStart
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.policy_gradient import PolicyGradient, resolve_settings
from tests.training.objectives.scored_batches import (
    OF_STEPS,
    Counting,
    InParts,
    batch_of,
    cut,
    gradient_of,
    log_probs_of,
    moved,
)
from tests.training.token_policy import TokenPolicy

NAN = float("nan")
ADVANTAGES = [1.0, -0.5, 0.3, -0.8, 0.2, NAN, -1.0, 0.9]
OTHERS = (GDPOConfig, *OF_STEPS)  # other advantages, or not for tokens
PRESETS = [each for each in PolicyGradientConfig.__subclasses__() if each not in OTHERS]
ALL_ROWS = TokenPolicy.capabilities - {Capability.SELECT_ROWS}
TOKENS, STEPS = TokenPolicy.capabilities, frozenset({Capability.LOG_PROBS, Capability.MOMENTS})


def objective(policy, config):
    return PolicyGradient(policy, config, max_decisions=3)


def with_clip_room(config):
    """Clipped at a fifth, so that a policy that has moved is not past it everywhere."""
    return config(clip={"low": 0.2, "high": 0.3}) if config in (GSPOConfig, LUSPOConfig) else config()


# Gradients -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", PRESETS)
def test_gradients_are_independent_of_the_step_order(config):
    """Steps one by one, as in pipelines, or all at once: sequence-level ratios stay independent either way."""
    whole, parts = TokenPolicy(), InParts()
    found = []
    for policy in (whole, parts):
        batch = batch_of(policy, ADVANTAGES)
        settings = with_clip_room(config).model_copy(update={"kl": DAPOConfig(kl={"coef": 0.1}).kl})
        gradient, gauges = gradient_of(objective(moved(policy), settings), policy, [batch])
        found.append((gradient, gauges.values()))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert found[0][0].norm() > 0.01 and parts.visits >= 6
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-5)


@pytest.mark.parametrize("config", [each for each in PRESETS if each is not BNPOConfig])
def test_gradients_are_independent_of_micro_batches(config):
    """Rows of unlike length: a mean over tokens must be one over all tokens of the update."""
    policy = TokenPolicy(length=5)
    batch = batch_of(policy, ADVANTAGES)
    lengths = batch.rollout.mask.sum(1)
    assert lengths.unique().numel() > 2
    trained = objective(moved(policy), with_clip_room(config))
    whole, _ = gradient_of(trained, policy, [batch])
    assert whole.norm() > 0.01
    for at in ([3], [1, 2, 6], [5]):
        accumulated, _ = gradient_of(trained, policy, cut(batch, *at))
        torch.testing.assert_close(accumulated, whole)


def test_micro_batch_means_would_depend_on_micro_batches():
    policy = TokenPolicy(length=5)
    batch = batch_of(policy, ADVANTAGES)
    trained = objective(moved(policy), GRPOConfig(aggregate="micro_batch"))
    whole, cut_up = (gradient_of(trained, policy, batches)[0] for batches in ([batch], cut(batch, 1, 3)))
    assert (whole - cut_up).norm() > 0.01 * whole.norm()


def test_unscored_rows_have_no_gradient():
    policy = TokenPolicy()
    batch = batch_of(policy, ADVANTAGES)
    trained = objective(moved(policy), GRPOConfig(kl={"coef": 0.2}))
    with_it, _ = gradient_of(trained, policy, [batch])
    batch.rollout.log_probs[5] = 17.0
    again, _ = gradient_of(trained, policy, [batch])
    torch.testing.assert_close(with_it, again)
    amounts = {"sequence": 7, "token": batch.rollout.mask[batch.scored].sum().item(), "micro_batch": 1}
    for how, amount in amounts.items():
        assert objective(policy, GRPOConfig(aggregate=how)).loss_normalizer(batch) == amount


def test_a_penalty_on_some_turns_leaves_the_others_alone():
    """The first two tokens are turn 0: a penalty on it moves their logits as one on all turns does, and no others."""
    policy = TokenPolicy(length=5)
    batch = batch_of(policy, ADVANTAGES)
    batch.rollout.channel[:, 2:] = 1
    moved(policy)
    plain, all_turns, first = (
        gradient_of(objective(policy, GRPOConfig(kl=kl)), policy, [batch])
        for kl in ({}, {"coef": 0.2}, {"coef": 0.2, "turns": [0]})
    )
    torch.testing.assert_close(first[0][:, :2], all_turns[0][:, :2])
    torch.testing.assert_close(first[0][:, 2:], plain[0][:, 2:])
    assert (first[0][:, :2] - plain[0][:, :2]).norm() > 1e-3
    assert first[1].values()["kl"] != pytest.approx(all_turns[1].values()["kl"], rel=1e-3)


def test_gradient_is_that_of_the_expected_advantage():
    """On policy, by hand: for logits, -A (one-hot - probabilities) at each token that was written."""
    policy = TokenPolicy(prompts=1)
    batch = batch_of(policy, [2.0, -1.0, 0.5, 0.0])
    got, _ = gradient_of(objective(policy, DrGRPOConfig(length=3)), policy, [batch])
    expected = torch.zeros_like(policy.logits)
    probabilities = policy.logits.detach().softmax(-1)
    for row, advantage in enumerate(batch.advantages.tolist()):
        for column, token in enumerate(batch.rollout.token_ids[row]):
            expected[0, column] -= advantage * (torch.eye(4)[token] - probabilities[0, column]) / 3 / 4
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("couples", [False, True])
def test_rows_without_an_advantage_are_not_computed(couples):
    config = GSPOConfig(clip={"low": 0.2}) if couples else GRPOConfig()
    sparse = [1.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0]
    cutting, whole = Counting(), Counting(ALL_ROWS)
    gradients = []
    for policy in (cutting, whole):
        batch = batch_of(policy, sparse)
        gradients.append(gradient_of(objective(moved(policy), config), policy, [batch])[0])
    torch.testing.assert_close(*gradients)
    assert cutting.replayed == [2] and whole.replayed == [8]
    counted = Counting()  # a penalty is on all rows
    gradient_of(objective(counted, GRPOConfig(kl={"coef": 0.1})), counted, [batch_of(counted, sparse)])
    assert counted.replayed == [8, 8]
    idle = Counting()
    gradient, gauges = gradient_of(objective(idle, GRPOConfig()), idle, [batch_of(idle, [0.0] * 8)])
    assert idle.replayed == [] and not gradient.any() and gauges.values() == {}


@pytest.mark.parametrize("config", [GRPOConfig(kl={"coef": 0.1}), GSPOConfig(clip={"low": 0.2}), DAPOConfig()])
def test_duplicate_answers_are_computed_once(config):
    """Two prompts of eight answers; of answers with two tokens out of two, many are the same."""
    advantages = [1.0, 1.0, 1.0, -1.0, -1.0, 0.5, NAN, 1.0] * 2
    merging, whole = (
        Counting(capabilities, length=2, vocabulary=2) for capabilities in (TokenPolicy.capabilities, ALL_ROWS)
    )
    found = []
    for policy in (merging, whole):
        batch = batch_of(policy, advantages, n=8)
        found.append(gradient_of(objective(moved(policy), config), policy, [batch]))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert found[0][1].values() == pytest.approx(found[1][1].values(), rel=1e-5)
    assert found[0][0].norm() > 0.01 and max(merging.replayed) < max(whole.replayed) - 2


@pytest.mark.parametrize("apart", ["starts", "versions"])
def test_equal_answers_of_a_group_after_other_prompts_or_by_other_weights_are_not_merged(apart):
    """The two prompts of a batch become the two phrasings, or the two behaviour policies, of one group."""
    found = []
    for policy in (Counting(length=1, vocabulary=2), Counting(ALL_ROWS, length=1, vocabulary=2)):
        batch = batch_of(policy, [1.0] * 16, n=8)
        prompt = batch.rollout.recording.prompts
        fields = {
            "starts": [RowStart("rephrased") if each else None for each in prompt.tolist()],
            "versions": prompt[:, None].expand_as(batch.rollout.mask),
        }
        one_group = torch.zeros_like(batch.rollout.group_index)
        rollout = replace(batch.rollout, group_index=one_group, **{apart: fields[apart]})
        found.append(gradient_of(objective(moved(policy), GRPOConfig()), policy, [replace(batch, rollout=rollout)])[0])
    torch.testing.assert_close(found[0], found[1])


# Penalties -----------------------------------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["k2", "weighted_k3", "k3"])
def test_token_penalties_have_the_gradients_of_divergences(kind):
    """Averaged over many answers of one token: of KL(policy || reference), or for k3 of KL(reference || policy)."""
    policy = moved(TokenPolicy(prompts=1, length=1))
    policy.logits.data = torch.tensor([[[2.0, 0.0, -1.0, 0.0]]])
    batch = batch_of(policy, [0.0] * 6_000, n=6_000)
    got, gauges = gradient_of(objective(policy, GRPOConfig(kl={"kind": kind, "coef": 1.0})), policy, [batch])
    logits = policy.logits.detach()[0, 0].clone().requires_grad_()
    now, reference = Categorical(logits=logits), Categorical(logits=policy._start[0, 0])
    reverse, forward = kl_divergence(now, reference), kl_divergence(reference, now)
    expected = {kl: torch.autograd.grad(kl, logits, retain_graph=True)[0] for kl in (reverse, forward)}
    right, wrong = (forward, reverse) if kind == "k3" else (reverse, forward)
    assert (got[0, 0] - expected[right]).abs().max() < 0.03 < (got[0, 0] - expected[wrong]).abs().max()
    if kind != "k2":
        assert gauges.values()["kl"] == pytest.approx(reverse.item(), rel=0.1)


@pytest.mark.parametrize("config", [GRPOConfig, GSPOConfig])
def test_penalty_gradient_is_zero_at_the_reference_only(config):
    policy = TokenPolicy()
    trained = objective(policy, config(kl={"coef": 0.5}))
    still, _ = gradient_of(trained, policy, [batch_of(policy, [0.0] * 8)])
    assert still.abs().max() < 1e-6
    gone, _ = gradient_of(trained, moved(policy), [batch_of(policy, [0.0] * 8)])
    assert gone.norm() > 0.01


# Gauges --------------------------------------------------------------------------------------------------------------


def test_gauges_say_what_happened():
    policy = TokenPolicy()
    fresh = batch_of(policy, ADVANTAGES)
    trained = objective(policy, GRPOConfig(kl={"coef": 0.1}))
    _, gauges = gradient_of(trained, policy, [fresh])
    seen = gauges.values()
    assert seen["log_prob_change_max"] == 0 and seen["ratio_mean"] == seen["ratio_max"] == 1
    assert seen["clip_fraction"] == 0 and seen["kl"] == pytest.approx(0, abs=1e-6)
    mask = fresh.rollout.mask & fresh.scored[:, None]
    entropy = Categorical(logits=policy.logits.detach()[fresh.rollout.recording.prompts]).entropy()[mask].mean()
    assert seen["entropy"] == pytest.approx(entropy.item())
    weights = mask / mask.sum(1, keepdim=True).clamp(min=1) / 7
    assert seen["loss"] == pytest.approx(-(weights * fresh.step_advantages).sum().item(), abs=1e-6)

    _, gauges = gradient_of(trained, moved(policy, by=1.0), [fresh])
    later = gauges.values()
    assert later["ratio_max"] > 1.2 and later["clip_fraction"] > 0.1 and later["kl"] > 0.01
    assert "log_prob_change_max" not in later, "a rollout of an older policy says nothing about the replay"


def test_replay_gap_is_detected():
    policy = TokenPolicy()
    batch = batch_of(policy, ADVANTAGES)
    policy.logits.data[0, 0, 0] += 0.01  # no update, so the version is the same
    _, gauges = gradient_of(objective(policy, GRPOConfig()), policy, [batch])
    assert gauges.values()["log_prob_change_max"] > 1e-3


# Settings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("capabilities", "clip"), [(TOKENS, 0.2), (STEPS, 1e-4)])
def test_clip_range_defaults_by_policy_kind(capabilities, clip):
    """Just inside the range the ratio learns, just outside it does not."""
    for config, low, high in ((GRPOConfig(), clip, clip), (GRPOConfig(clip={"high": 3 * clip}), clip, 3 * clip)):
        surrogate = resolve_settings(config, capabilities).surrogate
        for excess, advantage, learns in (
            (high * 0.99, 1.0, True),
            (high * 1.01, 1.0, False),
            (-low * 0.99, -1.0, True),
            (-low * 1.01, -1.0, False),
        ):
            log_probs = torch.tensor([[excess]], dtype=torch.float64).log1p().requires_grad_()
            zero, gain = torch.zeros(1, 1, dtype=torch.float64), torch.tensor([[advantage]]).double()
            surrogate(log_probs, zero, gain, torch.ones(1, 1).bool()).loss.sum().backward()
            assert bool(log_probs.grad.any()) is learns


def test_every_setting_changes_the_loss():
    policy = TokenPolicy()
    advantages = torch.randn(64, generator=torch.Generator().manual_seed(0)).tolist()
    batch = batch_of(policy, advantages, n=32)
    moved(policy, by=0.6)
    changes = {
        GRPOConfig: [
            {"clip": {"low": 0.3}},
            {"clip": {"high": 0.4}},
            {"clip": {"dual": 1.5}},
            {"importance": "sequence"},
            {"importance": "trajectory"},
            {"aggregate": "token"},
            {"aggregate": "constant"},
            {"aggregate": "constant", "length": 2},
            {"surrogate": "cispo"},
            {"surrogate": "topr"},
            {"surrogate": "sapo"},
            {"surrogate": "sapo", "temperature": {"positive": 2.0}},
            {"surrogate": "sapo", "temperature": {"negative": 2.0}},
            {"surrogate": "vespo"},
            {"surrogate": "vespo", "gamma": {"k_positive": 1.0}},
            {"surrogate": "vespo", "gamma": {"lambda_positive": 1.0}},
            {"surrogate": "vespo", "gamma": {"k_negative": 1.0}},
            {"surrogate": "vespo", "gamma": {"lambda_negative": 1.0}},
            {"kl": {"coef": 0.1}},
            {"kl": {"coef": 0.2}},
            {"kl": {"coef": 0.1, "kind": "k2"}},
            {"kl": {"coef": 0.1, "kind": "weighted_k3"}},
        ],
        CISPOConfig: [{}, {"clip": {"high": 0.1}}, {"clip": {"low": 0.1}}],
    }
    found = [gradient_of(objective(policy, GRPOConfig()), policy, [batch])[0]]
    for config, each in changes.items():
        found += [gradient_of(objective(policy, config(**change)), policy, [batch])[0] for change in each]
    for number, one in enumerate(found):
        assert all((one - other).norm() > 1e-5 for other in found[:number]), number


def test_unsupported_settings_raise_by_key():
    with pytest.raises(ConfigError, match=r"algorithm\.kl\.kind: mean_distance is not for tokens: choose k3, weighted"):
        resolve_settings(GRPOConfig(kl={"kind": "mean_distance", "coef": 0.1}), TOKENS)
    with pytest.raises(ConfigError, match=r"k3 is not for denoising steps: choose mean_distance or velocity_mse"):
        resolve_settings(GRPOConfig(kl={"kind": "k3", "coef": 0.1}), STEPS)
    with pytest.raises(ConfigError, match=r"algorithm\.length: aggregate constant divides by it"):
        PolicyGradient(TokenPolicy(), DrGRPOConfig())
    resolve_settings(GRPOConfig(kl={"kind": "mean_distance"}), TOKENS)  # switched off
    assert (
        resolve_settings(LUSPOConfig(), TOKENS, max_decisions=7).constant == 1
        and resolve_settings(TOPRConfig(), TOKENS, max_decisions=7).constant == 7
    )
    assert resolve_settings(GRPOConfig(), TOKENS, max_decisions=7).constant is None
    assert resolve_settings(VESPOConfig(), TOKENS).couples and not resolve_settings(DAPOConfig(), TOKENS).couples


def test_log_probs_may_come_from_another_engine():
    """Rows of older versions and of other writers keep the log-probs they came with: the ratio is against those."""
    policy = TokenPolicy()
    batch = batch_of(policy, [1.0, -1.0, 1.0, -1.0])
    batch.rollout.log_probs -= 0.1
    batch.rollout.policy_version = -1
    _, gauges = gradient_of(objective(policy, GRPOConfig()), policy, [batch])
    assert gauges.values()["ratio_mean"] == pytest.approx(torch.tensor(0.1).exp().item())
    assert log_probs_of(policy, batch.rollout).requires_grad
    assert MetricAccumulator().values() == {}
