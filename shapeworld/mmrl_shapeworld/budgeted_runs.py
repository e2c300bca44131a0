"""An experiment on updates of equally many tokens: how evenly the norm of the gradient runs, and what is learnt."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

from mmrl.config import load_config
from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.training.run.trackers import read_metrics
from mmrl.workflows.train import train

QUIET = ("run.display=quiet", "run.pictures=0", "training.save_every=1000")


def trained_with(
    seed: int, changes: dict[str, Any], common: dict[str, Any], recipe: str = "shapes-vlm"
) -> dict[str, list[float]]:
    """Train, and return how evenly it went.

    Args:
        seed: of the run.
        changes: the keys of the run's configuration that this arm sets, by dotted name.
        common: those that all arms set.
        recipe: what they change.

    Returns:
        `norm_spread`: `relative_spread` of the norms of the gradients, before clipping. `norm_peak`: the largest over
        their median. `total`: the reward of each evaluated prompt at the end.
    """
    with TemporaryDirectory() as folder:
        keys = {"seed": seed, "run.dir": f"{folder}/run"} | common | changes
        run = train(load_config(recipe, [*QUIET, *(f"{key}={json.dumps(value)}" for key, value in keys.items())]))
        norms = [row["grad_norm"] for row in read_metrics(run) if row.get("grad_norm")]
        last = Evaluation.load(run, evaluation_steps(run)[-1], images=False).by_prompt("total")[:, 0]
    median = sorted(norms)[len(norms) // 2]
    return {
        "norm_spread": [relative_spread(norms)],
        "norm_peak": [max(norms) / median],
        "total": last.astype(float).tolist(),
    }


def relative_spread(values: Sequence[float]) -> float:
    """Return the standard deviation of the logarithms of a series about its slow course, all of whose values are > 0.

    It is the root of half the mean squared step (von Neumann's estimate), on which a trend has hardly any influence.

    >>> round(relative_spread([1.0, math.e, 1.0, math.e]), 4)
    0.7071
    """
    steps = [math.log(later / earlier) for earlier, later in pairwise(values)]
    return math.sqrt(sum(step**2 for step in steps) / len(steps) / 2)
