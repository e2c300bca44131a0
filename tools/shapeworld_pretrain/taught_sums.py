"""Teaches the model of sums to write in full, by traces that are right but for one habit.

Equal seeds make equal weights, on one thread of one machine.

python -m tools.shapeworld_pretrain taught-sums --out DIR    # a quarter of a minute
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from mmrl.config.loading.load import load_config
from mmrl.workflows.train import train as train_recipe

SETTINGS = (
    *("algorithm={name: sft}", "rewards=[]", "data.path=shapeworld:sums-habitual", "data.groups=32"),
    *("data.validation=null", "evaluation.greedy=false", "run.pictures=0", "seed=100"),
)


def train(folder: Path, iterations: int = 100) -> None:
    """Train, and save the model with its processor in `folder`."""
    with tempfile.TemporaryDirectory() as runs:
        lasting = (f"training.iterations={iterations}", f"training.save_every={iterations}", f"run.dir={runs}/run")
        run = train_recipe(load_config("shapes-reasoning", [*SETTINGS, *lasting]))
        shutil.copytree(run / "checkpoints" / f"step-{iterations}", folder, ignore=shutil.ignore_patterns("trainer"))
