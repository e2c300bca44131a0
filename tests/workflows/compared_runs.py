"""Runs with several checkpoints, whose parameters were shaken rather than trained, and a reward that fails at times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mmrl.build.policies import build_policy
from mmrl.config.loading.load import dump_config
from mmrl.config.train import TrainConfig
from mmrl.training.run.checkpoints import Checkpoints, TrainerState

DRAWING = {
    "policy": {"model": "shapeworld", "train": "lora", "lora": {"rank": 4, "alpha": 8}},
    "sampling": {"steps": 2, "guidance_scale": 1.0, "pipeline_args": {"max_sequence_length": 1}},
    "data": {"path": "shapeworld:train", "groups": 2, "group_size": 2},
}
LOOKING = {
    "policy": {"kind": "vlm", "model": "shapeworld", "train": "lora", "lora": {"rank": 4, "alpha": 8}},
    "sampling": {"kind": "tokens", "max_new_tokens": 16},
    "data": {"path": "shapeworld:vlm-train", "groups": 2, "group_size": 2},
}
REWARDED = {"rewards": [{"name": "shapeworld"}]}
FLAKY = '''
def flaky(item):
    """Fails where a prompt names a square."""
    if "square" in item.prompt:
        raise ConnectionError("the judge is down")
    return 0.5
'''


def make_run(
    folder: Path, settings: Mapping[str, Any], steps: Sequence[int] = (4, 6), shift: float = 0.05, seed: int = 0
) -> Path:
    """A run with a checkpoint at each of some steps, the first of them the best, each further from the base."""
    config = TrainConfig.model_validate({"name": folder.name} | settings, strict=False)
    policy = build_policy(config.policy, config.sampling, config.media)
    random = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    for step in steps:
        with torch.no_grad():
            for parameter in policy.parameters_to_train().values():
                parameter += shift * torch.randn(parameter.shape, generator=random)
        Checkpoints(folder).save(policy, TrainerState(step, {}, {}), score=1 / step)
    return folder
