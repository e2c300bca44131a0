"""Run folders with a checkpoint whose parameters were shaken, and evaluations, in the time of loading a tiny model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmrl.build.policies import AnyPolicy, build_policy
from mmrl.config.loading.load import dump_config
from mmrl.config.train import TrainConfig
from mmrl.evaluation import Evaluation
from mmrl.training.run.checkpoints import Checkpoints, TrainerState

STEP = 4
DATA = {"path": "shapeworld:train", "validation": "shapeworld:validation", "groups": 2, "group_size": 2}
LOOKING = {
    "data": {"path": "shapeworld:vlm-train", "validation": "shapeworld:vlm-validation", "groups": 2, "group_size": 2},
    "sampling": {"kind": "tokens"},
}
LORA = {"train": "lora", "lora": {"rank": 4, "alpha": 8}}


def trained_run(folder: Path, settings: Mapping[str, Any], shift: float = 0.05) -> tuple[Path, AnyPolicy]:
    """A run of these settings and its policy, whose parameters are all off the base's, by about `shift`.

    Equal settings give equal parameters, independent of the tests that ran before.
    """
    config = TrainConfig.model_validate({"name": folder.name, "data": DATA} | settings, strict=False)
    with torch.random.fork_rng(devices=[]):  # the first factor of each adapter is drawn at random
        torch.manual_seed(0)
        policy = build_policy(config.policy, config.sampling)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters_to_train().values():
            parameter += shift * torch.randn(parameter.shape, generator=random)
    return write_run(folder, config, policy), policy


def write_run(folder: Path, config: TrainConfig, policy: Any) -> Path:
    """The folder of a run that ended at STEP with this policy."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    Checkpoints(folder).save(policy, TrainerState(STEP, {}, {}), score=0.5)
    return folder


def evaluated(run: Path, step: int, trained: float, observed: float, pictures: int = 0) -> Path:
    """Add an evaluation of 40 prompts with about these means of `redness` and `held`."""
    random = np.random.default_rng(0)  # the same prompts each time
    values = {
        "redness": (trained + random.normal(0, 0.1, 40) + step * random.normal(0, 0.01, 40)).astype(np.float32),
        "held": (observed + random.normal(0, 0.1, 40) + step * random.normal(0, 0.01, 40)).astype(np.float32),
    }
    values["total"] = values["redness"]
    found = Evaluation(
        step=step,
        draws=1,
        ids=tuple(f"p{n}" for n in range(40)),
        prompts=tuple(f"a red dot {n}" for n in range(40)),
        sources=("dots",) * 40,
        values=values,
        status={name: ["ok"] * 40 for name in values},
        images=[Image.new("RGB", (8, 8), (200, step, 0)) if n < pictures else None for n in range(40)],
    )
    found.save(run, pictures=pictures)
    with (run / "metrics.jsonl").open("a") as file:
        for line in ({"kind": "train", "step": step, "reward/redness": trained}, found.metrics()):
            file.write(json.dumps({"kind": "evaluation", "step": step} | dict(line)) + "\n")
    return run
