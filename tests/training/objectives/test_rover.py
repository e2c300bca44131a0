"""ROVER from rollouts to gradients (arXiv:2509.24981)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from mmrl.config.algorithms.random_policy_valuation import ROVERConfig
from mmrl.config.loading.load import load_config, parse_config
from mmrl.config.validation import validation_errors
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.random_policy_valuation import RandomPolicyValuation
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator
from mmrl.training.rollouts.mean_log_probs import MeanLogProbs, mean_log_probs
from mmrl.workflows.train import train
from tests.training.token_policy import TokenPolicy
from tests.training.token_run import Right, collect, source

DATA = "{path: 'shapeworld:sums-train', groups: 4, group_size: 4}"
TEXT = f"{{name: tiny, policy: {{kind: vlm, model: 'shapeworld:sums'}}, data: {DATA}}}"


def experience(policy: TokenPolicy, config: ROVERConfig):
    estimator = AdvantageEstimator(config.advantage, {"right": 1.0})
    return collect(MeanLogProbs(source(policy, Right(), advantage_estimator=estimator), policy))


def gradient(policy: TokenPolicy, config: ROVERConfig, found):
    metrics = MetricAccumulator()
    batches = found.micro_batches
    RandomPolicyValuation(policy, config).accumulate(batches, 1.0, [0] * len(batches), metrics)
    got, policy.logits.grad = policy.logits.grad.clone(), None
    return got, metrics.values()


def written_out(policy: TokenPolicy, config: ROVERConfig, found, before: torch.Tensor):
    """The gradient of the mean squared error over all tokens, token by token in float64."""
    now, old = policy.logits.double().log_softmax(-1), before.double().log_softmax(-1)
    totals: dict[int, list[float]] = {}
    for batch in found.micro_batches:
        for group, total in zip(batch.rollout.group_index.tolist(), batch.totals.tolist(), strict=True):
            totals.setdefault(group, []).append(total)
    terms = []
    for batch in found.micro_batches:
        for row, group in enumerate(batch.rollout.group_index.tolist()):
            prompt, length = batch.rollout.recording.prompts[row], int(batch.rollout.mask[row].sum())
            reward = float(batch.totals[row]) - sum(totals[group]) / len(totals[group])
            for t in range(length):
                token = batch.rollout.recording.tokens[row, t]
                value = config.temperature * (now[prompt, t, token] - old[prompt, t, token])
                following = 0.0
                if t + 1 < length:
                    following = config.temperature * (now - old)[prompt, t + 1].mean().item()
                terms.append((value - reward - config.successors * following) ** 2)
    torch.stack(terms).mean().backward()
    got, policy.logits.grad = policy.logits.grad.clone(), None
    return got


@pytest.mark.parametrize("config", [ROVERConfig(), ROVERConfig(temperature=0.5, successors=0.0)])
def test_the_gradient_is_that_of_the_squared_errors(config):
    policy = TokenPolicy()
    found = experience(policy, config)
    before = policy.logits.detach().clone()
    policy.logits.data += 0.4 * torch.randn(before.shape, generator=torch.Generator().manual_seed(1))
    policy.version += 1
    got, metrics = gradient(policy, config, found)
    expected = written_out(policy, config, found, before)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
    assert expected.abs().max() > 0.01 and {"loss", "entropy", "value", "successor_value"} <= metrics.keys()


def test_the_values_of_next_tokens_move_the_gradient():
    policy = TokenPolicy()
    found = experience(policy, ROVERConfig())
    policy.logits.data += torch.randn(policy.logits.shape, generator=torch.Generator().manual_seed(1))
    with_them, without = (gradient(policy, ROVERConfig(successors=each), found)[0] for each in (1.0, 0.0))
    assert not torch.allclose(with_them, without, atol=1e-4)
    off = replace(found.micro_batches[0], mean_log_probs=None)
    with pytest.raises(ValueError, match="mean log-probabilities of the policy that sampled"):
        RandomPolicyValuation(policy, ROVERConfig()).backward(off, 1.0, 0, MetricAccumulator())


def test_means_are_those_of_the_policy_before_the_update():
    policy = TokenPolicy()
    found = experience(policy, ROVERConfig())
    before = policy.logits.detach().log_softmax(-1).mean(-1)
    for batch in found.micro_batches:
        torch.testing.assert_close(batch.mean_log_probs, before[batch.rollout.recording.prompts])
        assert torch.equal(batch.with_every_row().mean_log_probs, batch.mean_log_probs)
    policy.logits.data += torch.randn(policy.logits.shape, generator=torch.Generator().manual_seed(1))
    rollout = found.micro_batches[0].rollout
    assert not torch.allclose(mean_log_probs(policy, rollout), found.micro_batches[0].mean_log_probs, atol=1e-2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.demonstrations={share: 1.0}"], "data.demonstrations: rover values the policy's own answers"),
        (["data.replay={name: selective}"], "data.replay: rover reads the policy that sampled an answer"),
        (["run.overlap.lag=1"], "run.overlap: rover compares an answer with the policy before the update"),
    ],
)
def test_answers_of_others_are_refused(overrides, message):
    config = parse_config(TEXT, "tiny.yaml", ["algorithm={name: rover}", "rewards=[{name: numeric}]", *overrides])
    assert message in "\n".join(validation_errors(config))


@pytest.mark.integration
@pytest.mark.parametrize(
    "algorithm", ["{name: rover}", "{name: mix, terms: [{name: grpo, advantage: {name: dr_grpo}}, {name: rover}]}"]
)
def test_a_run_learns_in_several_updates(tmp_path, algorithm):
    words = [
        *(f"algorithm={algorithm}", "data={path: 'shapeworld:sums-train', groups: 4}", "data.group_size=4"),
        *(
            "data.micro_batch=8",
            "evaluation={}",
            "sampling.max_new_tokens=12",
            "training={iterations: 2, updates: 2, epochs: 2}",
        ),
        *(f"run.dir={tmp_path}", "run.display=quiet"),
    ]
    folder = train(load_config("shapes-reasoning", words))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = [row.get("value", row.get("rover/value")) for row in rows]
    assert all(row["grad_norm"] > 0 for row in rows) and all(values)
