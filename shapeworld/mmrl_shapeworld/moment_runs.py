"""An experiment on how a policy learns to ground moments: by which reward, and on which prompts.

A base imitates the careless annotator of `mmrl_shapeworld.worlds.moments` first, once for all arms and seeds. Then it
is trained by GRPO on the temporal IoU or on hits, and on all prompts or on those whose rewards varied most
(Temporal-R1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from mmrl.build.datasets import load_samples
from mmrl.config import load_config
from mmrl.config.train import TrainConfig
from mmrl.data.jsonl import write_samples
from mmrl.data.sample import RewardChoice, Sample
from mmrl.evaluation.results import Evaluation
from mmrl.export.export import export
from mmrl.workflows.prompt_variance import varied_prompts
from mmrl.workflows.train import train

TRAINING = "shapeworld:moments-train"
SETTINGS = (
    *("policy.model=shapeworld:vlm-worlds", "rewards=[{name: temporal_iou}]", "sampling.max_new_tokens=12"),
    *("algorithm={name: grpo}", "data.groups=16", "data.group_size=8"),
    *("optimizer={lr: 7.0e-4, betas: [0.9, 0.95], ema: null}", "evaluation.greedy=false", "evaluation.batch=128"),
    *("run.display=quiet", "run.pictures=0", "training.save_every=1000"),
)
"""The changes of all runs to the recipe `shapes-vlm`."""


def grounded_moments(
    seed: int,
    kept: Literal["varied", "all"] = "all",
    threshold: float | None = None,
    share: float = 0.3,
    answers: int = 8,
    pool: int = 360,
    imitation: int = 160,
    iterations: int = 40,
    on: str = "shapeworld:moments-validation",
    prompts: int = 512,
) -> dict[str, list[float]]:
    """Train on some of the prompts, and return how well moments of other clips are found.

    Args:
        seed: of the training. The base and the prompts that are chosen by its answers are the same for all seeds.
        kept: the prompts whose temporal IoU varied most over repeated answers of the base, or all of them.
        threshold: the reward is 1 for an IoU of at least this, else 0; None: the IoU itself.
        share: of the prompts that are kept.
        answers: to each prompt, by which its variance is measured.
        pool: the prompts to choose from, the first of training.
        imitation: the iterations of the base, with 16 demonstrations each.
        iterations: of the training, with 8 answers to each of 16 prompts.
        on: the samples that are evaluated.
        prompts: how many of them.

    Returns:
        `iou` of one answer to each prompt, and `moment`, that where the thing is there for a while; `hit`, 1 for an IoU
        of a half or more; `among`, for each prompt learnt from, 1 where it is there for a while.
    """
    base = _imitated(imitation)
    chosen = _varied(imitation, pool, answers, share) if kept == "varied" else load_samples(TRAINING)[:pool]
    if threshold is not None:
        hit = (RewardChoice("temporal_iou", args={"threshold": threshold}),)
        chosen = [replace(sample, rewards=hit) for sample in chosen]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.jsonl"
        write_samples(chosen, path)
        run = train(
            _config(
                *(f"policy.model={base}", f"data.path={path}", f"data.validation={on}"),
                *(f"evaluation.prompts={prompts}", f"training.iterations={iterations}"),
                *(f"seed={seed}", f"run.dir={folder}/run"),
            )
        )
        found = Evaluation.load(run, iterations, images=False)
    values = dict(zip(found.ids, found.by_prompt("temporal_iou")[:, 0].astype(float).tolist(), strict=True))
    tested = load_samples(on)[:prompts]
    return {
        "iou": [values[sample.id] for sample in tested],
        "moment": [values[sample.id] for sample in tested if sample.source == "moment"],
        "hit": [float(values[sample.id] >= 0.5) for sample in tested],
        "among": [float(sum(sample.source == "moment" for sample in chosen) / len(chosen))],
    }


@cache
def _place() -> TemporaryDirectory[str]:
    """Return a folder that stays as long as the process."""
    return TemporaryDirectory()


@cache
def _imitated(iterations: int) -> Path:
    """Return the folder of a model that imitated the annotator."""
    place = Path(_place().name) / str(iterations)
    train(
        _config(
            *("algorithm={name: sft, aggregate: sequence}", f"data.path={TRAINING}", "data.validation=null"),
            *("optimizer.lr=1.5e-3", "optimizer.schedule=linear"),
            *(f"training.iterations={iterations}", "seed=0", f"run.dir={place}/run"),
        )
    )
    export(f"{place}/run", place / "base")
    return place / "base"


@cache
def _varied(imitation: int, pool: int, answers: int, share: float) -> Sequence[Sample]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.jsonl"
        write_samples(load_samples(TRAINING)[:pool], path)
        config = _config(f"policy.model={_imitated(imitation)}", f"data.path={path}", "seed=0")
        return varied_prompts(config, answers, share).kept


def _config(*overrides: str) -> TrainConfig:
    return load_config("shapes-vlm", [*SETTINGS, *overrides])
