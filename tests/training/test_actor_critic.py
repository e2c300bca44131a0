"""PPO with a critic: the advantages that it gives, both gradients by hand, and a real run that is resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from mmrl.algorithms.generalized_advantage import generalized_advantages
from mmrl.build.config_checks import check
from mmrl.config.algorithms.actor_critic import PPOConfig
from mmrl.config.loading.load import load_config
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.training import OptimizerConfig
from mmrl.errors import ConfigError
from mmrl.rollout import Rollout
from mmrl.training.learner import Learner
from mmrl.training.objectives.actor_critic import ActorCritic
from mmrl.training.objectives.base import MetricAccumulator, ObjectiveInputs
from mmrl.training.rollouts.critic_advantages import CriticAdvantages
from mmrl.workflows.train import train
from tests.training.token_policy import TokenPolicy
from tests.training.token_run import collect, source, trainer

CRITIC = "models={critic: {model: 'shapeworld:sums', train: full, head: value, optimizer: {lr: 1.0e-3}}}"


class TableCritic:
    """The value before token t of an answer to prompt p is values[p, t]."""

    def __init__(self, start: float = 0.0) -> None:
        self.table = nn.Parameter(torch.full((8, 3), start))
        self.version = 0

    def values(self, rollout: Rollout) -> torch.Tensor:
        return self.table[rollout.recording.prompts].where(rollout.mask, 0.0)

    def parameters_to_train(self) -> dict[str, nn.Parameter]:
        return {"table": self.table}

    def lr_scale(self, name: str) -> float:
        return 1.0

    def save(self, folder: Path) -> None:
        raise AssertionError("it is not saved here")


def objective(policy: TokenPolicy, critic: TableCritic, **settings) -> ActorCritic:
    config = PPOConfig(name="ppo", **settings)
    return ActorCritic.build(config, ObjectiveInputs(policy, TokenSamplingConfig(), critics={"critic": critic}))


def test_advantages_come_from_the_critic_and_the_total_from_the_last_token():
    policy, critic = TokenPolicy(), TableCritic(0.25)
    plain = PPOConfig(name="ppo", whiten=False, discount=0.9, trace=0.5)
    found = collect(CriticAdvantages(source(policy), critic, plain))
    for batch in found.micro_batches:
        mask, rewards = batch.rollout.mask, torch.zeros_like(batch.rollout.log_probs)
        rewards[torch.arange(len(mask)), mask.sum(1) - 1] = batch.totals
        expected, returns = generalized_advantages(rewards, mask * 0.25, mask, 0.9, 0.5)
        torch.testing.assert_close(batch.step_advantages, expected)
        torch.testing.assert_close(batch.returns, returns)
    assert found.metrics["value/mean"] == pytest.approx(0.25)
    assert found.metrics["value/explained"] == pytest.approx(0.0, abs=0.1)  # a constant explains nothing of the outcome
    white = collect(CriticAdvantages(source(TokenPolicy()), critic, PPOConfig(name="ppo")))
    values = torch.cat([batch.step_advantages[batch.rollout.mask] for batch in white.micro_batches])
    assert values.mean().abs() < 1e-6 and values.std() == pytest.approx(1, abs=1e-5)
    assert all((batch.step_advantages[~batch.rollout.mask] == 0).all() for batch in white.micro_batches)


def test_both_gradients_are_means_over_the_tokens_of_the_update():
    """At ratio 1 the policy's is -A grad log p, the critic's (V - return), each divided by the number of tokens."""
    policy, critic = TokenPolicy(), TableCritic(0.1)
    both = objective(policy, critic)
    assert both.trained == ("policy", "critic")
    batches = collect(CriticAdvantages(source(policy), critic, both._config)).micro_batches
    metrics = MetricAccumulator()
    both.accumulate(batches, 1.0, [0] * len(batches), metrics)
    count = sum(int(batch.rollout.mask.sum()) for batch in batches)
    expected, slopes = torch.zeros_like(policy.logits), torch.zeros_like(critic.table)
    for batch in batches:
        recording, mask = batch.rollout.recording, batch.rollout.mask
        p = policy.logits.detach()[recording.prompts].softmax(-1)
        one_hot = nn.functional.one_hot(recording.tokens, p.shape[-1])
        each = -(batch.step_advantages * mask)[..., None] * (one_hot - p) / count
        expected.index_add_(0, recording.prompts, each)
        slopes.index_add_(0, recording.prompts, (batch.values - batch.returns).where(mask, 0.0) / count)
    torch.testing.assert_close(policy.logits.grad, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(critic.table.grad, slopes, atol=1e-6, rtol=1e-5)
    assert metrics.values()["value/clip_fraction"] == 0


@pytest.mark.integration
def test_a_critic_learns_the_expected_reward_and_the_policy_improves(tmp_path):
    policy, critic = TokenPolicy(), TableCritic()
    both = objective(policy, critic, value_clip=None)
    judged = CriticAdvantages(source(policy), critic, both._config)
    loop = trainer(
        tmp_path, judged.source, policy=policy, objective=both, lr=0.05,
        others={"critic": Learner(critic, OptimizerConfig(lr=0.05), "float32")},
    )  # fmt: skip
    loop.source = judged
    first = [loop.iterate()[0] for _ in range(60)]
    assert first[-1]["reward/right"] > first[0]["reward/right"] + 0.2
    assert first[-1]["value/explained"] > 0.2 > first[0]["value/explained"]
    assert "critic/grad_norm" in first[0] and loop.learners["critic"].updates == 60


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.name=ppo"], r"algorithm.critic: models has no critic with head: value \(none has\)"),
        ([CRITIC], "models.critic.head: no algorithm has critic as its critic"),
        ([CRITIC, "algorithm={name: ppo, advantage: {std: batch}}"], "advantages of ppo come from its critic"),
        ([CRITIC, "algorithm.name=ppo", "data.replay={name: success}"], "data.replay: ppo learns from answers of this"),
        ([CRITIC, "algorithm.name=ppo", "policy.dtype=float16"], "policy.dtype: ppo has two losses"),
        ([CRITIC, "algorithm.name=ppo", "rewards.0.at_least=0.5"], "rewards: at_least adds .* and not with this algor"),
        ([CRITIC, "algorithm.name=ppo", "data.weighting={}"], "data.weighting: it scales .* ppo does not learn"),
        (
            [CRITIC, "algorithm.name=ppo", "data.demonstrations={shaping: 0.1}"],
            "demonstrations.shaping: it scales",
        ),
        ([CRITIC, "algorithm.name=ppo", "data.starts.name=tree_search"], "tree_search gives pieces their .* of ppo"),
        (
            [CRITIC, "algorithm.name=ppo", "data.starts={name: token_budgets, args: {budgets: [8, 16], limit: 32}}"],
            "data.starts: token_budgets adds the credit of sub-groups to advantages, from which ppo does not learn",
        ),
        (["models={c: {model: x, head: value}}"], "head: value is for another model that is trained"),
        ([CRITIC, "algorithm={name: mix, terms: [{name: ppo}]}"], "terms.0: ppo has a critic, which a mix has no"),
        (
            [CRITIC, "algorithm.name=ppo", "stages=[{iterations: 1, train: critic, algorithm: {name: grpo}}]"],
            "stages.0.train: critic is not trained",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_key(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check(load_config("shapes-reasoning", overrides))


@pytest.mark.integration
def test_a_run_with_a_critic_is_saved_whole_and_resumes_to_the_bit(tmp_path):
    def run(name: str, *more: str, resume: bool = False) -> Path:
        folder = tmp_path / name
        words = [CRITIC, "algorithm.name=ppo", "data={path: 'shapeworld:sums-train', groups: 2, group_size: 4}",
                 "evaluation={}", "sampling.max_new_tokens=12", "optimizer.lr=1e-3", f"run.dir={folder}",
                 "run.display=quiet", "training={iterations: 3, save_every: 1}", *more]  # fmt: skip
        return train(load_config("shapes-reasoning", words), folder if resume else None)

    whole = run("whole")
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert all(row["critic/grad_norm"] > 0 and "value/loss" in row for row in rows)
    saved = load_file(whole / "checkpoints/step-3/models/critic/value_model.safetensors")
    assert any(tensor.shape[0] == 1 and tensor.abs().max() > 0 for tensor in saved.values())  # the output layer
    run("cut", "training.iterations=2")
    run("cut", resume=True)
    for part in ("parameters", "optimizer", "parameters.critic", "optimizer.critic"):
        name = f"checkpoints/step-3/trainer/{part}.safetensors"
        one, two = load_file(whole / name), load_file(tmp_path / "cut" / name)
        assert one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one), part
