"""Several objectives in one update: one term to the bit, the weighted sum, gauges, sources and what is refused."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmrl.config.algorithms.distill import DistillConfig
from mmrl.config.algorithms.mixture import MixConfig, lead_of
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.algorithms.supervised import SFTConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.prompts import PromptSampler
from mmrl.training.named_model import NamedModel
from mmrl.training.objectives.base import MetricAccumulator, ObjectiveInputs
from mmrl.training.objectives.mixed_terms import MixedTerms
from mmrl.training.rollouts.mixed_source import MixedSource
from mmrl.training.rollouts.offline import Demonstrations
from mmrl.training.run.checkpoints import Checkpoints
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import collect, source, trainer

TEACHER = NamedModel(TokenPolicy(seed=7))


def mixed(policy: TokenPolicy, *terms, **settings) -> MixedTerms:
    config = MixConfig(terms=terms, **settings)
    return MixedTerms.build(config, ObjectiveInputs(policy, TokenSamplingConfig(), models={"teacher": TEACHER}))


def demonstrated() -> list:
    return [replace(each, demonstration="2 1") for each in questions()]


def gradient(policy: TokenPolicy, objective, batches) -> tuple[torch.Tensor, dict[str, float]]:
    policy.logits.grad = None
    metrics = MetricAccumulator()
    objective.accumulate(batches, 1.0, range(len(batches)), metrics)
    return policy.logits.grad.clone(), metrics.values()


@pytest.mark.parametrize("updates", [1, 2])
def test_a_mix_of_one_term_is_that_algorithm_to_the_bit(tmp_path: Path, updates: int):
    alone = source(policy=TokenPolicy())
    trainer(tmp_path / "alone", alone, training={"updates": updates}).train()
    within = source(policy=TokenPolicy())
    objective = mixed(within.policy, GRPOConfig())
    trainer(tmp_path / "mix", within, objective=objective, training={"updates": updates}).train()
    assert torch.equal(alone.policy.logits, within.policy.logits)
    assert not torch.equal(alone.policy.logits, TokenPolicy().logits)
    metrics = [(tmp_path / run / "metrics.jsonl").read_text().count('"loss"') for run in ("alone", "mix")]
    assert metrics[0] == metrics[1] > 0


def test_the_gradient_is_the_weighted_sum_and_its_parts_are_gauged():
    policy = TokenPolicy()
    batches = collect(source(policy=policy)).micro_batches
    grpo, distill = GRPOConfig(), DistillConfig(teacher="teacher")
    one, _ = gradient(policy, mixed(policy, grpo), batches)
    other, _ = gradient(policy, mixed(policy, distill), batches)
    both, metrics = gradient(policy, mixed(policy, grpo, distill.model_copy(update={"weight": 0.25})), batches)
    torch.testing.assert_close(both, one + 0.25 * other, atol=1e-7, rtol=0)
    assert metrics["gradient/grpo"] == pytest.approx(one.norm().item(), rel=1e-5)
    assert metrics["gradient/distill"] == pytest.approx(other.norm().item(), rel=1e-5)  # before its weight
    cosine = torch.cosine_similarity(one.flatten(), other.flatten(), 0).item()
    assert metrics["gradient/cosine/grpo/distill"] == pytest.approx(cosine, abs=1e-5)
    assert metrics["weight/distill"] == 0.25
    assert {"loss", "distill/loss", "distill/reverse_kl", "log_prob_change_max"} <= metrics.keys()


def test_a_term_of_weight_zero_is_not_computed():
    policy = TokenPolicy()
    batches = collect(source(policy=policy)).micro_batches
    silent = DistillConfig(teacher="teacher", weight=0.0)
    one, _ = gradient(policy, mixed(policy, GRPOConfig()), batches)
    both, metrics = gradient(policy, mixed(policy, GRPOConfig(), silent), batches)
    assert torch.equal(one, both) and not any(name.startswith("distill") for name in metrics)


def test_a_term_learns_from_demonstrations_beside_the_rollouts():
    policy = TokenPolicy()
    taught = Demonstrations(policy, PromptSampler(demonstrated(), 4, seed=1), 4, seed=1)
    experience = collect(MixedSource(source(policy=policy), {1: ("sft", taught)}))
    assert [batch.term for batch in experience.micro_batches].count(1) == 1 and "sft/length" in experience.metrics
    own = [batch for batch in experience.micro_batches if batch.term is None]
    imitated = [replace(batch, term=0) for batch in experience.micro_batches if batch.term == 1]
    both, metrics = gradient(policy, mixed(policy, GRPOConfig(), SFTConfig(weight=0.5)), experience.micro_batches)
    one, _ = gradient(policy, mixed(policy, GRPOConfig()), own)
    policy.logits.grad = None
    sft = SFTConfig().objective_class().build(SFTConfig(), ObjectiveInputs(policy, TokenSamplingConfig()))
    other, _ = gradient(policy, sft, imitated)
    torch.testing.assert_close(both, one + 0.5 * other, atol=1e-7, rtol=0)
    assert "sft/log_prob_mean" in metrics


def test_a_resumed_mix_continues_exactly(tmp_path: Path):
    def made(name: str):
        policy = TokenPolicy()
        taught = Demonstrations(policy, PromptSampler(demonstrated(), 4, seed=1), 4, seed=1)
        objective = mixed(policy, GRPOConfig(), DistillConfig(teacher="teacher", weight=0.3), SFTConfig(weight=0.1))
        both = MixedSource(source(policy=policy), {2: ("sft", taught)})
        return trainer(tmp_path / name, both, objective=objective, policy=policy)

    straight = made("run")
    straight.train()
    resumed = made("run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-6")
    assert Checkpoints(tmp_path / "run").path().name == "step-4"
    resumed.resume()
    resumed.train()
    assert torch.equal(straight.policy.logits, resumed.policy.logits)


@pytest.mark.integration
def test_a_balanced_mix_takes_one_term_in_each_update_and_is_resumed(tmp_path: Path):
    def made(name: str):
        policy = TokenPolicy()
        taught = Demonstrations(policy, PromptSampler(demonstrated(), 4, seed=1), 4, seed=1)
        objective = mixed(policy, GRPOConfig(), SFTConfig(), balance={"gamma": 1.0})
        both = MixedSource(source(policy=policy), {1: ("sft", taught)})
        return trainer(tmp_path / name, both, objective=objective, policy=policy, training={"iterations": 12})

    straight = made("run")
    straight.train()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    weights = [(line["weight/grpo"], line["weight/sft"]) for line in lines]
    assert weights[0] == (0.0, 1.0) and set(weights) == {(0.0, 1.0), (1.0, 0.0)}
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-12")
    resumed = made("run")
    resumed.resume()
    resumed.train()
    assert resumed.step == 12 and torch.equal(straight.policy.logits, resumed.policy.logits)


@pytest.mark.integration
@pytest.mark.parametrize(
    "balance",
    [
        {"name": "volatility", "window": 4},
        {"name": "meta_gradient", "rate": 0.5, "entropy_rate": 0.5, "start": 0.6},
    ],
    ids=lambda each: each["name"],
)
def test_a_mix_with_moving_weights_is_resumed_exactly(tmp_path: Path, balance):
    def made():
        policy = TokenPolicy()
        taught = Demonstrations(policy, PromptSampler(demonstrated(), 4, seed=1), 4, seed=1)
        objective = mixed(policy, GRPOConfig(), SFTConfig(weight=0.5), balance=balance)
        both = MixedSource(source(policy=policy), {1: ("sft", taught)})
        return trainer(tmp_path / "run", both, objective=objective, policy=policy, training={"iterations": 12})

    straight = made()
    straight.train()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    weights = [(line["weight/grpo"], line["weight/sft"]) for line in lines]
    assert len(set(weights)) > 6
    total = 2.0 if balance["name"] == "volatility" else 1.0
    assert all(grpo + sft / 0.5 == pytest.approx(total) for grpo, sft in weights)
    assert weights[0] == pytest.approx((1.0, 0.5) if total == 2 else (0.4, 0.3))
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-12")
    resumed = made()
    resumed.resume()
    resumed.train()
    assert resumed.step == 12 and torch.equal(straight.policy.logits, resumed.policy.logits)


@pytest.mark.parametrize("balance", [{"gamma": 1.0}, {"name": "meta_gradient", "rate": 0.5, "start": 0.6}])
def test_an_update_that_overflows_in_float16_says_nothing_about_its_terms(balance):
    policy = TokenPolicy()
    taught = Demonstrations(policy, PromptSampler(demonstrated(), 4, seed=1), 4, seed=1)
    batches = collect(MixedSource(source(policy=policy), {1: ("sft", taught)})).micro_batches
    objective = mixed(policy, GRPOConfig(), SFTConfig(), balance=balance)
    objective.accumulate(batches, math.inf, range(len(batches)), MetricAccumulator())
    untouched = mixed(policy, GRPOConfig(), SFTConfig(), balance=balance)
    assert repr(objective.state_dict()) == repr(untouched.state_dict())


def test_weights_move_in_a_straight_line_to_their_end(tmp_path: Path):
    policy = TokenPolicy()
    terms = (GRPOConfig(), DistillConfig(teacher="teacher", weight=0.4, weight_end=0.1))
    inputs = ObjectiveInputs(policy, TokenSamplingConfig(), models={"teacher": TEACHER}, updates=6)
    objective = MixedTerms.build(MixConfig(terms=terms), inputs)
    trainer(tmp_path, source(policy=policy), objective=objective, policy=policy).train()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    expected = [0.4 - 0.3 * update / 6 for update in range(6)]
    assert [line["weight/distill"] for line in lines] == pytest.approx(expected)
    assert {line["weight/grpo"] for line in lines} == {1.0}


def test_a_term_with_an_advantage_costs_what_rewards_lack_to_the_best():
    policy = TokenPolicy()
    batches = collect(source(policy=policy)).micro_batches
    objective = mixed(policy, GRPOConfig(), DistillConfig(teacher="teacher"), balance={"name": "volatility"})
    _, metrics = gradient(policy, objective, batches)
    totals = torch.cat([batch.totals for batch in batches])
    state = objective.state_dict()
    assert state["balance.costs.0"].item() == pytest.approx(float(totals.max() - totals.mean()), abs=1e-6)
    assert state["balance.costs.1"].item() == pytest.approx(metrics["distill/loss"])


def test_the_leading_term_is_the_first_with_an_advantage():
    distill, grpo = DistillConfig(teacher="t"), GRPOConfig()
    assert MixConfig(terms=(SFTConfig(), distill, grpo)).lead is grpo
    assert MixConfig(terms=(SFTConfig(), distill)).lead is distill
    assert lead_of(grpo) is grpo
    assert MixConfig(terms=(grpo, grpo)).labels() == ("grpo-0", "grpo-1")
