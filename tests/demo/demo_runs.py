"""Runs with real checkpoints of the embedded models, made in seconds: nothing is trained, parameters are shaken."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmrl.build.policies import build_policy, without_exploration
from mmrl.config.loading.load import dump_config, load_config
from mmrl.evaluation.results import Evaluation
from mmrl.training.run.checkpoints import Checkpoints, TrainerState
from mmrl.training.run.run_folder import create_run_folder


def make_run(
    folder: Path,
    recipe: str = "quickstart",
    steps: Sequence[int] = (10, 20),
    shake: float = 0.05,
    overrides: Sequence[str] = (),
) -> Path:
    """A run folder with a checkpoint at each step, a reward curve and two evaluations."""
    lora = [] if recipe == "shapes-vlm" else ["policy.train=lora", "policy.lora.rank=4", "policy.lora.alpha=8"]
    config = load_config(recipe, [*lora, "sampling.steps=4", *overrides] if lora else list(overrides))
    create_run_folder(folder, dump_config(config))
    policy = build_policy(config.policy, without_exploration(config.sampling), config.media)
    generator = torch.Generator().manual_seed(0)
    for number, step in enumerate(steps, start=1):
        with torch.no_grad():
            for parameter in policy.parameters_to_train().values():
                parameter += shake * torch.randn(parameter.shape, generator=generator) * (1 if lora else 0.2)
        Checkpoints(folder).save(policy, TrainerState(step, {}, {}), score=float(number))
    write_curve(folder, max(steps))
    evaluate(folder, 0, 0.3, 0.5)
    evaluate(folder, max(steps), 0.6, 0.2)
    return folder


def write_curve(folder: Path, last: int) -> None:
    """A reward that rises evenly, a line an iteration."""
    lines = [{"kind": "train", "step": step, "reward/total": step / last, "kl": 0.01} for step in range(1, last + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def evaluate(folder: Path, step: int, trained: float, heldout: float, extra: Mapping[str, Any] | None = None) -> None:
    """An evaluation of twelve prompts of two sources, whose trained and held-out rewards lie about these means."""
    names = {"shapeworld": trained, "shapeworld_heldout": heldout, "total": trained}
    random = np.random.default_rng(1)
    noise = random.normal(0, 0.02, 12)
    wave = np.linspace(-0.45, 0.1, 12) * (step > 0)
    columns = {
        name: np.float32(mean + noise + (wave if name != "shapeworld_heldout" else 0)) for name, mean in names.items()
    }
    Evaluation(
        step=step,
        draws=1,
        ids=tuple(f"p{number}" for number in range(12)),
        prompts=tuple(f"a red circle number {number}" for number in range(12)),
        sources=tuple(("single", "pair")[number % 2] for number in range(12)),
        values=columns,
        status={name: ["ok"] * 12 for name in names},
        images=[Image.new("RGB", (16, 16), (20 * number, 40, 90)) for number in range(12)],
    ).save(folder, pictures=4)
