"""An experiment on the order of prompts: by the angles of the base's hidden states, or at random.

Half of the prompts are calculations that the base sometimes does, and half are far too long for it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from mmrl.build.datasets import load_samples
from mmrl.config import load_config
from mmrl.data.jsonl import write_samples
from mmrl.data.sample import Sample
from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.training.run.trackers import read_metrics
from mmrl.workflows.prompt_angles import with_angles
from mmrl.workflows.train import train

PROMPTS = 400
"""The number of prompts of training."""
QUIET = ("run.display=quiet", "run.pictures=0", "training.save_every=1000", "evaluation.greedy=false")


def learnt_from(
    seed: int,
    order: Literal["angles", "random"] = "random",
    iterations: int = 24,
    every: int = 8,
    too_long: float = 0.5,
    on: str = "shapeworld:sums-validation",
    settings: dict[str, Any] | None = None,
) -> dict[str, list[float]]:
    """Train on prompts in an order, and return how fast answers to others become right.

    Args:
        seed: of the run.
        order: around a place in the ranking by angles that moves (`data.prompts: angle_concentration`), or shuffled.
        iterations: of the run.
        every: the iterations between two evaluations.
        too_long: the share of the prompts of training that the base cannot do.
        on: the samples that are evaluated.
        settings: of `angle_concentration`.

    Returns:
        `numeric`: for each evaluated prompt the share of the evaluations after training began in which its answer is
        right, and `last` whether it is in the last one. `grad_norm`: the mean norm of the gradient over iterations.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.jsonl"
        write_samples(_ranked(too_long), path)
        chosen = {"name": "angle_concentration", **(settings or {})} if order == "angles" else {"name": "shuffled"}
        prompts = ", ".join(f"{key}: {value}" for key, value in chosen.items())
        overrides = (
            *(f"data.path={path}", f"data.prompts={{{prompts}}}", f"data.validation={on}"),
            *(f"training.iterations={iterations}", f"evaluation.every={every}"),
            *(f"seed={seed}", f"run.dir={folder}/run"),
        )
        run = train(load_config("shapes-reasoning", [*QUIET, *overrides]))
        after = [step for step in evaluation_steps(run) if step]
        right = np.stack([Evaluation.load(run, step, images=False).by_prompt("numeric")[:, 0] for step in after])
        norms = [float(row["grad_norm"]) for row in read_metrics(run) if row["kind"] == "train"]
    return {
        "numeric": right.mean(axis=0, dtype=float).tolist(),
        "last": right[-1].astype(float).tolist(),
        "grad_norm": [float(np.mean(norms))],
    }


@cache
def _ranked(too_long: float) -> list[Sample]:
    """Return the prompts of training with their angles under the base, which all seeds share."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.jsonl"
        write_samples(partly_too_long(too_long), path)
        return with_angles(load_config("shapes-reasoning", [f"data.path={path}"]))


def partly_too_long(share: float) -> list[Sample]:
    """Return calculations of 2 to 6 operands and a share in [0, 1) of 14 to 20, which the base cannot do."""
    long = [sample for place, sample in enumerate(load_samples("shapeworld:sums-mostly-hard")) if place % 5]
    solvable = load_samples("shapeworld:sums-train")
    if not share:
        return solvable[:PROMPTS]
    count = min(len(long), round(share * PROMPTS))
    return [*solvable[: round(count * (1 - share) / share)], *long[:count]]
