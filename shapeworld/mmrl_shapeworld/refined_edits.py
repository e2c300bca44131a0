"""An experiment on edits that are made again and again: each step edits the picture that the step before made."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from PIL import Image

from mmrl.build.policies import build_policy, without_exploration
from mmrl.config import load_config
from mmrl.data.media.uris import data_uri
from mmrl.data.sample import Sample
from mmrl.generation import PipelinePolicy
from mmrl.policy import batch_requests
from mmrl.training.run.run_folder import load_run
from mmrl.workflows.train import train
from mmrl_shapeworld import task_splits
from mmrl_shapeworld.editing import Edit, judge_edit

BATCH = 4


def refined_edits(
    seed: int,
    on: str = "validation",
    prompts: int = 64,
    depth: int = 6,
    trained_depth: int = 3,
    train_on: Mapping[str, Any] | None = None,
) -> dict[str, list[float]]:
    """Train the editor, and let it edit its own pictures.

    Args:
        seed: of training.
        on: the instructions that are followed, development or validation.
        prompts: the number of them.
        depth: the number of edits of a picture, one after another.
        trained_depth: the number that training has seen at most.
        train_on: keys of the recipe `shapes-edit` by dotted name; None: the editor is not trained.

    Returns:
        For each instruction `strict-1` to `strict-DEPTH`: 1 if the picture is strictly right after that number of
        edits, else 0; `past`, that after all of them less that after `trained_depth`; `last`, that after all of them.
    """
    if train_on is None:
        return measured(editor(None), on, prompts, depth, trained_depth)
    with TemporaryDirectory() as folder:
        keys = {"seed": seed, "run.dir": folder + "/run", "run.display": "quiet", "data.validation": None}
        config = load_config("shapes-edit", [f"{key}={_text(value)}" for key, value in (keys | dict(train_on)).items()])
        run = train(config)
        return measured(editor(run), on, prompts, depth, trained_depth)


def editor(run: Path | None) -> PipelinePolicy:
    """Return the editor that a run has trained; None: the one that ships."""
    config = load_config("shapes-edit")
    policy = cast(PipelinePolicy, build_policy(config.policy, config.sampling))
    if run is not None:
        policy.load(load_run(run).checkpoint())
    return policy


def measured(policy: PipelinePolicy, on: str, prompts: int, depth: int, trained_depth: int) -> dict[str, list[float]]:
    """Return the measures of `refined_edits` for a policy; the noise of a step is always the same."""
    samples = task_splits.samples(f"edit-{on}")[:prompts]
    strict: list[list[float]] = []
    for step in range(depth):
        pictures = edited(policy, samples, seed=1000 * (step + 1))
        strict.append([float(judge_edit(picture, Edit.from_dict(sample.answer)).strict)
                       for picture, sample in zip(pictures, samples, strict=True)])  # fmt: skip
        samples = [continued(sample, picture) for sample, picture in zip(samples, pictures, strict=True)]
    past = [last - before for last, before in zip(strict[-1], strict[trained_depth - 1], strict=True)]
    return {f"strict-{step}": values for step, values in enumerate(strict, start=1)} | {
        "past": past, "last": strict[-1]}  # fmt: skip


def edited(policy: PipelinePolicy, samples: Sequence[Sample], seed: int) -> list[Image.Image]:
    """Return one picture for each sample, without exploration."""
    config = load_config("shapes-edit")
    sampling = without_exploration(config.sampling)
    pictures: list[Image.Image] = []
    with torch.no_grad():
        for number, call in enumerate(batch_requests(samples, 1, BATCH, sampling=sampling)):
            pictures += policy.rollout(call, seed + number).media
    return pictures


def continued(sample: Sample, picture: Image.Image) -> Sample:
    """Return the sample with another picture to edit."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    return replace(sample, conditions={**sample.conditions, "image": data_uri(file.getvalue(), "image/png")})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
