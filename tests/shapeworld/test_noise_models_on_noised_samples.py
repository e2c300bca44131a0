"""Algorithms on noised samples, on the shipped Stable Diffusion 1.5, which predicts v."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from mmrl.config import load_config
from mmrl.workflows.train import train
from mmrl_shapeworld.captions import KINDS, sample_caption, sample_scene
from mmrl_shapeworld.scenes import draw

SMALL = ["data.groups=1", "data.group_size=4", "data.micro_batch=4", "sampling.steps=4", "sampling.window={}"]
ODE = ["sampling.transition={name: ode}", "data.validation=null", "data.heldout=null", "evaluation={}"]
ALGORITHMS = {
    "nft": "{name: diffusion_nft}",
    "awm": "{name: awm, weighting: epsilon, num_noise_levels: 2}",
    "rwr": "{name: flow_rwr, num_noise_levels: 2}",
    "imitation": "{name: rejection_sft, num_noise_levels: 2}",
    "online dpo": "{name: online_dpo, weighting: epsilon, num_noise_levels: 2, beta: 2000}",
    "through the reward": "{name: draft, kl: {coef: 0.1, kind: velocity_mse}}",
}
EVERY_DAY = ("nft", "online dpo", "through the reward")
"""These have one of each kind of loss: of the velocity, of pairs, and of the gradient of a reward."""


def trained(run) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "train"]


@pytest.mark.integration
@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=[pytest.mark.slow] * (name not in EVERY_DAY)) for name in ALGORITHMS]
)
def test_velocity_training_updates_the_unet(algorithm, tmp_path):
    loop = [
        "training={iterations: 1}",
        "run.display=quiet",
        f"run.dir={tmp_path / 'run'}",
        f"algorithm={ALGORITHMS[algorithm]}",
    ]
    rewards = ["rewards=[{name: shapeworld_clip}]"] if algorithm == "through the reward" else []
    run = train(load_config("shapes-ddpo", [*SMALL, *ODE, *loop, *rewards]))
    (row,) = trained(run)
    assert row["replay_gap"] == 0 and row["grad_norm"] > 0


@pytest.mark.slow
def test_diffusion_dpo_prefers_right_images(tmp_path):
    """Offline pairs, the error of the noise as in the paper: after a few updates the loss is below log 2, its start."""
    chance = np.random.default_rng(0)
    captions = [sample_caption(chance, KINDS) for _ in range(8)]
    for row, caption in enumerate(captions):
        draw(sample_scene(caption, chance)).save(tmp_path / f"{row}.png")
    lines = [
        {"id": str(row), "prompt": str(caption)}
        | {name: {"image": f"{at % 8}.png"} for name, at in (("chosen", row), ("rejected", row + 1))}
        for row, caption in enumerate(captions)
    ]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = [f"data={{path: {pairs}, groups: 8, micro_batch: 16}}", "rewards=[]", *ODE]
    learning = ["algorithm={name: dpo, weighting: epsilon, beta: 2000, num_noise_levels: 2}", "optimizer={lr: 5.0e-4}"]
    loop = ["training={iterations: 12}", "sampling.window={}", "run.display=quiet", f"run.dir={tmp_path / 'run'}"]
    losses = [row["loss"] for row in trained(train(load_config("shapes-ddpo", [*data, *learning, *loop])))]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-3)
    assert sum(losses[-3:]) / 3 < 0.6
