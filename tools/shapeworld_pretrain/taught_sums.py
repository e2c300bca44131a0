"""Teaches the model of sums by imitation: a habit, two ways to calculate, or the form of an answer to a puzzle.

Equal seeds make equal weights, on one thread of one machine.

python -m tools.shapeworld_pretrain taught-sums --out DIR    # a quarter of a minute
python -m tools.shapeworld_pretrain conventions --out DIR    # three minutes
python -m tools.shapeworld_pretrain countdown --out DIR      # two minutes on a busy core
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from mmrl.config.loading.load import load_config
from mmrl.workflows.train import train as train_recipe

SETTINGS = (
    *("algorithm={name: sft}", "rewards=[]", "data.validation=null", "evaluation.greedy=false", "run.pictures=0"),
    "seed=100",
)
DEMONSTRATIONS = {
    "taught-sums": (100, ("data.path=shapeworld:sums-habitual", "data.groups=32")),
    "conventions": (300, ("data.path=shapeworld:sums-conventions-habitual", "data.groups=64", "optimizer.lr=1.0e-3")),
    "countdown": (300, ("data.path=shapeworld:countdown-train", "data.groups=64", "optimizer.lr=1.0e-3")),
}
"""The iterations of each model, and its demonstrations."""


def train(folder: Path, name: str = "taught-sums", iterations: int | None = None) -> None:
    """Train, and save the model with its processor in `folder`; `iterations` None: as many as the model has."""
    known, settings = DEMONSTRATIONS[name]
    count = iterations or known
    with tempfile.TemporaryDirectory() as runs:
        lasting = (f"training.iterations={count}", f"training.save_every={count}", f"run.dir={runs}/run")
        run = train_recipe(load_config("shapes-reasoning", [*SETTINGS, *settings, *lasting]))
        shutil.copytree(run / "checkpoints" / f"step-{count}", folder, ignore=shutil.ignore_patterns("trainer"))
