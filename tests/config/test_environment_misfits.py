"""Settings that cannot work with an environment, or only with one, are named before a model is loaded."""

from __future__ import annotations

import pytest

from mmrl.build.policies import build_policy
from mmrl.build.training_setup import check
from mmrl.config import load_config
from mmrl.config.environment import EnvironmentConfig
from mmrl.config.policy import PolicyConfig
from mmrl.config.sampling import SamplingConfig
from mmrl.errors import ConfigError

TOOLS = "environment={tools: [{name: crop}]}"


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["data.replay={name: success}"], r"data\.replay: its texts are single answers"),
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


def test_turns_need_an_environment_and_a_policy_that_writes():
    with pytest.raises(ConfigError, match=r"algorithm\.advantage\.turns: only an environment has turns"):
        check(load_config("shapes-vlm", ["algorithm.advantage.turns={}"]))
    with pytest.raises(ConfigError, match="environment: policies of kind pipeline write no turns"):
        check(load_config("quickstart", [TOOLS]))


def test_a_fitting_environment_is_accepted():
    check(load_config("shapes-vlm", [TOOLS, "algorithm.advantage.turns={weight: 0.5}"]))


def test_policies_without_turns_are_refused_when_they_are_built(monkeypatch):
    from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy

    monkeypatch.setattr(PipelinePolicy, "from_config", lambda *arguments: object())
    environment = EnvironmentConfig(tools=[{"name": "crop"}])
    with pytest.raises(ConfigError, match="environment: policies of kind pipeline write no turns"):
        build_policy(PolicyConfig(model="any"), SamplingConfig(), environment=environment)
