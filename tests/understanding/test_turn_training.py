"""GRPO with an environment: two turns, the outcome of the episode as the reward, rows that break down left out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.config.algorithms.advantage import AdvantageConfig, ConstantBaselineAdvantage, GroupAdvantage
from mmrl.config.algorithms.policy_gradient import DrGRPOConfig, GRPOConfig
from mmrl.config.algorithms.turn_credit import TurnCreditConfig
from mmrl.config.training import OptimizerConfig, TrainingConfig
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import Sample
from mmrl.environments.environment import Observation, Step
from mmrl.errors import ConfigError, RunError
from mmrl.evaluation.evaluate import evaluate
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.core.suite import RewardSuite
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.policy_gradient import PolicyGradient, merge_duplicates
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator
from mmrl.training.rollouts.demonstrations import MixedDemonstrations
from mmrl.training.rollouts.exchange import _outline
from mmrl.training.rollouts.online import OnlineRollouts
from mmrl.training.rollouts.row_selection import BestAndWorst, RowSelection
from mmrl.training.rollouts.turn_advantages import potentials_before, turn_advantages
from mmrl.training.run.display import QuietDisplay
from mmrl.training.run.timers import Phases
from mmrl.training.run.trackers import JsonlTracker
from mmrl.training.training_loop import TrainingLoop
from mmrl.understanding.vlm_policy import VLMPolicy
from tests.understanding.media import as_png, picture

SAMPLES = [Sample(f"s{n}", prompt=f"Guess {n}.", images=(as_png(picture(n)),)) for n in range(4)]


class GuessEpisode:
    """Right: the second turn is longer than the first. The picture of the first answer says nothing about it."""

    def __init__(self, void_above: int | None) -> None:
        self.actions: list[str | None] = []
        self._void_above = void_above

    def step(self, action: str | None) -> Step:
        self.actions.append(action)
        if self._void_above is not None and len(action or "") > self._void_above:
            raise OSError("no answer")
        if len(self.actions) == 2 or action is None:
            return Step(None, {"second": 1.0})
        return Step(Observation("Again.", (picture(len(action)),)), {"first": 0.25}, {"length": float(len(action))})

    def outcome(self) -> Mapping[str, Any]:
        lengths = [len(action or "") for action in self.actions]
        return {"right": float(len(lengths) == 2 and lengths[1] > lengths[0])}


class Guess:
    max_turns = 2
    instructions = "You have two guesses."
    deadline_s = None

    def __init__(self, void_above: int | None = None) -> None:
        self._void_above = void_above

    def begin(self, sample: Sample, reader: Any) -> GuessEpisode:
        return GuessEpisode(self._void_above)


class Guessed(Reward):
    """1 where the outcome says that the guess was right."""

    name, needs, range = "guessed", ("outcome.right", "text"), (0.0, 1.0)

    def score_one(self, item: RewardInput) -> float:
        assert item.metadata["turns"][-1] == item.text
        return float(item.outcome["right"])


@pytest.fixture
def policy(player) -> VLMPolicy:
    player("qwen3_vl").play_in(Guess())
    return player("qwen3_vl")


def source(policy: VLMPolicy, **changes: Any) -> OnlineRollouts:
    settings: dict[str, Any] = {
        "policy": policy,
        "sampling_weights": nullcontext,
        "prompts": PromptSampler(SAMPLES, 2, seed=0),
        "suite": RewardSuite([(Guessed(), 1.0)], min_valid_share=0.2),
        "advantage_estimator": AdvantageEstimator(AdvantageConfig(), {"guessed": 1.0}),
        "group_size": 8,
        "micro_batch": 8,
        "seed": 3,
    }
    return OnlineRollouts(**(settings | changes))


def train(run: Path, policy: VLMPolicy, iterations: int, **changes: Any) -> list[dict[str, Any]]:
    TrainingLoop(
        policy=policy,
        objective=PolicyGradient(policy, GRPOConfig()),
        source=source(policy, **changes),
        optimizer_config=OptimizerConfig(lr=3e-3),
        config=TrainingConfig(iterations=iterations, max_replay_gap=1e-4),
        seed=3,
        run=run,
        trackers=[JsonlTracker(run)],
        display=QuietDisplay(),
    ).train()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == "train"]


def collect(online: OnlineRollouts) -> list[MicroBatch]:
    return online.collect(0, 0.0, Phases()).micro_batches


@pytest.mark.integration
def test_an_iteration_learns_from_outcomes(new_player, tmp_path):
    policy = new_player("qwen3_vl")
    policy.play_in(Guess())
    before = {name: p.detach().clone() for name, p in policy.parameters_to_train().items()}
    (row,) = train(tmp_path, policy, 1)
    assert row["replay_gap"] < 1e-4
    assert 0 < row["reward/guessed"] < 1
    assert 1 < row["turns/count"] <= 2
    assert row["turns/void"] == 0
    assert 0 < row["turns/reward/first"] <= 0.25
    assert row["turns/info/length"] > 0
    moved = {name: float((p.detach() - before[name]).abs().max()) for name, p in policy.parameters_to_train().items()}
    assert max(moved.values()) > 1e-4
    assert max(value for name, value in moved.items() if "visual" in name) > 1e-5


@pytest.mark.slow
def test_longer_second_guesses_are_learnt(new_player, tmp_path):
    policy = new_player("llava")
    policy.play_in(Guess())
    rows = train(tmp_path, policy, 40)
    first, last = (sum(row["reward/guessed"] for row in part) / 8 for part in (rows[:8], rows[-8:]))
    assert last > first + 0.2


@pytest.mark.integration
def test_every_own_token_has_the_advantage_of_its_trajectory(policy):
    for batch in collect(source(policy)):
        rewards = torch.tensor([episode.outcome["right"] for episode in batch.rollout.episodes])
        expected = (rewards - rewards.mean()) / (rewards.std(correction=0) + 1e-4)
        torch.testing.assert_close(batch.advantages, expected, atol=1e-3, rtol=1e-3)
        steps = batch.advantages[:, None].where(batch.rollout.mask, 0.0)
        torch.testing.assert_close(batch.step_advantages, steps)


@pytest.mark.integration
@pytest.mark.parametrize("outcome", ["added", "returned"])
def test_turns_have_advantages_of_their_own(policy, outcome):
    credit = TurnCreditConfig(weight=0.5, discount=0.5, outcome=outcome, rewards={"first": 2.0, "second": 1.0})
    config = GroupAdvantage(turns=credit)
    whole, split = (
        collect(source(policy, advantage_estimator=AdvantageEstimator(each, {"guessed": 1.0})))
        for each in (GroupAdvantage(), config)
    )
    for plain, batch in zip(whole, split, strict=True):
        rollout = batch.rollout
        assert len(rollout.group_index.unique()) == 1
        rows = []
        for episode in rollout.episodes:
            turns = [sum({"first": 2.0, "second": 1.0}[e.name] * e.value for e in episode.events if e.turn == t)
                     for t in range(len(episode.texts))]  # fmt: skip
            if outcome == "returned":
                turns = [0.5 * value for value in turns]
                turns[-1] += episode.outcome["right"]
            rows.append([sum(0.5 ** (later - t) * turns[later] for later in range(t, len(turns)))
                         for t in range(len(turns))])  # fmt: skip
        for turn in range(2):
            values = torch.tensor([row[turn] for row in rows if len(row) > turn])
            spread = values.std(correction=0)
            places = [row for row, value in enumerate(rows) if len(value) > turn]
            for place, value in zip(places, values, strict=True):
                expected = (value - values.mean()) / (spread + 1e-4) if values.max() > values.min() else 0.0
                if outcome == "added":
                    expected = float(plain.advantages[place]) + 0.5 * expected
                here = rollout.mask[place] & (rollout.channel[place] == turn)
                found = batch.step_advantages[place][here]
                torch.testing.assert_close(found, torch.full_like(found, float(expected)), atol=2e-3, rtol=2e-3)
        assert not batch.step_advantages[~rollout.mask].any()


@pytest.mark.integration
def test_a_potential_moves_each_turn_by_the_state_that_it_begins_in(policy):
    """The first turn is as without it; of the second, only what differs between rows counts, and all stand alike."""
    plain, shaped = (
        collect(source(policy, advantage_estimator=AdvantageEstimator(GroupAdvantage(turns=credit), {"guessed": 1.0})))
        for credit in (
            TurnCreditConfig(outcome="returned", rewards={"none": 1.0}),
            TurnCreditConfig(outcome="returned", potential={"reward": "first", "weight": 2.0}, rewards={"none": 1.0}),
        )
    )
    for one, other in zip(plain, shaped, strict=True):
        assert one.step_advantages.any()
        torch.testing.assert_close(one.step_advantages, other.step_advantages, atol=1e-4, rtol=1e-4)


def test_a_potential_of_the_state_is_taken_from_the_return_of_a_turn(policy):
    rollouts = [batch.rollout for batch in collect(source(policy))]
    total = torch.tensor([episode.outcome["right"] for rollout in rollouts for episode in rollout.episodes])
    groups = torch.arange(len(total))  # a row against itself, uncentred below
    config = ConstantBaselineAdvantage(
        turns=TurnCreditConfig(outcome="returned", discount=0.5, potential={"reward": "first", "weight": 2.0})
    )
    found = turn_advantages(config, torch.zeros(len(total)), total, groups, rollouts)
    second = total + 1.0 - 2 * 0.25  # the reward `second`, and the potential after the first turn
    two = torch.tensor([len(episode.texts) == 2 for rollout in rollouts for episode in rollout.episodes])
    assert two.sum() > 8
    torch.testing.assert_close(found[two, 1], second[two])
    torch.testing.assert_close(found[two, 0], 0.5 * (total[two] + 1.0))  # what the first gains, the second gives back
    assert potentials_before(rollouts, "first")[two].unique(dim=0).tolist() == [[0.0, 0.25]]


def test_a_potential_that_the_environment_does_not_give_is_named(policy):
    credit = TurnCreditConfig(outcome="returned", potential={"reward": "height"})
    estimator = AdvantageEstimator(GroupAdvantage(turns=credit), {"guessed": 1.0})
    with pytest.raises(RunError, match=r"no turn reward 'height': it gives first, second"):
        collect(source(policy, advantage_estimator=estimator))


@pytest.mark.integration
def test_the_horizon_grows_in_equal_parts_of_training(policy):
    online = source(policy, horizon=(1, 2))
    assert [online.max_turns(progress) for progress in (0.0, 0.49, 0.5, 1.0)] == [1, 1, 2, 2]
    assert source(policy).max_turns(0.5) is None
    for progress, most in ((0.0, 1), (0.9, 2)):
        batches = online.collect(0, progress, Phases()).micro_batches
        assert max(len(each.texts) for batch in batches for each in batch.rollout.episodes) == most
    assert len(policy.rollout([RolloutRequest(SAMPLES[0], 8, 0)], seed=1).episodes[0].texts) <= 2


@pytest.mark.integration
def test_void_episodes_are_left_out_and_counted(policy):
    policy.play_in(Guess(void_above=3))
    experience = source(policy).collect(0, 0.0, Phases())
    voids = [episode.void for batch in experience.micro_batches for episode in batch.rollout.episodes]
    count = sum(kind is not None for kind in voids)
    assert 0 < count < len(voids)
    assert experience.metrics["turns/void"] == experience.metrics["turns/void/error"] == count
    assert experience.metrics["failure/guessed/episode_error"] == count
    for batch in experience.micro_batches:
        void = torch.tensor([episode.void is not None for episode in batch.rollout.episodes])
        assert torch.equal(batch.scored, ~void)
        assert not batch.step_advantages[void].any()
        rewards = torch.tensor([episode.outcome.get("right", 0.0) for episode in batch.rollout.episodes])[~void]
        if len(rewards) > 1:
            assert abs(float(batch.advantages.sum())) < 1e-3
    with pytest.raises(RunError, match=r"the episode broke down \(error\)"):
        collect(source(policy, suite=RewardSuite([(Guessed(), 1.0)], min_valid_share=1.0)))


def test_evaluation_plays_episodes_and_leaves_void_ones_out(policy):
    policy.play_in(Guess(void_above=3))
    found = evaluate(policy, SAMPLES, RewardSuite([(Guessed(), 1.0)]), draws=4, batch=8, seed=0)
    values, status = found.values["guessed"], found.status["guessed"]
    assert 0 < sum(each == "error" for each in status) < len(status)
    assert all(
        (each == "error") == bool(torch.isnan(torch.tensor(value))) for each, value in zip(status, values, strict=True)
    )


def gradient(policy: VLMPolicy, rollout: Rollout) -> torch.Tensor:
    for parameter in policy.parameters_to_train().values():
        parameter.grad = None
    advantages = torch.linspace(-1, 1, rollout.rows)
    batch = MicroBatch.of_rows(rollout, advantages)
    PolicyGradient(policy, DrGRPOConfig(), max_decisions=12).backward(batch, 1.0, 0, MetricAccumulator())
    return torch.cat([p.grad.flatten() for p in policy.parameters_to_train().values() if p.grad is not None])


def test_rows_of_several_turns_are_not_merged(policy):
    rollout = policy.rollout([RolloutRequest(SAMPLES[0], 4, 0)], 0)
    twice = rollout.select([0, 0, 1, 1])
    credit = torch.ones_like(twice.log_probs)
    rows, _, copies = merge_duplicates(twice, twice.mask, credit, credit)
    several = [len(twice.episodes[row].texts) > 1 for row in (0, 2)]
    assert any(several)
    assert len(rows) == sum(2 if each else 1 for each in several)
    assert int(copies.sum()) == 4
    assert gradient(policy, rollout).norm() > 0


def test_other_processes_get_outlines_with_episodes_and_without_pictures(policy):
    rollout = policy.rollout([RolloutRequest(SAMPLES[0], 4, 0)], 0)
    outline = replace(_outline(rollout, keep_clean=False), samples=rollout.samples)
    assert outline.recording is None
    assert all(not episode.observations and episode.outcome for episode in outline.episodes)
    assert [len(each.texts) for each in outline.select([3, 1]).episodes] == [
        len(outline.episodes[row].texts) for row in (3, 1)
    ]


def test_what_cannot_hold_several_turns_refuses_by_name(policy):
    with pytest.raises(ConfigError, match=r"data\.demonstrations: its texts are single answers, and the environment"):
        source(policy, demonstrations=MixedDemonstrations(1.0, None, 0))
    with pytest.raises(ConfigError, match="rows of several turns cannot be: choose grpo"):
        RowSelection(source(policy), policy, BestAndWorst(), 8)
