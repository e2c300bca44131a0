"""Runs with an environment, from their configuration: traces imitated first, then episodes on screens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmrl.build.checkpoint_pool import CheckpointPool
from mmrl.build.model_references import resolve_model
from mmrl.config import load_config
from mmrl.environments import register
from mmrl.errors import DataError
from mmrl.rollout_request import RolloutRequest
from mmrl.training.rollouts.demonstrations import demonstrated_turns, demonstrations_of
from mmrl.training.run.run_folder import load_run
from mmrl.workflows.train import train
from mmrl_shapeworld import splits
from mmrl_shapeworld.worlds.button_environment import ButtonScreens

register(ButtonScreens)
SCREENS = (
    "environment={name: shapeworld_screens}",
    "rewards=[{name: outcome, args: {key: progress}}]",
    "data.path=shapeworld:screens-train",
    "data.validation=null",
    "evaluation={}",
    "data.groups=2",
    "data.group_size=4",
    "training.iterations=2",
    "pretraining={iterations: 1, path: 'shapeworld:screens-train'}",
    "sampling.max_new_tokens=8",
    "run.display=quiet",
)


def run(folder: Path, *overrides: str) -> list[dict[str, Any]]:
    train(load_config("shapes-vlm", [*SCREENS, f"run.dir={folder}", *overrides]))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "train"]


@pytest.mark.integration
def test_a_run_imitates_traces_and_then_plays(tmp_path):
    imitated, played = run(tmp_path / "run", "algorithm.advantage.turns={weight: 0.5, discount: 0.9}")
    assert imitated["log_prob_mean"] < 0
    assert imitated["length"] > 8  # several turns
    assert 1 <= played["turns/count"] <= ButtonScreens.max_turns
    assert {"turns/reward/progress", "turns/info/hit", "turns/cut_off", "reward/outcome"} <= played.keys()
    config = load_run(tmp_path / "run").config
    assert config.environment.name == "shapeworld_screens"
    sample = splits.samples("screens-development")[0]
    models = [resolve_model(str(tmp_path / "run"))]
    for in_environments in (True, False):
        pool = CheckpointPool(models, in_environments=in_environments)
        with pool.activate(models[0].name) as policy:
            rollout = policy.rollout([RolloutRequest(sample, 2, 0)], seed=0)
        assert (rollout.episodes is not None) == in_environments


@pytest.mark.integration
def test_an_earlier_stage_has_its_own_algorithm_and_rewards(tmp_path):
    stage = (
        "stages=[{iterations: 1, rewards: [{name: outcome, args: {key: success}}], "
        "algorithm: {name: grpo, kl: {coef: 0.5, turns: [0]}}}]"
    )
    overrides = (stage, "pretraining=null", "algorithm.advantage.turns={weight: 0.5}")
    earlier, last = run(tmp_path / "run", *overrides)
    assert (earlier["stage"], last["stage"]) == (0, 1)
    assert "kl" in earlier and "kl" not in last
    assert load_run(tmp_path / "run").config.stages[0].algorithm.kl.turns == (0,)


@pytest.mark.slow
def test_evaluation_plays_episodes(tmp_path):
    evaluated = ("data.validation=shapeworld:screens-development", "evaluation={prompts: 4}")
    run(tmp_path / "run", *evaluated)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [0 <= row["evaluation/outcome"] <= 1 for row in lines if row["kind"] == "evaluation"] == [True, True]


@pytest.mark.slow
def test_a_run_goes_from_recorded_traces_to_live_episodes(tmp_path):
    recorded, live = run(
        tmp_path / "run",
        "environment={name: recorded, args: {mismatch: ignore, live: shapeworld_screens}}",
        "data.path=shapeworld:screens-curriculum-train",
        "data.prompts={name: staged}",
        "pretraining=null",
        "algorithm.advantage.turns={discount: 0.5, rewards: {match: 1}}",
    )
    assert (recorded["prompts/stage"], live["prompts/stage"]) == (0, 1)
    assert {"turns/reward/match", "turns/reward/kind"} <= recorded.keys()
    assert "turns/reward/progress" in live and "turns/reward/match" not in live


@pytest.mark.slow
def test_single_steps_are_learnt_after_the_recorded_ones(tmp_path):
    (row,) = run(
        tmp_path / "run",
        "environment={name: recorded}",
        "data.path=shapeworld:screens-careless-steps-train",
        "pretraining=null",
        "training.iterations=1",
    )
    assert row["turns/count"] == 1 and row["replay_gap"] < 1e-4


@pytest.mark.integration
def test_demonstrations_of_several_turns_are_read_by_their_key():
    sample = splits.samples("screens-train")[0]
    (turns,) = demonstrated_turns(sample)
    assert len(turns) >= 2
    with pytest.raises(DataError, match="expected its demonstration to be a text or a list of texts, got a dict"):
        demonstrations_of(sample)
    plain = splits.samples("vlm-train")[0]
    assert demonstrated_turns(plain) == ()
