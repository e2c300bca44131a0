"""A model that looks and one that draws in one run: each in its stages, and resumed to the bit after kill -9."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mmrl.build.load_models import build_learners, build_models, load_trained
from mmrl.build.policies import build_policy
from mmrl.config.loading.load import load_config
from mmrl.data.sample import Sample
from tests.training.killed_runs import KilledRun
from tests.training.quickstart_run import assert_same

WORLD = "mmrl_shapeworld.worlds.redrawn_scenes"
SAMPLING = (
    "{steps: 3, guidance_scale: 1.0, pipeline_args: {max_sequence_length: 1}, transition: {name: flow_sde}, "
    "window: {high: 2}}"
)
PAINTER = f"{{kind: pipeline, model: shapeworld, train: lora, optimizer: {{lr: 1.0e-3}}, sampling: {SAMPLING}}}"
WRITTEN = "{name: written, by: policy, reader: {name: captions}}"
WORDS = [
    "policy.model=shapeworld:vlm-worlds",
    f"models={{painter: {PAINTER}, before: {{of: painter, every: 2}}}}",
    f"stages=[{{iterations: 1}}, {{iterations: 2, train: painter, rewards: [{{name: '{WORLD}:SceneReconstruction'}}], "
    f"data: {{groups: 2, group_size: 3, prompts: {WRITTEN}}}}}]",
    "rounds=2",
    f"rewards=[{{name: '{WORLD}:SceneReconstruction', args: {{painter: painter}}}}]",
    "data={path: 'shapeworld:described-train', groups: 2, group_size: 3}",
    "training={iterations: 7, save_every: 1}",
    "evaluation={}",
    "optimizer={lr: 1.0e-3}",
    "sampling.max_new_tokens=12",
    "run={dir: run, display: plain}",
]


RUN = KilledRun("shapes-vlm", WORDS)


@pytest.fixture(scope="module")
def undisturbed(fork_server, tmp_path_factory) -> tuple[Path, float]:
    return RUN.undisturbed(fork_server, tmp_path_factory.mktemp("kinds"))


@pytest.mark.integration
def test_each_model_learns_in_its_stages_alone(undisturbed):
    run, _ = undisturbed
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [row for row in rows if row["kind"] == "train"]
    assert [row["stage"] for row in trained] == [0, 1, 1, 0, 1, 1, 2]
    assert all(row["prompts/written_share"] == 1.0 for row in trained if row["stage"] == 1)
    state = json.loads((run / "checkpoints/step-7/trainer/state.json").read_text())
    assert state["updates"] == 3 and state["others"]["painter"]["updates"] == 4
    folders = [run / "checkpoints" / f"step-{step}" for step in (6, 7)]  # between them the policy learns
    own, others = ([load_file(each / f"trainer/{name}.safetensors") for each in folders] for name in
                  ("parameters", "parameters.painter"))  # fmt: skip
    assert any(not torch.equal(own[0][name], own[1][name]) for name in own[0])
    assert all(torch.equal(others[0][name], others[1][name]) for name in others[0])
    assert (folders[1] / "models/painter/pytorch_lora_weights.safetensors").is_file()


@pytest.mark.slow  # of two models that write, one is killed every day: tests/training/test_two_models.py
@pytest.mark.parametrize("draw", range(8))
def test_a_kill_at_a_random_moment_changes_nothing(fork_server, undisturbed, tmp_path, draw):
    run, seconds = undisturbed
    RUN.kill(fork_server, tmp_path, draw, after=draw * 5 % 7, steps=7, seconds=seconds)
    RUN.finish(fork_server, tmp_path)
    assert_same(run, tmp_path / "run")


def drawing_words() -> list[str]:
    writer = "{kind: vlm, model: 'shapeworld:vlm-worlds', train: lora, sampling: {max_new_tokens: 12}}"
    prompts = "{name: written, by: writer, reader: {name: captions}}"
    return [
        f"models={{writer: {writer}}}",
        "stages=[{iterations: 1, train: writer, rewards: "
        f"[{{name: '{WORLD}:SceneReconstruction', args: {{painter: policy}}}}], algorithm: {{name: grpo}}}}]",
        f"rewards=[{{name: '{WORLD}:SceneReconstruction'}}]",
        f"data={{path: 'shapeworld:described-train', groups: 2, group_size: 3, prompts: {prompts}}}",
        "training={iterations: 2}",
        "evaluation={}",
        "sampling.steps=3",
        "run={dir: run, display: plain}",
    ]


@pytest.mark.slow
def test_a_painter_that_is_the_policy_learns_from_what_a_trained_model_writes(fork_server, tmp_path):
    child = fork_server.start(tmp_path, "train", "quickstart", *drawing_words())
    assert child.wait() == 0, child.output_text()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows if row["kind"] == "train"] == [0, 1]
    assert rows[-1]["prompts/written_share"] == 1.0
    assert (tmp_path / "run/checkpoints/step-2/models/writer/adapter_model.safetensors").is_file()


@pytest.mark.integration
def test_rewards_see_a_painter_as_it_is_now_and_its_snapshot_as_it_was(undisturbed):
    config = load_config("shapes-vlm", WORDS)
    torch.manual_seed(0)
    policy = build_policy(config.policy, config.sampling)
    models = build_models(config, policy)
    learner = build_learners(config, models)["painter"]
    assert learner.sampling == "denoising" and all("lora" in name for name in learner.parameters)
    assert set(models.painters) == {"painter", "before"} and set(models.scorers) == {"policy"}
    sample = [Sample(id="a", prompt="a red circle"), Sample(id="b", prompt="two blue squares")]

    def drawn(name: str, seed: int = 3) -> list[bytes]:
        return [picture.tobytes() for found in models.painters[name].pictures(sample, seed, 2) for picture in found]

    first = drawn("painter")
    assert len(set(first)) == 4 and first == drawn("before") and first != drawn("painter", 4)
    load_trained(config, policy, models, undisturbed[0] / "checkpoints/step-7")
    assert drawn("painter") != first
    models.finish_iteration(2)
    assert drawn("before") == drawn("painter")
