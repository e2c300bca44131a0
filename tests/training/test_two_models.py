"""Two models that learn in turn: each by itself, saved apart, and resumed to the bit after kill -9 at any moment."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mmrl.build.load_models import build_learners, build_models
from mmrl.build.policies import build_policy
from mmrl.config.loading.load import load_config
from mmrl.data.sample import Sample
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from tests.training.killed_runs import KilledRun
from tests.training.quickstart_run import assert_same

WORDS = [
    "models={other: {model: 'shapeworld:sums', train: lora, optimizer: {lr: 1.0e-3}}, shadow: {of: other, every: 2}}",
    "stages=[{iterations: 2, train: other, data: {groups: 2, path: 'shapeworld:sums-development'}}, {iterations: 1}]",
    "rounds=2",
    "rewards=[{name: 'tests.training.test_two_models:AsTheOther'}]",
    "data={path: 'shapeworld:sums-train', groups: 3, group_size: 4}",
    "training={iterations: 7, save_every: 1}",
    "evaluation={}",
    "optimizer={lr: 1.0e-3}",
    "sampling.max_new_tokens=16",
    "run={dir: run, display: plain}",
]


class AsTheOther(Reward):
    """The share of the other's answers that end as this one does; the other answers anew in each iteration."""

    name, needs, range = "as_the_other", ("text", "sample"), (0.0, 1.0)
    models = ("other",)

    def score_one(self, item: RewardInput) -> float:
        raise AssertionError("answers are scored together")

    def score_rows(self, items: list[RewardInput], context: RewardContext) -> list[float]:
        answers = context.models["other"].answers([item.sample for item in items], context.seed, draws=2)
        rows = zip(items, answers, strict=True)
        return [sum(each[-1:] == item.text[-1:] for each in found) / 2 for item, found in rows]


RUN = KilledRun("shapes-reasoning", WORDS)


@pytest.fixture(scope="module")
def undisturbed(fork_server, tmp_path_factory) -> tuple[Path, float]:
    return RUN.undisturbed(fork_server, tmp_path_factory.mktemp("two"))


@pytest.mark.integration
def test_each_model_learns_in_its_stages_alone(undisturbed):
    run, _ = undisturbed
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows if row["kind"] == "train"] == [0, 0, 1, 0, 0, 1, 2]
    state = json.loads((run / "checkpoints/step-7/trainer/state.json").read_text())
    assert state["updates"] == 3 and state["others"]["other"]["updates"] == 4
    folders = [run / "checkpoints" / f"step-{step}" for step in (6, 7)]  # between them the policy learns
    own, others = ([load_file(each / f"trainer/{name}.safetensors") for each in folders] for name in
                  ("parameters", "parameters.other"))  # fmt: skip
    assert any(not torch.equal(own[0][name], own[1][name]) for name in own[0])
    assert all(torch.equal(others[0][name], others[1][name]) for name in others[0])
    saved = load_file(folders[1] / "models/other/adapter_model.safetensors")
    assert any(tensor.abs().max() > 0 for name, tensor in saved.items() if "lora_B" in name)


@pytest.mark.slow
@pytest.mark.parametrize("draw", [1, *(pytest.param(draw, marks=pytest.mark.slow) for draw in (0, *range(2, 10)))])
def test_a_kill_at_a_random_moment_changes_nothing(fork_server, undisturbed, tmp_path, draw):
    run, seconds = undisturbed
    RUN.kill(fork_server, tmp_path, draw, after=draw * 4 % 7, steps=7, seconds=seconds)
    RUN.finish(fork_server, tmp_path)
    assert_same(run, tmp_path / "run")


@pytest.mark.slow
def test_a_kill_in_the_second_stage_of_a_round_repeats_it(fork_server, undisturbed, tmp_path):
    child = RUN.start(fork_server, tmp_path, signals=[signal.SIGKILL], at="os.rename run/checkpoints/.step-6.tmp")
    assert child.wait() == -signal.SIGKILL
    RUN.finish(fork_server, tmp_path)
    assert_same(undisturbed[0], tmp_path / "run")


@pytest.mark.integration
def test_a_snapshot_follows_a_trained_model_and_answers_differ_from_the_policys():
    config = load_config("shapes-reasoning", WORDS)
    torch.manual_seed(0)
    policy = build_policy(config.policy, config.sampling)
    models = build_models(config, policy)
    learner = build_learners(config, models)["other"]
    assert learner.settings.lr == 1e-3 and all("lora" in name for name in learner.parameters)
    samples = [Sample(id=f"s{number}", prompt=f"3+{number}=") for number in range(3)]
    shadow, other, own = (models.scorers[name] for name in ("shadow", "other", "policy"))
    assert shadow.answers(samples, 5, draws=3) == other.answers(samples, 5, draws=3) == own.answers(samples, 5, draws=3)
    with torch.no_grad():
        for name, parameter in learner.parameters.items():
            parameter.add_(0.3 if "lora_B" in name else 0.0)
    changed = other.answers(samples, 5, draws=3)
    assert changed != own.answers(samples, 5, draws=3) == shadow.answers(samples, 5, draws=3)
    assert changed != other.answers(samples, 6, draws=3)
    models.finish_iteration(2)
    assert shadow.answers(samples, 5, draws=3) == changed
    assert [len(each) for each in changed] == [3, 3, 3]


@pytest.mark.integration
def test_a_trained_model_learns_with_the_parts_that_the_policy_has():
    words = ["models={other: {model: shapeworld, train: full}}", "stages=[{iterations: 1, train: other}]"]
    for trained in ("true", "false"):
        parts = [f"policy.vision.train={trained}", f"policy.connector.train={trained}"]
        config = load_config("shapes-vlm", [*words, *parts])
        policy = build_policy(config.policy, config.sampling)
        other = build_models(config, policy)["other"].policy
        assert list(other.parameters_to_train()) == list(policy.parameters_to_train())
        assert any("visual" in name for name in other.parameters_to_train()) == (trained == "true")
