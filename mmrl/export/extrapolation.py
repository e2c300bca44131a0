"""Weights that go on from a run's checkpoints without training, as NExt's predictor continues their trajectory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from mmrl.build.model_references import ModelRef
from mmrl.errors import ConfigError
from mmrl.finetuning.weight_trajectories import (
    PredictorSettings,
    adapter_changes,
    factor_paths,
    predicted_parts,
    with_moved_parts,
)


def trajectory_steps(model: ModelRef) -> list[int]:
    """Return the iterations of the checkpoints at equal distances, up to that of the model.

    Raises:
        ConfigError: the run has no LoRA, did not keep such checkpoints, or kept too few for the predictor.
    """
    run = model.run
    assert run is not None
    every = run.config.training.keep_every
    if model.policy.train != "lora":
        raise ConfigError(f"--ahead: {run.folder} trained whole weights (policy.train: full), and only the changes of "
                          "a LoRA are extrapolated: leave it out")  # fmt: skip
    if every is None:
        raise ConfigError(f"--ahead: {run.folder} kept no checkpoints at equal distances: train with "
                          "training.keep_every")  # fmt: skip
    if model.step % every:
        raise ConfigError(f"--ahead: iteration {model.step} is no multiple of training.keep_every, which is {every}: "
                          f"name {run.folder}@{model.step - model.step % every}")  # fmt: skip
    steps = list(range(every, model.step + 1, every))
    if missing := [step for step in steps if not (run.folder / "checkpoints" / f"step-{step}").is_dir()]:
        raise ConfigError(f"--ahead: {run.folder} has no checkpoint of iteration {missing[0]}")
    if len(steps) < (needed := PredictorSettings().window + 2):
        raise ConfigError(f"--ahead: the predictor needs {needed} checkpoints, and up to iteration {model.step} "
                          f"{run.folder} kept {len(steps)}")  # fmt: skip
    return steps


def extrapolated_changes(
    policy: Any, models: list[nn.Module], model: ModelRef, ahead: int
) -> Iterator[tuple[str, Tensor]]:
    """Yield the change of each adapted layer `ahead` checkpoints after the model's, [M, N] float32, by its name.

    Args:
        policy: The policy of the run, into which its checkpoints are loaded, the model's last.
        models: The modules of the policy that have adapters.
        model: The checkpoint from which the weights go on.
        ahead: A number of checkpoints at the distance `training.keep_every`.
    """
    steps = trajectory_steps(model)
    factors = factor_paths(_loaded(policy, models, model, steps), model.policy.lora.rank)
    return with_moved_parts(adapter_changes(*models), factors, predicted_parts(factors, ahead))


def _loaded(
    policy: Any, models: list[nn.Module], model: ModelRef, steps: list[int]
) -> Iterator[Iterator[tuple[str, Tensor]]]:
    assert model.run is not None
    for step in steps:
        policy.load(model.run.folder / "checkpoints" / f"step-{step}")
        yield adapter_changes(*models)
