"""Settings that cannot work with an environment, or only with one, are named before a model is loaded."""

from __future__ import annotations

import pytest

from mmrl.build.config_checks import check
from mmrl.build.policies import build_policy
from mmrl.config import load_config
from mmrl.config.environment import EnvironmentConfig
from mmrl.config.policy import PolicyConfig
from mmrl.config.sampling import SamplingConfig
from mmrl.errors import ConfigError

TOOLS = "environment={tools: [{name: crop}]}"


@pytest.mark.parametrize(
    "overrides, message",
    [
        (
            ["data.replay={name: selective}", "algorithm={name: grpo, advantage: {turns: {}}}"],
            r"data\.replay: selective keeps one advantage of each episode",
        ),
        (["data.demonstrations={}"], r"data\.demonstrations: its texts are single answers"),
        (
            ["algorithm={name: online_dpo}"],
            "algorithm: online_dpo puts the rows of an iteration into new micro-batches",
        ),
        (["run.place=strict"], r"run\.place: strict needs equally many calls"),
        (
            ["algorithm.advantage={name: gdpo, turns: {}}"],
            r"algorithm\.advantage\.turns: turns are compared within groups",
        ),
    ],
)
def test_settings_that_cannot_work_with_an_environment_are_named(overrides, message):
    config = load_config("shapes-vlm", [TOOLS, *overrides])
    with pytest.raises(ConfigError, match=message):
        check(config)


def test_a_potential_needs_the_outcome_in_its_returns():
    set_potential = "algorithm.advantage.turns.potential={reward: level}"
    check(load_config("shapes-vlm", [TOOLS, set_potential, "algorithm.advantage.turns.outcome=returned"]))
    with pytest.raises(ConfigError, match="set outcome: returned"):
        load_config("shapes-vlm", [TOOLS, set_potential])
    with pytest.raises(ConfigError, match="level is a potential or a reward: take it out of rewards"):
        load_config("shapes-vlm", [TOOLS, "algorithm.advantage.turns={outcome: returned, rewards: {level: 1}, "
                                          "potential: {reward: level}}"])  # fmt: skip


def test_turns_need_an_environment_and_a_policy_that_writes():
    with pytest.raises(ConfigError, match=r"algorithm\.advantage\.turns: only an environment has turns"):
        check(load_config("shapes-vlm", ["algorithm.advantage.turns={}"]))
    with pytest.raises(ConfigError, match=r"data\.turn_filter: only an environment has turns"):
        check(load_config("shapes-vlm", ["data.turn_filter={}"]))
    with pytest.raises(ConfigError, match="environment: policies of kind pipeline write no turns"):
        check(load_config("quickstart", [TOOLS]))


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["stages=[{iterations: 100}]", "training.iterations=99"], "iterations, which must be at least 100"),
        (
            ["stages=[{iterations: 1, algorithm: {name: grpo, length: 9}}]"],
            r"stages\.0: algorithm\.length: aggregate constant divides by it",
        ),
        (["stages=[{iterations: 1}]", "run.overlap.lag=1"], "stages change the objective during the run"),
        (["algorithm.kl={coef: 0.1, turns: [0]}"], r"algorithm\.kl\.turns: only a penalty"),
        ([TOOLS, "algorithm.kl={turns: [0]}"], r"algorithm\.kl\.turns: only a penalty"),
    ],
)
def test_stages_and_penalties_of_turns_that_cannot_work_are_named(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check(load_config("shapes-vlm", overrides))


def test_stages_and_penalties_of_turns_are_accepted():
    stage = "stages=[{iterations: 2, algorithm: {name: grpo, kl: {coef: 0.1, turns: [0]}}}]"
    config = load_config("shapes-vlm", [TOOLS, stage])
    check(config)
    assert config.staged(config.stages[0]).algorithm.kl.coef == 0.1 and config.algorithm.kl.coef == 0


def test_a_fitting_environment_is_accepted():
    check(load_config("shapes-vlm", [TOOLS, "algorithm.advantage.turns={weight: 0.5}"]))


def test_policies_without_turns_are_refused_when_they_are_built(monkeypatch):
    from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy

    monkeypatch.setattr(PipelinePolicy, "from_config", lambda *arguments: object())
    environment = EnvironmentConfig(tools=[{"name": "crop"}])
    with pytest.raises(ConfigError, match="environment: policies of kind pipeline write no turns"):
        build_policy(PolicyConfig(model="any"), SamplingConfig(), environment=environment)
