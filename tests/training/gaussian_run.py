"""A run on the Gaussian policy that a process can be born for: begun or gone on with, and killed when a test says."""

from __future__ import annotations

from pathlib import Path

from mmrl.training.run.display import Display, PlainDisplay, QuietDisplay
from mmrl.training.training_loop import TrainingLoop
from tests.training.conftest import build_trainer
from tests.training.test_trainer import lines, without_timings

SCORES = {0: 0.0, 1: 0.5, 2: 0.9, 3: 0.7}


def trainer(run: Path, display: Display) -> TrainingLoop:
    """Three iterations with a moving average, a checkpoint after each, an evaluation after each but the last."""
    return build_trainer(
        run,
        optimizer={"ema": 0.9, "schedule": "cosine"},
        training={"iterations": 3, "save_every": 1},
        evaluate=lambda step: {"evaluation/total": SCORES[step]},
        evaluate_every=1,
        display=display,
    )


def train(run: str, tell: bool = False) -> None:
    """To the end, from wherever the folder stands."""
    made = trainer(Path(run), PlainDisplay() if tell else QuietDisplay())
    if (Path(run) / "metrics.jsonl").exists():
        made.resume()
    made.train()


def contents(run: Path) -> dict[str, object]:
    """All files by name, metrics without clocks."""
    files = {p.relative_to(run).as_posix(): p.read_bytes() for p in sorted(run.rglob("*")) if p.is_file()}
    return files | {"metrics.jsonl": without_timings(lines(run))}
