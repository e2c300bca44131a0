"""The claims of the README and docs/results, trained on three seeds: `pytest -m slow tests/test_learning.py -n2`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmrl.config import load_config
from mmrl.evaluation import Summary, summarise
from mmrl.workflows.train import train

SEEDS = (0, 1, 2)


def check_claims(seen: Summary, heldout: Summary, least: float) -> None:
    """Strict correctness rises by `least` on the mean and on every seed; nothing that was held out falls."""
    assert seen.over_runs["shapeworld_strict"].mean >= least
    for run in seen.runs:
        assert run.changes["shapeworld_strict"].difference.low > 0
        assert run.changes["shapeworld_heldout"].difference.high > 0
        assert run.diversity_ratio >= 0.9
    for run in heldout.runs:
        assert run.changes["shapeworld_strict"].difference.high > 0
        assert run.changes["shapeworld_heldout"].difference.high > 0


@pytest.mark.slow
@pytest.mark.parametrize("recipe, least", [("quickstart", 0.15), ("flow-grpo", 0.10)])
def test_a_recipe_learns_on_three_seeds(recipe: str, least: float, tmp_path: Path):
    overrides = ["run.display=quiet", f"run.dir={tmp_path}/seed-{{seed}}"]
    runs = [train(load_config(recipe, [f"seed={seed}", *overrides])) for seed in SEEDS]
    check_claims(summarise(runs), summarise([run / "heldout" for run in runs]), least)


@pytest.mark.slow
def test_vlm_improves_at_its_tasks_on_three_seeds(tmp_path: Path):
    overrides = ["run.display=quiet", f"run.dir={tmp_path}/seed-{{seed}}"]
    runs = [train(load_config("shapes-vlm", [f"seed={seed}", *overrides])) for seed in SEEDS]
    for folders, least in ((runs, 0.06), ([run / "greedy" for run in runs], 0.02)):
        seen = summarise(folders)
        assert seen.over_runs["total"].mean >= least
        for run in seen.runs:
            assert run.changes["total"].difference.low > 0
            assert run.changes["total"].difference.n == 4096
            assert all(changes["total"].difference.verdict != "down" for changes in run.by_source.values())
