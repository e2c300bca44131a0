"""The budget of a study as settings of its arms: iterations, or a number of tokens after which training ends."""

from __future__ import annotations

from pathlib import Path

from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.train import TrainConfig
from mmrl.errors import ConfigError, RunError
from mmrl.evaluation.run_reader import read_run
from mmrl.studies.study import Study


def budget_overrides(study: Study) -> list[str]:
    """Return the settings that the budget adds to every arm, as they are written on the command line."""
    budget = study.config.budget
    return [] if budget is None or budget.tokens is None else [f"training.max_tokens={budget.tokens}"]


def planned_iterations(study: Study, config: TrainConfig) -> int:
    """Return the iterations that the budget allows; the recipe's where it states none, tokens or CPU-seconds.

    Raises:
        ConfigError: the rows of the budget are no whole number of iterations.
    """
    budget = study.config.budget
    if budget is not None and budget.iterations is not None:
        return budget.iterations
    if budget is None or budget.rows is None:
        return config.training.iterations
    each = BatchPlan.of(config).trajectories
    if budget.rows % each:
        raise ConfigError(f"budget.rows: {budget.rows} rows are no whole number of iterations of {each} rows")
    return budget.rows // each


def check_tokens(study: Study, arm: str, run: Path) -> None:
    """Refuse a run whose iterations ended before its tokens did.

    Raises:
        RunError: the run had fewer tokens than the budget allows, so that it cannot be compared with others.
    """
    budget = study.config.budget
    if budget is None or budget.tokens is None:
        return
    record = read_run(run)
    if (spent := sum(record.curve("train", "tokens").values)) < budget.tokens:
        raise RunError(
            f"{arm} had {spent:.0f} of {budget.tokens} tokens after its {record.iterations[0]} iterations: set "
            f"training.iterations higher in {study.path}"
        )
