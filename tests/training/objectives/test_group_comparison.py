"""P3O and PACS on token policies: gradients do not depend on how an update is cut, and policies learn."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmrl.config.algorithms.whole_groups import P3OConfig, PACSConfig
from mmrl.config.loading.load import parse_config
from mmrl.config.validation import validation_errors
from mmrl.rollout_request import RolloutRequest
from mmrl.training.objectives.group_comparison import OutcomePrediction, PairwisePolicyGradient
from tests.training.objectives.scored_batches import InParts, batch_of, cut, gradient_of, moved
from tests.training.token_policy import TokenPolicy, questions

KINDS = [(PairwisePolicyGradient, P3OConfig()), (PairwisePolicyGradient, P3OConfig(clip=0.5))]
KINDS += [(OutcomePrediction, PACSConfig()), (OutcomePrediction, PACSConfig(beta=0.3, balanced=False))]
each_kind = pytest.mark.parametrize(("kind", "config"), KINDS, ids=lambda each: getattr(each, "name", ""))
TOTALS = [1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, torch.nan]


def scored(policy, totals=TOTALS, seed=0):
    return replace(batch_of(policy, totals, seed), totals=torch.tensor(totals))


def in_groups(batch, *at):
    bounds = [0, *at, batch.rollout.rows]
    parts = cut(batch, *at)
    return [replace(part, totals=batch.totals[a:b]) for part, a, b in zip(parts, bounds, bounds[1:], strict=False)]


@each_kind
def test_gradients_are_independent_of_step_order_and_of_cuts_between_groups(kind, config):
    found = []
    for policy, at in ((TokenPolicy(), []), (TokenPolicy(), [4]), (InParts(), []), (InParts(), [4])):
        batches = in_groups(scored(policy), *at)
        found.append(gradient_of(kind(moved(policy), config), policy, batches))
    for gradient, gauges in found[1:]:
        torch.testing.assert_close(gradient, found[0][0])
        assert gauges.values()["loss"] == pytest.approx(found[0][1].values()["loss"], rel=1e-5)
    assert found[0][0].norm() > 0.01


@each_kind
def test_an_unscored_row_is_left_out(kind, config):
    policy = TokenPolicy()
    batch = scored(policy)
    assert kind(policy, config).loss_normalizer(batch) == 7
    policy_without = TokenPolicy()
    kept = in_groups(scored(policy_without), 7)[0]
    with_row, _ = gradient_of(kind(moved(policy), config), policy, [batch])
    without, _ = gradient_of(kind(moved(policy_without), config), policy_without, [kept])
    torch.testing.assert_close(with_row, without)


@each_kind
def test_groups_of_one_row_have_no_loss(kind, config):
    policy = TokenPolicy()
    batch = replace(batch_of(policy, [1.0, 0.0], n=1), totals=torch.tensor([1.0, 0.0]))
    objective = kind(policy, config)
    assert objective.loss_normalizer(batch) == 0
    objective.backward(batch, 1.0, 0, gradient_of(objective, policy, [scored(policy)])[1])


@each_kind
def test_rewards_are_needed(kind, config):
    policy = TokenPolicy()
    with pytest.raises(ValueError, match="were not scored"):
        kind(policy, config).backward(batch_of(policy, TOTALS[:4]), 1.0, 0, None)


def test_a_wrong_answer_that_became_far_likelier_is_still_pulled_down():
    """Its log-ratio of 30 is the logit of a prediction, which no bound on ratios may take from the gradient."""
    policy = TokenPolicy()
    batch = scored(policy, [0.0, 1.0, 1.0, 1.0])
    log_probs = batch.rollout.log_probs.clone()
    log_probs[0, batch.rollout.mask[0].nonzero()[0, 0]] -= 30
    far = replace(batch, rollout=replace(batch.rollout, log_probs=log_probs, policy_version=policy.version - 1))
    gradient, gauges = gradient_of(OutcomePrediction(policy, PACSConfig()), policy, [far])
    # The wrong answer has the logit 30 and the weight 2; each right one lacks 10 to it and has the weight 2/3.
    assert gauges.values()["loss"] == pytest.approx((2 * 30 + 3 * 2 / 3 * 10) / 4, rel=1e-3)
    alone, _ = gradient_of(OutcomePrediction(policy, PACSConfig()), policy, [batch])
    assert gradient.norm() > alone.norm()


@pytest.mark.integration
@each_kind
def test_it_learns(kind, config):
    policy = TokenPolicy(prompts=4, spread=0.1)
    optimizer = torch.optim.Adam([policy.logits], lr=0.1)

    def draw(n, seed):
        rollout = policy.rollout([RolloutRequest(s, n, group) for group, s in enumerate(questions(4))], seed)
        texts = [(sample.answer[0], text) for sample, text in zip(rollout.samples, rollout.media, strict=True)]
        return rollout, torch.tensor([float(text[:1] == expected) for expected, text in texts])

    before = draw(64, 10_000)[1].mean().item()
    objective = kind(policy, config)
    for iteration in range(30):
        rollout, totals = draw(8, iteration)
        batch = replace(batch_of(policy, [0.0] * rollout.rows, n=8), rollout=rollout, totals=totals)
        for _ in range(2):
            gradient_of(objective, policy, [batch])
            optimizer.step()
            policy.version += 1
    assert draw(64, 10_000)[1].mean().item() > before + 0.3


@pytest.mark.parametrize("algorithm", ["p3o", "pacs"])
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.demonstrations={}", "data.demonstrations: they are read in other micro-batches than the answers"),
        ("data.group_sampling.name=adaptive", "data.group_sampling.name: adaptive draws a group in several rounds"),
        ("data.group_sampling={name: timed, window: 9.0}", "data.group_sampling.name: timed draws a group in several"),
        (
            "data.weighting={}",
            "data.weighting: it scales the advantages of answers",
        ),
    ],
)
def test_a_setting_that_divides_groups_or_scales_advantages_is_refused(algorithm, setting, message):
    recipe = f"{{name: x, policy: {{kind: vlm, model: x}}, data: {{path: x}}, algorithm: {{name: {algorithm}}}}}"
    assert validation_errors(parse_config(recipe, "x.yaml", ["data.group_sampling.name=dynamic"])) == []
    assert any(error.startswith(message) for error in validation_errors(parse_config(recipe, "x.yaml", [setting])))
