"""A generator of image tokens with the decoder of its codec: each saved, and resumed to the bit after kill -9."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from PIL import ImageChops
from safetensors.torch import load_file

from mmrl.build.checkpoint_pool import CheckpointPool
from mmrl.build.model_references import resolve_model
from mmrl.build.policies import build_policy
from mmrl.generation.image_tokens.codecs import REFINER
from tests.training.killed_runs import KilledRun
from tests.training.quickstart_run import assert_same

NEAR = "perceptual: {name: 'mmrl_shapeworld.pictured_captions:ShapeDistance'}"
WORDS = [
    "models={decoder: {head: pixels, train: full, optimizer: {lr: 1.0e-3}}, "
    "judge: {head: discriminator, width: 8, train: full, optimizer: {lr: 1.0e-3}}}",
    f"stages=[{{iterations: 2, algorithm: {{name: reconstruction, discriminator: judge, {NEAR}}}, "
    "data: {groups: 5}}]",
    f"algorithm={{name: ranke, discriminator: judge, best: 2, {NEAR}}}",
    "rewards=[{name: shapeworld_clip}]",
    "data={path: 'shapeworld:pictured-train', groups: 2, group_size: 4}",
    "training={iterations: 6, save_every: 1}",
    "evaluation={}",
    "optimizer={lr: 1.0e-3}",
    "run={dir: run, display: plain}",
]
RUN = KilledRun("shapes-ar", WORDS)


@pytest.fixture(scope="module")
def undisturbed(fork_server, tmp_path_factory):
    return RUN.undisturbed(fork_server, tmp_path_factory.mktemp("decoder"))


@pytest.mark.slow
def test_the_decoder_learns_first_alone_and_then_with_the_generator(undisturbed):
    run, _ = undisturbed
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "train"]
    assert [row["stage"] for row in rows] == [0, 0, 1, 1, 1, 1]
    assert all("decoder/reconstruction" in row and "discriminator/loss" in row for row in rows)
    assert all(("decoder/chosen" in row) == (row["stage"] == 1) for row in rows)
    state = json.loads((run / "checkpoints/step-6/trainer/state.json").read_text())
    assert state["updates"] == 4 and state["others"]["decoder"]["updates"] == state["others"]["judge"]["updates"] == 6


@pytest.mark.integration
def test_a_checkpoint_draws_with_the_decoder_that_was_trained(undisturbed):
    run, _ = undisturbed
    model = resolve_model(str(run), "image_tokens")
    policy = build_policy(model.policy, model.sampling)
    codes = torch.arange(64)[None]
    plain = policy.image_model.decode(codes)[0]
    policy.load(model.checkpoint)
    assert ImageChops.difference(plain, policy.image_model.decode(codes)[0]).getbbox() is not None
    trained = load_file(model.checkpoint / "models/decoder/model.safetensors")
    saved = load_file(model.checkpoint / REFINER)
    assert all(torch.equal(trained[name], saved[name]) for name in trained) and trained["last.weight"].abs().max() > 0


@pytest.mark.integration
def test_a_model_in_memory_goes_back_to_the_decoder_of_each_checkpoint(undisturbed):
    run, _ = undisturbed
    model = resolve_model(str(run), "image_tokens")
    pool = CheckpointPool([replace(model, name="base", checkpoint=None), replace(model, name="trained")])
    codes, pictures = torch.arange(64)[None], []
    for name in ("base", "trained", "base", "trained"):
        with pool.activate(name) as policy:
            pictures.append(policy.image_model.decode(codes)[0].tobytes())
    assert pictures[0] == pictures[2] != pictures[1] == pictures[3]


@pytest.mark.slow  # of two models that write, one is killed every day: tests/training/test_two_models.py
@pytest.mark.parametrize("draw", range(8))
def test_a_kill_at_a_random_moment_changes_nothing(fork_server, undisturbed, tmp_path, draw):
    run, seconds = undisturbed
    RUN.kill(fork_server, tmp_path, draw, after=draw * 3 % 6, steps=6, seconds=seconds)
    RUN.finish(fork_server, tmp_path)
    assert_same(run, tmp_path / "run")
