"""OREAL from rollouts to gradients, and the model of tokens that learns to tell outcomes (arXiv:2502.06781)."""

from __future__ import annotations

import json

import pytest
import torch

from mmrl.config.algorithms.outcome_learning import OREALConfig
from mmrl.config.loading.load import load_config, parse_config
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.validation import validation_errors
from mmrl.training.objectives.base import MetricAccumulator, ObjectiveInputs
from mmrl.training.objectives.outcome_learning import OutcomeLearning
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator
from mmrl.training.rollouts.outcome_credits import OutcomeCredits
from mmrl.workflows.train import train
from tests.training.test_actor_critic import TableCritic
from tests.training.token_policy import TokenPolicy
from tests.training.token_run import Right, collect, source

CRITIC = "models={judge: {model: 'shapeworld:sums', train: full, head: value}}"
DATA = "{path: 'shapeworld:sums-train', groups: 4, group_size: 4}"
TEXT = f"{{name: tiny, policy: {{kind: vlm, model: 'shapeworld:sums'}}, data: {DATA}}}"


def random_critic() -> TableCritic:
    critic = TableCritic()
    critic.table.data = torch.randn(8, 3, generator=torch.Generator().manual_seed(2))
    return critic


def learnt(config: OREALConfig, critic: TableCritic | None = None):
    """The policy, and the micro-batches of an update that has been backpropagated, with its metrics."""
    policy = TokenPolicy()
    rollouts = source(policy, Right(), advantage_estimator=AdvantageEstimator(config.advantage, {"right": 1.0}))
    found = collect(OutcomeCredits(rollouts, config, critic))
    critics = {} if critic is None else {"judge": critic}
    objective = OutcomeLearning.build(config, ObjectiveInputs(policy, TokenSamplingConfig(), critics=critics))
    metrics = MetricAccumulator()
    objective.accumulate(found.micro_batches, 1.0, [0] * len(found.micro_batches), metrics)
    return policy, found, metrics.values(), objective


@pytest.mark.parametrize("shaped", [True, False])
def test_the_gradient_is_that_of_both_means(shaped):
    policy, found, _, _ = learnt(OREALConfig(shaped=shaped, negatives=0.7, threshold=0.5))
    got, policy.logits.grad = policy.logits.grad.clone(), None
    sums, counts, totals = {True: 0.0, False: 0.0}, {True: 0, False: 0}, {}
    for batch in found.micro_batches:
        for group, total in zip(batch.rollout.group_index.tolist(), batch.totals.tolist(), strict=True):
            totals.setdefault(group, []).append(total)
    for batch in found.micro_batches:
        prompts, tokens, mask = batch.rollout.recording.prompts, batch.rollout.recording.tokens, batch.rollout.mask
        log_probs = policy.logits[prompts].log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        for row, group in enumerate(batch.rollout.group_index.tolist()):
            right = float(batch.totals[row]) >= 0.5
            others = (sum(totals[group]) - float(batch.totals[row])) / 5
            advantage = float(batch.totals[row]) - others if shaped or right else -1.0
            sums[right] = sums[right] + advantage * log_probs[row][mask[row]].sum()
            counts[right] += int(mask[row].sum())
    assert min(counts.values()) > 0
    (-(sums[True] / counts[True]) - 0.7 * sums[False] / counts[False]).backward()
    torch.testing.assert_close(got, policy.logits.grad, atol=1e-6, rtol=1e-4)


def test_the_critic_learns_the_outcome_from_the_mean_of_its_values():
    critic = random_critic()
    _, found, metrics, objective = learnt(OREALConfig(critic="judge", threshold=0.5), critic)
    got, critic.table.grad = critic.table.grad.clone(), None
    assert objective.trained == ("policy", "judge")
    answers = sum(int(batch.rollout.mask.any(1).sum()) for batch in found.micro_batches)
    loss = torch.zeros(())
    for batch in found.micro_batches:
        mask = batch.rollout.mask
        logits = (critic.values(batch.rollout) * mask).sum(1) / mask.sum(1)
        right = (batch.totals >= 0.5).float()
        each = -(right * logits.sigmoid().log() + (1 - right) * (1 - logits.sigmoid()).log())
        loss = loss + each.sum() / answers
    loss.backward()
    torch.testing.assert_close(got, critic.table.grad, atol=1e-6, rtol=1e-4)
    assert 0 <= metrics["importance/accuracy"] <= 1 and {"importance/right", "importance/wrong"} <= set(found.metrics)


def test_importance_changes_what_is_learnt_token_by_token():
    plain, weighted = (
        learnt(OREALConfig(critic=name, threshold=0.5), critic)
        for name, critic in ((None, None), ("judge", random_critic()))
    )
    for one, other in zip(plain[1].micro_batches, weighted[1].micro_batches, strict=True):
        assert torch.equal(one.totals, other.totals)
        assert (other.step_advantages.abs() <= one.step_advantages.abs() + 1e-6).all()
    assert not torch.allclose(plain[0].logits.grad, weighted[0].logits.grad, atol=1e-3)


def test_right_answers_alone():
    _, found, _, _ = learnt(OREALConfig(negatives=0.0, threshold=0.5))
    for batch in found.micro_batches:
        assert not batch.step_advantages[batch.totals < 0.5].any()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.critic=judge"], "algorithm.critic: models has no judge with head: value (none has)"),
        (["algorithm.importance_from=0.7"], "algorithm.importance_from: it is of tokens that a critic judges"),
        (["algorithm.aggregate=sequence"], "algorithm.aggregate: oreal has a mean over tokens"),
        (["data.demonstrations={share: 1.0}"], "data: oreal learns from the answers of an iteration alone"),
        (["run.overlap.stream=true"], "run.overlap.stream: oreal counts the tokens"),
        ([CRITIC, "algorithm.critic=judge", "policy.dtype=float16"], "policy.dtype: oreal with a critic"),
    ],
)
def test_settings_that_cannot_work_are_refused(overrides, message):
    config = parse_config(TEXT, "tiny.yaml", ["algorithm={name: oreal}", "rewards=[{name: numeric}]", *overrides])
    assert message in "\n".join(validation_errors(config))


def test_with_a_critic_it_is_accepted():
    config = parse_config(
        TEXT, "tiny.yaml", ["algorithm={name: oreal, critic: judge}", "rewards=[{name: numeric}]", CRITIC]
    )
    assert not validation_errors(config)


@pytest.mark.integration
def test_a_run_trains_the_policy_and_its_critic(tmp_path):
    words = [
        *(CRITIC, "algorithm={name: oreal, critic: judge}", "data={path: 'shapeworld:sums-train', groups: 2}"),
        *("data.group_size=4", "evaluation={}", "sampling.max_new_tokens=12", "training={iterations: 2}"),
        *(f"run.dir={tmp_path}", "run.display=quiet"),
    ]
    folder = train(load_config("shapes-reasoning", words))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(row["judge/grad_norm"] > 0 and "importance/loss" in row and "right_share" in row for row in rows)
