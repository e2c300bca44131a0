"""Where numbers go: metrics.jsonl always, TensorBoard and Weights & Biases on request."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mmrl.training.errors import RunError

METRICS = "metrics.jsonl"


class Tracker(Protocol):
    """Takes numbers, step by step."""

    def log(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Record the numbers of one step; `kind` is train or evaluation."""
        ...

    def close(self) -> None:
        """Flush what is held back."""
        ...


class JsonlTracker:
    """One JSON object a line, flushed at once; NaN is written as null."""

    def __init__(self, run: Path) -> None:
        self._path = run / METRICS

    def log(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line."""
        row = {"kind": kind, "step": step} | {name: _finite(value) for name, value in metrics.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def close(self) -> None:
        """Nothing is held back."""

    def forget_after(self, step: int) -> None:
        """Drop lines of later steps, which a resumed run will write again."""
        if self._path.exists():
            kept = [line for line in self._path.read_text(encoding="utf-8").splitlines() if _step(line) <= step]
            self._path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")


class TensorBoardTracker:
    """Scalars for TensorBoard (extra `track`)."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as why:
            raise RunError('run.trackers has tensorboard: pip install "mmrl-suite[track]"') from why
        self._writer = SummaryWriter(str(run / "tensorboard"))

    def log(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Write scalars."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class WandbTracker:
    """Scalars for Weights & Biases (extra `track`)."""

    def __init__(self, run: Path, name: str, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as why:
            raise RunError('run.trackers has wandb: pip install "mmrl-suite[track]"') from why
        self._run = wandb.init(project="mmrl", name=name, dir=str(run), config=dict(config))

    def log(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Send scalars."""
        self._run.log({f"{kind}/{name}": value for name, value in metrics.items()} | {"step": step})

    def close(self) -> None:
        """Mark the run as finished."""
        self._run.finish()


def build_trackers(run: Path, names: Sequence[str], name: str, config: Mapping[str, Any]) -> list[Tracker]:
    """The trackers that a configuration names, after the one that always writes."""
    trackers: list[Tracker] = [JsonlTracker(run)]
    if "tensorboard" in names:
        trackers.append(TensorBoardTracker(run))
    if "wandb" in names:
        trackers.append(WandbTracker(run, name, config))
    return trackers


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _step(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (json.JSONDecodeError, KeyError):  # the line that a killed process was writing
        return sys.maxsize
