"""An experiment on which prompts to train on: a first run gives their learning curves, a second learns from a few.

The training prompts are 256 calculations: a third are so short that the base mostly solves them, a third far longer
than it can do, and a third between. Both runs begin with the base, and the second has as many answers, of few prompts
or of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np

from mmrl.build.datasets import load_samples
from mmrl.config import load_config
from mmrl.data.jsonl import write_samples
from mmrl.data.sample import Sample
from mmrl.evaluation.results import Evaluation
from mmrl.seeds import stream_seed
from mmrl.workflows.learning_curves import aligned_prompts
from mmrl.workflows.train import train

SIZES = {"sums-short": 85, "sums-train": 86, "sums-mostly-hard": 85}
"""The number of prompts from each split; the last one's are those that are long."""
QUIET = ("run.display=quiet", "run.pictures=0", "training.save_every=1000")


def learnt_from(
    seed: int,
    kept: Literal["aligned", "random", "all"] = "all",
    share: float = 0.16,
    iterations: int = 40,
    on: str = "shapeworld:sums-validation",
) -> dict[str, list[float]]:
    """Train on some of the prompts, and return how many answers to others are right.

    Args:
        seed: of both runs, and of a random choice.
        kept: the prompts with the best aligned curves, as many drawn at random, or all of them.
        share: of the prompts that are kept.
        iterations: of the second run.
        on: the samples that are evaluated.

    Returns:
        `numeric`: 1 for each of 512 right answers. `between`: the share of prompts learnt from that are neither short
        nor long.
    """
    chosen = _chosen(seed, kept, share)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.jsonl"
        write_samples(chosen, path)
        run = _train(
            seed + 1, Path(folder), f"data.path={path}", f"data.validation={on}", f"training.iterations={iterations}"
        )
        values = Evaluation.load(run, iterations, images=False).by_prompt("numeric")[:, 0]
    between = {sample.id for sample in load_samples("shapeworld:sums-train")}
    return {
        "numeric": values.astype(float).tolist(),
        "between": [sum(sample.id in between for sample in chosen) / len(chosen)],
    }


def mixed_prompts() -> list[Sample]:
    """Return short, trained and long calculations, one after another."""
    found = {name: load_samples(f"shapeworld:{name}") for name in SIZES}
    found["sums-mostly-hard"] = [each for place, each in enumerate(found["sums-mostly-hard"]) if place % 5]
    return [sample for name, size in SIZES.items() for sample in found[name][:size]]


def _chosen(seed: int, kept: str, share: float) -> Sequence[Sample]:
    if kept == "aligned":
        return _aligned(seed, share)
    samples = mixed_prompts()
    if kept == "all":
        return samples
    order = np.random.default_rng(stream_seed(seed, "random prompts")).permutation(len(samples))
    return [samples[place] for place in order[: round(share * len(samples))]]


@cache
def _aligned(seed: int, share: float) -> Sequence[Sample]:
    """Return the prompts that are kept after a first run, which is evaluated on its prompts each tenth iteration."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.jsonl"
        write_samples(mixed_prompts(), path)
        evaluated = ("evaluation.prompts=256", "evaluation.samples=4", "evaluation.every=10")
        run = _train(seed, Path(folder), f"data.path={path}", f"data.validation={path}", *evaluated)
        return aligned_prompts(run, share).kept


def _train(seed: int, folder: Path, *overrides: str) -> Path:
    fixed = (*QUIET, "evaluation.greedy=false", f"seed={seed}", f"run.dir={folder}/run")
    return train(load_config("shapes-reasoning", [*fixed, *overrides]))
