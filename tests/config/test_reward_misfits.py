"""Ways to put rewards together that cannot work are refused by name."""

from __future__ import annotations

import pytest

from mmrl.config.loading.load import parse_config
from mmrl.config.validation import validation_errors

BASE = """
name: tiny
policy: {kind: pipeline, model: shapeworld}
sampling: {transition: {name: flow_sde}}
algorithm: {name: grpo}
rewards: [{name: a}, {name: b}]
data: {path: "shapeworld:train"}
"""
CONSTRAINT = "rewards.1.at_least=0.8"
CHANNELS = "algorithm.advantage.channels=[{rewards: [a]}, {rewards: [b], among: {a: 1.0}, weight: 0.3}]"
CASCADE = "rewards.1.after={a: 0.5}"
LEARNT = "algorithm.advantage.channels=[{rewards: [a]}, {rewards: [b], learn: {rate: 0.5}}]"
CONDITION = "rewards.1.counts_if={reward: a, at_least: 1.0}"


def refused(*overrides: str) -> list[str]:
    return validation_errors(parse_config(BASE, "tiny.yaml", overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.advantage.name=pareto"],
        ["algorithm.name=gdpo"],
        ["algorithm={name: diffusion_nft, advantage: {name: pareto, clip: 5.0}}", "sampling={}"],
        ["algorithm={name: diffusion_nft, advantage: {name: gdpo, clip: 5.0}}", "sampling={}"],
        ["algorithm={name: diffusion_nft}", "sampling={}", CONSTRAINT],
        ["rewards.1.gate=0.5"],
        [CONSTRAINT],
        [CONSTRAINT, "rewards.1.lagrange={start: 1.0, rate: 0.5, max: 2.0}"],
        [CONSTRAINT, "algorithm.name=gdpo", "rewards.2={name: c}"],
        [CHANNELS],
        [CHANNELS, "rewards.2={name: c, weight: 0}"],
        [LEARNT],
        [CHANNELS, "algorithm.advantage.name=rloo", "rewards.1.weight=-2"],
        [CONDITION],
        [CASCADE],
        [CASCADE, CONDITION, "rewards.1.gate=0.2"],
        [CASCADE, "rewards.2={name: c, weight: 0, after: {a: 0.1, b: 0.5}}", "algorithm.name=gdpo"],
        [CASCADE, CONSTRAINT],
        [CONDITION, "rewards.0.weight=0"],
        [CONDITION, "rewards.2={name: c, counts_if: {reward: b, at_least: 0.5}}"],
        [CONDITION, "algorithm={name: diffusion_nft}", "sampling={}"],
    ],
)
def test_valid_reward_settings_are_accepted(overrides):
    assert refused(*overrides) == []


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.advantage.name=pareto", "rewards.1.weight=0"],
            "pareto weighs several rewards against one another",
        ),
        (["algorithm.name=gdpo", "rewards.1.weight=0"], "gdpo normalises each of several rewards, and there is one"),
        (["algorithm.advantage.name=pareto", "rewards.1.gate=0.5"], "a gate decides on the total, which pareto does"),
        (["algorithm.name=gdpo", "rewards.1.gate=0.5"], "a gate decides on the total, which gdpo does not look at"),
        (["algorithm.advantage.name=pareto", "scoring.renormalise=true"], "pareto takes the rewards one by one"),
        (
            ["algorithm.advantage.name=pareto", "data.group_sampling={name: dynamic}"],
            "but pareto learns from those whose",
        ),
        (
            ["algorithm.advantage.name=chains", "data.group_sampling={name: dynamic}"],
            "but chains learns from those whose",
        ),
        (["algorithm.advantage.name=pareto", "rewards.2={name: c, at_least: 1}"], "and not with pareto"),
        (["algorithm.advantage.name=chains", "rewards.1.weight=0"], "chains orders answers by several rewards"),
        (["algorithm={name: draft}", CONSTRAINT], "and not with this algorithm"),
        (["algorithm={name: rejection_sft}", CONSTRAINT], "and not with best_of"),
        (["algorithm.name=max_rl", CONSTRAINT], "and not with max_rl"),
        ([CONSTRAINT, "rewards.0.at_least=0.1"], "so nothing is maximised"),
        ([CONSTRAINT, "rewards.1.weight=2"], "rewards.1.weight: with at_least, b is weighed by its multiplier"),
        ([CONSTRAINT, "rewards.1.gate=0.1"], "rewards.1.gate: b has at_least"),
        (["rewards.1.lagrange.rate=0.5"], "rewards.1.lagrange: it moves the multiplier of a constraint, and b has no"),
        ([CONSTRAINT, "rewards.1.lagrange={start: 9.0}"], "rewards.1.lagrange.start: 9 is above lagrange.max, 5"),
        (
            [CONSTRAINT, "data.group_sampling={name: dynamic}"],
            "data.group_sampling: dynamic drops groups whose totals are equal",
        ),
        (["rewards.1.counts_if={reward: b, at_least: 1}"], "b is not another reward of this run: there are a"),
        (["rewards.1.counts_if={reward: d, at_least: 1}"], "d is not another reward of this run: there are a"),
        (["rewards=[{name: a, counts_if: {reward: b, at_least: 1}}]"], "b is not another reward of this run: there is"),
        (
            [CONDITION, "rewards.0.counts_if={reward: b, at_least: 1}"],
            "rewards.0.counts_if.reward: a counts if b counts",
        ),
        (["rewards.0.after={b: 0.5}"], "rewards.0.after.b: a can only wait for a reward above it: there is none"),
        (["rewards.1.after={b: 0.5}"], "rewards.1.after.b: b can only wait for a reward above it: there are a"),
        (["rewards.1.after={c: 0.5}"], "rewards.1.after.c: b can only wait for a reward above it: there are a"),
        ([CHANNELS, "rewards.1.name=c"], "algorithm.advantage.channels.1: b is none of rewards (a, c)"),
        ([CHANNELS, "rewards.2={name: c}"], "rewards.2: c is in no channel"),
        ([CHANNELS, "rewards.1.weight=0"], "algorithm.advantage.channels.1: b has the weight 0"),
        ([CHANNELS, "rewards.1.gate=0.5"], "rewards.1: gate and counts_if decide on the total"),
        ([CHANNELS, "algorithm.name=gdpo"], "each is estimated as one reward is, and gdpo does otherwise"),
        ([CHANNELS, "algorithm.name=ddpo"], "each is estimated as one reward is, and running does otherwise"),
        ([CHANNELS, "data.group_sampling={name: dynamic}"], "but algorithm.advantage.channels compares their parts"),
        ([CHANNELS, "scoring.renormalise=true"], "channels takes the rewards one by one"),
        ([CHANNELS, "algorithm.advantage.turns={}"], "each turn has its own advantage"),
        ([LEARNT.replace("[a]}", "[a], learn: {}}")], "for the good of the channels without learn, and there is none"),
        ([LEARNT, "data.replay={name: selective}"], "data.replay: algorithm.advantage.channels with learn compares"),
        ([LEARNT, "algorithm.kl={coef: 0.1}"], "algorithm.kl.coef: algorithm.advantage.channels with learn compares"),
        ([LEARNT, "training.epochs=2"], "training.updates: algorithm.advantage.channels with learn compares"),
        ([LEARNT, "algorithm.mismatch={}"], "algorithm.mismatch: algorithm.advantage.channels with learn compares"),
        (
            [LEARNT, "algorithm.advantage.trust={}"],
            "algorithm.advantage.trust: algorithm.advantage.channels with",
        ),
        ([LEARNT, "algorithm.advantage.extremes_threshold=1"], "algorithm.advantage.extremes_threshold: algorithm.adv"),
        ([LEARNT, "rewards.2={name: c, at_least: 0.5}"], "rewards.at_least: algorithm.advantage.channels with learn"),
        (
            [LEARNT, "algorithm.name=diffusion_nft"],
            "algorithm.name: algorithm.advantage.channels with learn is for plain",
        ),
        (
            [
                "algorithm={name: mix, terms: [{name: grpo, advantage: {channels: [{rewards: [a]}, {rewards: [b], "
                "learn: {}}]}}, {name: distill}]}"
            ],
            "algorithm.terms.0.advantage.channels: with learn, each channel would add the gradients of all terms",
        ),
        (
            ["algorithm={name: ddpo, advantage: {name: running, trust: {}}}"],
            "and running gives other ones: leave one out",
        ),
        (["algorithm.advantage={turns: {}, trust: {}}"], "and algorithm.advantage.turns gives other ones"),
        ([CONDITION, CONSTRAINT], "rewards.1.counts_if: b has at_least"),
        ([CONDITION, "rewards.1.weight=0"], "rewards.1.counts_if: b has the weight 0"),
        ([CONDITION, "algorithm.name=gdpo"], "rewards: counts_if decides on a part of the total, which gdpo does not"),
        (
            [CONDITION, "algorithm.advantage.name=pareto"],
            "rewards: counts_if decides on a part of the total, which pareto does not",
        ),
    ],
)
def test_invalid_reward_settings_are_rejected_with_the_reason(overrides, message):
    assert any(message in line for line in refused(*overrides)), refused(*overrides)


