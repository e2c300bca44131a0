"""A short run of joint GRPO: a small vision-language model writes captions in full, and a small painter draws them."""

from __future__ import annotations

from pathlib import Path

from mmrl.config.loading.load import load_config
from mmrl.workflows.train import train

SAMPLING = (
    "{steps: 3, guidance_scale: 1.0, pipeline_args: {max_sequence_length: 1}, transition: {name: flow_sde}, "
    "window: {high: 2}}"
)
PAINTER = f"models={{painter: {{kind: pipeline, model: shapeworld, train: lora, sampling: {SAMPLING}}}}}"


def joint_run(folder: Path, *more: str, resume: bool = False) -> Path:
    words = [
        "policy.model=shapeworld:vlm-worlds", PAINTER, "algorithm={name: joint_grpo, picture: {clip: 0.01}}",
        "rewards=[{name: shapeworld}]", "pretraining={iterations: 1, path: 'shapeworld:terse-taught', lr_scale: 2}",
        "data={path: 'shapeworld:terse-train', validation: 'shapeworld:terse-development', groups: 2, group_size: 3}",
        "evaluation={prompts: 3, greedy: false}", "sampling.max_new_tokens=12", "optimizer.lr=1e-3",
        f"run.dir={folder}", "run.display=quiet", "training={iterations: 3, save_every: 1, keep_every: 1}", *more,
    ]  # fmt: skip
    return train(load_config("shapes-vlm", words), folder if resume else None)
