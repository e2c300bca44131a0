"""An experiment for studies of extrapolated weights: sums are answered by a policy that moved on without training.

For each seed, adapters of the base `shapeworld:sums` learn from a rule, once for all arms, and a checkpoint is kept
every few iterations. Arms differ in how the weights go on from the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch

from mmrl.build.datasets import load_samples
from mmrl.finetuning.weight_trajectories import (
    Changes,
    PredictorSettings,
    adapted_layers,
    adapter_changes,
    linear_extrapolation,
    predicted_extrapolation,
    rank_one_extrapolation,
)
from mmrl_shapeworld.reasoning.trained_sums import answered, trained_policy, untrained_policy

Form = Literal["none", "linear", "rank_one", "predicted"]
ADAPTERS = "policy={kind: vlm, model: 'shapeworld:sums', train: lora, lora: {rank: 8, alpha: 16}}"


def extrapolated_answers(
    seed: int,
    on: str,
    form: Form,
    ahead: int = 4,
    window: int = 3,
    iterations: int = 40,
    every: int = 4,
    lr: float = 3e-3,
    prompts: int = 256,
) -> dict[str, Sequence[float]]:
    """Answer sums by a policy whose weights have been extrapolated from the checkpoints of its training.

    Args:
        seed: of the training, of the predictor and of the answers.
        on: the prompts, development or validation.
        form: `none`: as trained. `linear`: along the mean of the last moves. `rank_one`: the rank-one parts alone,
            along theirs. `predicted`: these, as a predictor says that has learnt from the trajectory (NExt).
        ahead: the checkpoints by which the weights go on.
        window: the last moves that count.
        iterations: of training, of 16 prompts with 8 answers each.
        every: iterations between checkpoints.
        lr: the learning rate of the adapters.
        prompts: how many are answered, once each.

    Returns:
        `right`, 1 for a right answer, and `tokens`, its length.
    """
    path = trajectory(seed, iterations, every, lr)
    policy = untrained_policy(ADAPTERS)
    changes = path[-1]
    if form == "linear":
        changes = linear_extrapolation(path, ahead, window)
    elif form == "rank_one":
        changes = rank_one_extrapolation(path, ahead, window)
    elif form == "predicted":
        changes = predicted_extrapolation(path, ahead, PredictorSettings(window=window, seed=seed))
    with torch.no_grad():
        for name, layer in adapted_layers(policy.vlm.model).items():
            layer.get_base_layer().weight += changes[name]
    return answered(policy, load_samples(f"shapeworld:sums-{on}")[:prompts], seed)


@cache
def trajectory(seed: int, iterations: int, every: int, lr: float) -> list[Changes]:
    """Return the changes of all adapted layers at each checkpoint of a training, always the same."""
    with TemporaryDirectory() as folder:
        settings = f"training={{iterations: {iterations}, save_every: {every}, keep_every: {every}}}"
        run = Path(folder) / "run"
        policy = trained_policy(ADAPTERS, f"optimizer.lr={lr}", f"seed={seed}", settings, run=run)
        path: list[Changes] = []
        for step in range(every, iterations + 1, every):
            policy.load(run / "checkpoints" / f"step-{step}")
            path.append(dict(adapter_changes(policy.vlm.model)))
        return path