TASK_MEAN, OPTIMAL = "algorithm.advantage={name: task_mean}", "algorithm.advantage={name: optimal_baseline}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [TASK_MEAN, "algorithm.advantage.std=batch"],
            "only grpo and siblings have a choice of spread; task_mean would ignore it",
        ),
        ([TASK_MEAN, CONSTRAINT], "and not with task_mean"),
        (["algorithm.advantage={name: scaled_negatives}", CONSTRAINT], "and not with scaled_negatives"),
        ([TASK_MEAN, "algorithm.advantage.channels=[{rewards: [a]}]"], "each is estimated as one reward is"),
        ([TASK_MEAN, "algorithm.advantage.turns={}"], "task_mean compares whole answers by more than their rewards"),
        ([TASK_MEAN, "run.overlap.stream=true"], "run.overlap.stream: task_mean compares the groups of an iteration"),
        ([OPTIMAL], "algorithm.aggregate: optimal_baseline weighs gradients of whole answers, and sequence divides"),
        ([OPTIMAL, "algorithm.advantage.norms=recorded"], "recorded reads probabilities of tokens"),
        ([OPTIMAL, "run.overlap.lag=1"], "run.overlap: optimal_baseline differentiates the policy between its"),
    ],
)
def test_advantages_that_read_more_than_rewards_say_what_they_cannot_do(overrides, message):
    assert any(message in line for line in refused(*overrides)), refused(*overrides)


def test_advantages_that_read_more_than_rewards_fit_elsewhere():
    assert not refused(TASK_MEAN, "algorithm.advantage.difficulty=0.5")
    assert not refused(OPTIMAL, "algorithm.aggregate=constant", "algorithm.length=4")
