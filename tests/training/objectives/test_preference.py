"""Learning from pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmrl.config.algorithms.preference import DPOConfig, MPOConfig
from mmrl.rollout_request import TargetText
from mmrl.training.experience import MicroBatch
from mmrl.training.named_model import NamedModel
from mmrl.training.objectives.base import MetricAccumulator, check_compatible
from mmrl.training.objectives.preference_pairs import PreferenceLearning
from tests.training.gaussian_policy import GaussianPolicy
from tests.training.objectives.scored_batches import InParts, cut, gradient_of, log_probs_of, moved
from tests.training.token_policy import TokenPolicy, questions

PAIRS = [("1 2", "3"), ("2", "1 1 1"), ("3 1", "2 2"), ("1", "")]
CONFIGS = [DPOConfig(), DPOConfig(label_smoothing=0.1), DPOConfig(loss="ipo"), DPOConfig(loss="bco"), MPOConfig()]
each_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.name} {getattr(c, 'loss', '')}")


def paired(policy, pairs=PAIRS):
    texts = [
        (sample, text, n)
        for n, (sample, pair) in enumerate(zip(questions(len(pairs)), pairs, strict=True))
        for text in pair
    ]
    rollout = policy.score_targets([TargetText(*each) for each in texts])
    ones = torch.ones(len(texts))
    return MicroBatch(rollout, ones, ones.bool(), ones[:, None].where(rollout.mask, 0.0))


@each_config
def test_gradients_are_independent_of_step_order_and_micro_batches(config):
    found = []
    for policy, at in ((TokenPolicy(), []), (TokenPolicy(), [2, 6]), (InParts(), []), (InParts(), [4])):
        batches = cut(paired(policy), *at)
        found.append(gradient_of(PreferenceLearning(moved(policy), config), policy, batches))
    for gradient, gauges in found[1:]:
        torch.testing.assert_close(gradient, found[0][0])
        assert gauges.values() == pytest.approx(found[0][1].values(), rel=1e-5)
    assert found[0][0].norm() > 0.01


def test_dpo_gradient_by_hand():
    """-beta sigmoid(-margin) times the gradient of the margin, for each pair."""
    policy = TokenPolicy()
    batch = paired(policy)
    moved(policy)
    got, gauges = gradient_of(PreferenceLearning(policy, DPOConfig(beta=0.7)), policy, [batch])
    now = log_probs_of(policy, batch.rollout).where(batch.rollout.mask, 0.0).sum(1)
    with torch.no_grad(), policy.reference():
        then = log_probs_of(policy, batch.rollout).where(batch.rollout.mask, 0.0).sum(1)
    reward = 0.7 * (now - then)
    margin = (reward[0::2] - reward[1::2]).detach()
    policy.logits.grad = None
    (-torch.sigmoid(-margin) * 0.7 * (now[0::2] - now[1::2])).mean().backward()
    torch.testing.assert_close(got, policy.logits.grad)
    seen = gauges.values()
    assert seen["reward_chosen"] - seen["reward_rejected"] == pytest.approx(margin.mean().item(), abs=1e-6)
    assert seen["preference_accuracy"] == (margin > 0).float().mean().item()


def test_rewards_are_relative_to_the_model_that_is_named():
    """-beta sigmoid(-margin) times the gradient of the margin, whose rewards are relative to another model."""
    policy, other = TokenPolicy(), TokenPolicy(spread=2.0, seed=5)
    batch = paired(policy)
    moved(policy)
    got, _ = gradient_of(PreferenceLearning(policy, DPOConfig(beta=0.7), NamedModel(other)), policy, [batch])
    mask = batch.rollout.mask
    now = log_probs_of(policy, batch.rollout).where(mask, 0.0).sum(1)
    tokens, rows = batch.rollout.recording.tokens, [int(each.id[1:]) for each in batch.rollout.samples]
    table = other.logits.detach().double().log_softmax(-1)[rows]
    then = table.gather(-1, tokens[..., None])[..., 0].where(mask, 0.0).sum(1)  # by the table, in float64
    reward = 0.7 * (now.double() - then)
    margin = (reward[0::2] - reward[1::2]).detach()
    policy.logits.grad = None
    (-torch.sigmoid(-margin) * 0.7 * (now[0::2] - now[1::2])).mean().backward()
    torch.testing.assert_close(got, policy.logits.grad)
    own, _ = gradient_of(PreferenceLearning(policy, DPOConfig(beta=0.7)), policy, [batch])
    assert (own - got).abs().max() > 1e-3


def test_an_autoregressive_reward_is_the_log_probability_itself():
    """-log sigmoid(beta (log p(chosen) - log p(rejected))), without the reference, which makes another gradient."""
    policy = TokenPolicy()
    batch = paired(policy)
    moved(policy)
    free = DPOConfig(beta=0.7, reference_free=True)
    got, gauges = gradient_of(PreferenceLearning(policy, free), policy, [batch])
    now = log_probs_of(policy, batch.rollout).where(batch.rollout.mask, 0.0).sum(1)
    policy.logits.grad = None
    margin = 0.7 * (now[0::2] - now[1::2])
    (-torch.log(1 / (1 + torch.exp(-margin)))).mean().backward()
    torch.testing.assert_close(got, policy.logits.grad)
    assert gauges.values()["preference_accuracy"] == (margin > 0).float().mean().item()
    relative, _ = gradient_of(PreferenceLearning(policy, DPOConfig(beta=0.7)), policy, [batch])
    assert (relative - got).norm() > 1e-3


def test_incomplete_pairs_have_no_gradient():
    policy = TokenPolicy()
    batch = paired(policy)
    learner = PreferenceLearning(moved(policy), DPOConfig())
    scored = batch.scored.clone()
    scored[3] = False
    without, _ = gradient_of(learner, policy, [replace(batch, scored=scored)])
    first, _, *_ = cut(batch, 2, 4)
    rest = cut(batch, 4)[1]
    alone, _ = gradient_of(learner, policy, [first, rest])
    torch.testing.assert_close(without, alone)
    assert learner.loss_normalizer(replace(batch, scored=scored)) == 3
    assert (without - gradient_of(learner, policy, [batch])[0]).norm() > 1e-3
    nothing = replace(batch, scored=torch.zeros(8, dtype=torch.bool))
    learner.backward(nothing, 0.0, 0, MetricAccumulator())
    assert learner.loss_normalizer(nothing) == 0


def test_rows_that_form_no_pairs_raise():
    policy = TokenPolicy()
    batch = paired(policy)
    learner = PreferenceLearning(policy, DPOConfig())
    for rows in (cut(batch, 1)[1], cut(batch, 3)[0]):
        with pytest.raises(ValueError, match="takes rows in pairs of one group, chosen then rejected"):
            learner.loss_normalizer(rows)
    with pytest.raises(ValueError, match="PreferenceLearning needs teacher_force, which GaussianPolicy does not have"):
        check_compatible(PreferenceLearning, GaussianPolicy)


@each_config
def test_training_raises_chosen_above_rejected(config):
    policy = TokenPolicy()
    batch, learner = paired(policy), PreferenceLearning(policy, config)
    optimizer = torch.optim.Adam([policy.logits], lr=0.05)
    margins = []
    for update in range(40):
        gradient_of(learner, policy, [batch])
        optimizer.step()
        learner.finish_iteration(update)
        log_probs = log_probs_of(policy, batch.rollout).detach().where(batch.rollout.mask, 0.0).sum(1)
        margins.append((log_probs[0::2] - log_probs[1::2]).mean().item())
    assert margins[-1] > margins[0] + 1.0


def test_every_mpo_term_is_reported_and_has_a_gradient():
    policy = TokenPolicy()
    batch = paired(policy)
    moved(policy)
    found = []
    for part in ("preference", "quality", "generation"):
        alone = dict.fromkeys(("preference", "quality", "generation"), 0.0) | {part: 1.0}
        gradient, gauges = gradient_of(PreferenceLearning(policy, MPOConfig(**alone)), policy, [batch])
        seen = gauges.values()
        assert gradient.norm() > 1e-3 and seen["loss"] == pytest.approx(seen[f"loss_{part}"], rel=1e-5)
        found.append(gradient)
    whole, _ = gradient_of(PreferenceLearning(policy, MPOConfig()), policy, [batch])
    torch.testing.assert_close(whole, 0.8 * found[0] + 0.2 * found[1] + found[2])


def test_the_usual_reward_follows_from_iteration_to_iteration_and_is_resumed():
    policy = TokenPolicy()
    batch = paired(policy)
    moved(policy)
    learner = PreferenceLearning(policy, MPOConfig(beta=1.0))
    first, gauges = gradient_of(learner, policy, [batch])
    again, _ = gradient_of(learner, policy, cut(batch, 4))
    torch.testing.assert_close(first, again)  # nothing changes within an iteration
    seen = gauges.values()
    learner.finish_iteration(1)
    value, count = learner.state_dict()["usual_reward"].tolist()
    assert value == pytest.approx((seen["reward_chosen"] + seen["reward_rejected"]) / 2, abs=1e-6) and count == 16
    later, _ = gradient_of(learner, policy, [batch])
    assert (later - first).norm() > 1e-4
    resumed = PreferenceLearning(policy, MPOConfig(beta=1.0))
    resumed.load_state_dict(learner.state_dict())
    torch.testing.assert_close(gradient_of(resumed, policy, [batch])[0], later)
    learner.finish_iteration(2)
    resumed.finish_iteration(2)
    assert torch.equal(learner.state_dict()["usual_reward"], resumed.state_dict()["usual_reward"])
