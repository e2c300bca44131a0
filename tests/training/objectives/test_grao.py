"""GRAO from rollouts to gradients, against its objective written out (arXiv:2508.07750, equations 2 to 4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmrl.build.data_samplers import build_alignment
from mmrl.config.algorithms.aligned_groups import GRAOConfig
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.loading.load import parse_config
from mmrl.config.validation import validation_errors
from mmrl.data.prompts import PromptSampler
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.rollouts.demonstrations import MixedDemonstrations
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import collect, source

DATA = "{path: 'shapeworld:sums-train', groups: 4, group_size: 4}"
TEXT = f"{{name: tiny, policy: {{kind: vlm, model: 'shapeworld:sums'}}, data: {DATA}}}"


def gradient(config: GRPOConfig | GRAOConfig, policy: TokenPolicy):
    """The gradient of an update, the rows of it, and their groups and rewards."""
    samples = [replace(each, demonstration=each.answer) for each in questions()]
    rollouts = source(
        policy,
        prompts=PromptSampler(samples, 4, seed=0),
        demonstrations=MixedDemonstrations(1.0, None, 0),
        aligned=build_alignment(config),
    )
    found = collect(rollouts)
    objective = PolicyGradient(policy, config)
    total = sum(objective.loss_normalizer(batch) for batch in found.micro_batches)
    for batch in found.micro_batches:
        objective.backward(batch, objective.loss_normalizer(batch) / total, 0, MetricAccumulator())
    got, policy.logits.grad = policy.logits.grad.clone(), None
    return got, found


def written_out(policy: TokenPolicy, found, imitation: float, alignment: float):
    """The gradient of minus equation 2; 6 rows of each prompt, of which the first rollout has the demonstrations."""
    likelihood, reward, demonstrated = {}, {}, {}
    for number, batch in enumerate(found.micro_batches):
        recording, mask = batch.rollout.recording, batch.rollout.mask
        tokens = (
            policy.logits.double()[recording.prompts].log_softmax(-1).gather(-1, recording.tokens[..., None])[..., 0]
        )
        for row, group in enumerate(batch.rollout.group_index.tolist()):
            likelihood.setdefault(group, []).append(tokens[row][mask[row]].mean())
            reward.setdefault(group, []).append(float(batch.totals[row]))
            demonstrated.setdefault(group, []).append(not batch.sampled)
        assert all(not batch.sampled for batch in found.micro_batches[:1]) and number >= 0
    objective = torch.zeros((), dtype=torch.float64)
    for group, rewards in reward.items():
        values = torch.tensor(rewards, dtype=torch.float64)
        if values.max() == values.min():
            continue
        advantages = (values - values.mean()) / (values.std(correction=0) + 1e-4)
        y = demonstrated[group].index(True)
        own = [row for row in range(len(rewards)) if row != y]
        assert len(own) == 5
        for row in own:
            explored, imitated = likelihood[group][row], likelihood[group][y]
            terms = advantages[row] * explored + imitation * advantages[y] * imitated
            objective = objective + (terms + alignment * advantages[row] * (explored - imitated)) / 5
    (-objective / 4).backward()
    got, policy.logits.grad = policy.logits.grad.clone(), None
    return got


@pytest.mark.parametrize(("imitation", "alignment"), [(0.5, 0.6), (1.5, 0.0), (0.0, 1.0)])
def test_the_gradient_is_that_of_the_three_terms(imitation, alignment):
    policy = TokenPolicy()
    got, found = gradient(GRAOConfig(imitation=imitation, alignment=alignment), policy)
    expected = written_out(policy, found, imitation, alignment)
    # the mean over 6 rows of a group, of which 5 are own, where the paper divides by 5
    torch.testing.assert_close(got, expected * 5 / 6, atol=1e-5, rtol=1e-4)
    assert expected.abs().max() > 0.01


def test_it_is_not_grpo_with_a_demonstration():
    policy = TokenPolicy()
    got, found = gradient(GRPOConfig(), policy)
    assert not torch.allclose(got, written_out(policy, found, 0.5, 0.6) * 5 / 6, atol=1e-3)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], r"data.demonstrations: grao imitates them"),
        (["algorithm.advantage={name: running}"], r"algorithm.advantage: grao compares whole answers of a group"),
    ],
)
def test_settings_without_effect_are_refused(overrides, message):
    config = parse_config(TEXT, "tiny.yaml", ["algorithm={name: grao}", *overrides])
    assert any(message in error for error in config.algorithm.validation_errors(config))


def test_with_demonstrations_it_is_accepted():
    config = parse_config(TEXT, "tiny.yaml", ["algorithm={name: grao}", "data.demonstrations={share: 1.0}"])
    assert not validation_errors(config)
