"""Metric trackers: metrics.jsonl always, others if `run.trackers` names them, and the samples that a run added."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mmrl.atomic_io import append_durably, replace_text
from mmrl.data.growing_prompts import GrowingSampler
from mmrl.errors import RunError

METRICS = "metrics.jsonl"

logger = logging.getLogger(__name__)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics.jsonl: kind, step and numbers by name; empty if there is no such file.

    A last line that was cut off is left out: the run is being written, or was killed.

    Raises:
        RunError: an earlier line is damaged.
    """
    path = run / METRICS
    lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line) if line.strip() else None
            if row is not None:
                rows.append(row | {"kind": row["kind"], "step": int(row["step"])})
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                break
            raise RunError(f"{path}:{number}: is no line of metrics") from None
    return rows


class Tracker(Protocol):
    """A writer of metrics, step by step."""

    def log(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a step; `kind` is train or evaluation."""

    def close(self) -> None:
        """Flush buffered metrics."""

    def truncate_after(self, step: int) -> None:
        """Drop the metrics of later steps: the run continues from this step and logs them again."""


class JsonlTracker:
    """A writer of one JSON object per line, synced to disk at once; NaN is written as null."""

    def __init__(self, run: Path) -> None:
        """Open a run's metrics; an unfinished last line, left by a killed process, is removed."""
        self._path = run / METRICS
        if self._path.exists() and not (content := self._path.read_bytes()).endswith(b"\n"):
            os.truncate(self._path, content.rfind(b"\n") + 1)

    def log(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line.

        Raises:
            OSError: the line cannot be written; the file ends with the previous line.
        """
        row = {"kind": kind, "step": step} | {name: _finite(value) for name, value in metrics.items()}
        append_durably(self._path, (json.dumps(row) + "\n").encode())

    def close(self) -> None:
        """Do nothing: every line is on disk."""

    def truncate_after(self, step: int) -> None:
        """Drop lines of later steps."""
        if self._path.exists():
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
            replace_text(self._path, "".join(line for line in lines if _step(line) <= step), durable=True)


class TensorBoardTracker:
    """A writer of TensorBoard scalars (extra `track`)."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as err:
            raise RunError('run.trackers has tensorboard: pip install "mmrl-suite[track]"') from err
        self._folder = str(run / "tensorboard")
        self._open = SummaryWriter
        self._writer = SummaryWriter(self._folder)

    def truncate_after(self, step: int) -> None:
        """Mark later steps of earlier event files as purged."""
        self._writer.close()
        self._writer = self._open(self._folder, purge_step=step + 1)

    def log(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Write scalars."""
        for name, value in metrics.items():
            self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


class WandbTracker:
    """A writer of Weights & Biases scalars (extra `track`)."""

    def __init__(self, run: Path, name: str, config: Mapping[str, Any]) -> None:
        try:
            import wandb
        except ImportError as err:
            raise RunError('run.trackers has wandb: pip install "mmrl-suite[track]"') from err
        self.failure: type[Exception] = wandb.Error
        self._run = wandb.init(project="mmrl", name=name, dir=str(run), config=dict(config))

    def log(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Send scalars."""
        self._run.log({f"{kind}/{name}": value for name, value in metrics.items()} | {"step": step})

    def close(self) -> None:
        """Mark the run as finished."""
        self._run.finish()

    def truncate_after(self, step: int) -> None:
        """Do nothing: a resumed run is a separate run in Weights & Biases."""


class OptionalTracker:
    """A tracker that may fail: the first failure is logged, and later calls do nothing."""

    def __init__(self, tracker: Tracker, *failures: type[Exception]) -> None:
        self._tracker = tracker
        self._failures: tuple[type[Exception], ...] = (OSError, *failures)
        self._works = True

    def log(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        self._attempt(lambda: self._tracker.log(kind, step, metrics))

    def close(self) -> None:
        self._attempt(self._tracker.close)

    def truncate_after(self, step: int) -> None:
        self._attempt(lambda: self._tracker.truncate_after(step))

    def _attempt(self, call: Callable[[], None]) -> None:
        if not self._works:
            return
        try:
            call()
        except self._failures as err:
            self._works = False
            logger.warning("%s is disabled from here on: %s", type(self._tracker).__name__, err)


def build_trackers(run: Path, names: Sequence[str], name: str, config: Mapping[str, Any]) -> list[Tracker]:
    """Return the JSONL tracker and the trackers that a configuration names."""
    trackers: list[Tracker] = [JsonlTracker(run)]
    if "tensorboard" in names:
        trackers.append(OptionalTracker(TensorBoardTracker(run)))
    if "wandb" in names:
        wandb = WandbTracker(run, name, config)
        trackers.append(OptionalTracker(wandb, wandb.failure))
    return trackers


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _step(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (json.JSONDecodeError, KeyError):  # an unfinished line, left by a killed process
        return sys.maxsize


ADDED_PROMPTS = "added_prompts.jsonl"


class AddedPromptsTracker:
    """A writer of `added_prompts.jsonl`: all samples that were added, in order, with their last scores.

    The file is a data set: `data.path: runs/NAME/added_prompts.jsonl` trains on what another run has found. It is
    written anew, atomically, after an iteration that changed it; a resumed run writes it from its state. Those of
    earlier stages are `added_prompts-stage-0.jsonl` and so on.
    """

    def __init__(self, run: Path, sources: Sequence[GrowingSampler]) -> None:
        """`sources` are those of all stages that grow, in order."""
        path = run / ADDED_PROMPTS
        names = [path.with_stem(f"{path.stem}-stage-{number}") for number in range(len(sources) - 1)]
        self._files = dict(zip([*names, path], sources, strict=True))
        self._written: dict[Path, list[str]] = {}

    def log(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Write each file that has changed.

        Raises:
            OSError: a file cannot be written; it is as it was before.
        """
        for path, source in self._files.items():
            lines = source.lines(path.parent)
            if lines != self._written.get(path, []):
                replace_text(path, "".join(lines), durable=True)
                self._written[path] = lines

    def close(self) -> None:
        """Do nothing: every sample is on disk."""

    def truncate_after(self, step: int) -> None:
        """Write the samples that the resumed state has; a file without any is removed."""
        self._written = {}
        for path in self._files:
            path.unlink(missing_ok=True)
        self.log("train", step, {})
