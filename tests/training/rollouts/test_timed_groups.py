"""Sampling for a given time, and weights by durations: who ends in time, and which action a gradient favours."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms.durations import duration_weights
from mmrl.build.policies import build_policy
from mmrl.checks import ShapeError
from mmrl.config.algorithms.advantage import AdvantageConfig, ConstantBaselineAdvantage, DurationConfig
from mmrl.config.loading.load import load_config
from mmrl.config.validation import validation_errors
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, RunError
from mmrl.rewards.core.reward_io import RewardOutput
from mmrl.rewards.rules.outcome import EpisodeOutcome
from mmrl.rollout import EndOfEpisode, EpisodeRecord, Rollout
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator
from mmrl.training.rollouts.collect import Origin, ScoredRollouts
from mmrl.training.rollouts.timed_groups import TimedGroupSampler, episode_seconds
from mmrl_shapeworld.worlds.zoom_environment import ZoomPages
from mmrl_shapeworld.worlds.zoom_splits import samples as zoom_samples
from tests.training.token_run import RewardSuite, collect, source

PROMPTS = [Sample("a", prompt="?"), Sample("b", prompt="?")]


def record(**outcome) -> EpisodeRecord:
    return EpisodeRecord((), (), outcome, (), (), EndOfEpisode.OVER)


def scored(*rounds: list[tuple[int, float | None]]) -> ScoredRollouts:
    """Return rounds of episodes, (group, seconds) each; None: void."""
    rollouts = []
    for each in rounds:
        mask = torch.ones(len(each), 1, dtype=torch.bool)
        rollouts.append(
            Rollout(
                samples=[PROMPTS[group] for group, _ in each],
                group_index=torch.tensor([group for group, _ in each]),
                log_probs=torch.zeros(mask.shape),
                mask=mask,
                channel=torch.zeros(mask.shape, dtype=torch.long),
                media=["" for _ in each],
                policy_version=0,
                episodes=[record(void="timeout") if s is None else record(seconds=s) for _, s in each],
            )
        )
    rows = sum(map(len, rounds))
    output = RewardOutput({"total": np.zeros(rows, np.float32)}, {}, [{}] * rows)
    return ScoredRollouts(rollouts, [Origin.POLICY] * len(rollouts), output, tuple(map(len, rounds)))


def sampler(window: float, workers: int = 2, max_rounds: int = 9) -> TimedGroupSampler:
    return TimedGroupSampler(workers, window, "seconds", max_rounds)


def next_sizes(timed: TimedGroupSampler, *rounds: list[tuple[int, float | None]]) -> list[tuple[int, int]]:
    found = timed.next_requests(PromptSampler(PROMPTS, 2, seed=0), scored(*rounds) if rounds else None)
    return [(request.group, request.n) for request in found]


def test_weights_by_hand():
    assert duration_weights(torch.tensor([2.0, 6.0, math.nan, 4.0])).tolist() == [0.5, 1.5, 0.0, 1.0]
    assert duration_weights(torch.tensor([math.nan])).tolist() == [0.0]
    with pytest.raises(ValueError, match=r"a duration is 0\.0 s; it is above 0"):
        duration_weights(torch.tensor([0.0, 1.0]))
    with pytest.raises(ShapeError):
        duration_weights(torch.ones(2, 2))


@given(st.lists(st.floats(0.01, 1e3), min_size=1, max_size=9), st.floats(0.1, 10))
def test_weights_have_the_mean_1_and_no_unit(seconds, unit):
    values = torch.tensor(seconds, dtype=torch.float64)
    found = duration_weights(values)
    assert float(found.mean()) == pytest.approx(1, rel=1e-5)
    torch.testing.assert_close(duration_weights(unit * values), found)


def test_weights_undo_that_fast_actions_end_more_often():
    """The fast action of 1 s ends four times in the time of the slow one of 4 s."""
    seconds = torch.tensor([4.0, 1.0, 1.0, 1.0, 1.0])
    weights = duration_weights(seconds)
    assert float(weights[0]) == pytest.approx(float(weights[1:].sum()))


def test_workers_play_until_the_window_closes():
    timed = sampler(window=5)
    assert next_sizes(timed) == [(0, 2), (1, 2)]
    first = [(0, 1.0), (0, 5.0), (1, 6.0), (1, 2.0)]  # the workers of a are at 1 and 5, those of b at 6 and 2
    assert next_sizes(timed, first) == [(0, 1), (1, 1)]
    second = [(0, 3.0), (1, 4.0)]  # the first of a at 4, the second of b at 6
    assert next_sizes(timed, first, second) == [(0, 1)]
    third = [(0, 1.0)]
    assert next_sizes(timed, first, second, third) == []
    chosen = timed.select(scored(first, second, third), 0)
    assert chosen.trained.tolist() == [True, True, False, True, True, False, True]
    assert torch.equal(chosen.in_baseline, chosen.trained)
    assert chosen.on_policy.tolist() == [True] * 4 + [False] * 3
    assert chosen.metrics == {
        "draws/rounds": 3.0,
        "draws/rows": 7.0,
        "draws/unfinished_rows": 2.0,
        "draws/seconds": pytest.approx((1 + 5 + 2 + 3 + 1) / 5),
    }


def test_a_void_episode_holds_its_worker_up_and_rounds_are_bounded():
    timed = sampler(window=5)
    assert next_sizes(timed, [(0, None), (0, 1.0)]) == [(0, 1)]
    assert timed.select(scored([(0, None), (0, 1.0)]), 0).trained.tolist() == [False, True]
    assert next_sizes(sampler(window=5, max_rounds=1), [(0, 1.0), (0, 1.0)]) == []


def test_a_window_in_which_nothing_ends_is_an_error():
    with pytest.raises(RunError, match=r"of 2 episodes none ended within 5 s, the first after 6 s"):
        sampler(window=5).select(scored([(0, 6.0), (0, 7.0)]), 0)


def test_durations_that_nobody_reports_are_an_error():
    with pytest.raises(ConfigError, match="delay: the environment reports None"):
        episode_seconds(scored([(0, 1.0)]).rollouts, "delay")
    with pytest.raises(ConfigError, match="reports 0 as the duration"):
        episode_seconds(scored([(0, 0)]).rollouts, "seconds")
    rollout = scored([(0, 1.0)]).rollouts[0]
    rollout.episodes = None
    with pytest.raises(ConfigError, match="only episodes have a duration"):
        episode_seconds([rollout], "seconds")


@pytest.fixture(scope="module")
def policy():
    config = load_config("shapes-zoom")
    return build_policy(config.policy, config.sampling, config.media)


def collected(policy, config: AdvantageConfig, look_seconds: float):
    policy.play_in(ZoomPages(template="offer", look_seconds=look_seconds))
    return collect(
        source(
            policy,
            prompts=PromptSampler(zoom_samples("zoom-development")[:4], 2, seed=0),
            suite=RewardSuite([(EpisodeOutcome(key="credit"), 1.0)], min_valid_share=0.5),
            advantage_estimator=AdvantageEstimator(config, {"outcome": 1.0}),
            group_sampler=TimedGroupSampler(4, window=9.0, key="seconds", max_rounds=9),
            micro_batch=16,
        )
    )


@pytest.mark.integration
def test_episodes_of_an_environment_are_weighted_by_the_time_they_take(policy):
    plain = collected(policy, ConstantBaselineAdvantage(value=-1.0), look_seconds=5.0)
    weighted = collected(policy, ConstantBaselineAdvantage(value=-1.0, duration=DurationConfig()), look_seconds=5.0)
    outcomes = [episode.outcome for batch in plain.micro_batches for episode in batch.rollout.episodes]
    seconds = torch.tensor([outcome["seconds"] for outcome in outcomes])
    assert set(seconds.tolist()) == {1.0, 6.0}
    credit = torch.tensor([outcome["credit"] for outcome in outcomes])
    advantages = [torch.cat([batch.advantages for batch in each.micro_batches]) for each in (plain, weighted)]
    torch.testing.assert_close(advantages[0], credit + 1)
    torch.testing.assert_close(advantages[1], (credit + 1) * seconds / seconds.mean())
    assert all(torch.equal(batch.step_advantages != 0, batch.rollout.mask) for batch in weighted.micro_batches)
    assert plain.metrics["draws/unfinished_rows"] > 0


@pytest.mark.integration
def test_a_longer_look_is_learnt_from_less_often(policy):
    def looks(look_seconds: float) -> float:
        found = collected(policy, ConstantBaselineAdvantage(), look_seconds)
        outcomes = [episode.outcome for batch in found.micro_batches for episode in batch.rollout.episodes]
        return sum(outcome["looked"] for outcome in outcomes) / len(outcomes)

    assert looks(8.0) < looks(1.0) - 0.1


def test_settings_that_cannot_work_are_refused_by_name():
    def errors(recipe: str, *overrides: str) -> list[str]:
        return validation_errors(load_config(recipe, overrides))

    timed = "data.group_sampling={name: timed, window: 9}"
    assert errors("shapes-zoom", timed, "algorithm.advantage.duration={}") == []
    assert "data.group_sampling: timed needs the durations" in errors("shapes-reasoning", timed)[0]
    assert (
        "algorithm.advantage.duration: only an environment"
        in errors("shapes-reasoning", "algorithm.advantage.duration={}")[0]
    )
    turns = errors("shapes-zoom", "algorithm.advantage.duration={}", "algorithm.advantage.turns={}")
    assert "and algorithm.advantage.turns parts of them" in turns[0]
