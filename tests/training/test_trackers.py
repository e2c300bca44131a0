"""Numbers reach metrics.jsonl, TensorBoard and Weights & Biases."""

from __future__ import annotations

import builtins
import json

import pytest

from mmrl.errors import RunError
from mmrl.training.run.trackers import JsonlTracker, build_trackers


def test_jsonl_tracker_writes_nan_as_null(tmp_path):
    tracker = JsonlTracker(tmp_path)
    tracker.log("train", 1, {"reward/total": 0.5, "kl": float("nan")})
    tracker.log("evaluation", 1, {"evaluation/total": 0.25})
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == [
        {"kind": "train", "step": 1, "reward/total": 0.5, "kl": None},
        {"kind": "evaluation", "step": 1, "evaluation/total": 0.25},
    ]


def test_truncate_removes_later_and_incomplete_lines(tmp_path):
    tracker = JsonlTracker(tmp_path)
    for step in (1, 2, 3):
        tracker.log("train", step, {"x": step})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    tracker.truncate_after(2)
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [1, 2]


def test_tensorboard_reads_written_scalars(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for tracker in build_trackers(tmp_path, ["tensorboard"], "name", {}):
        for step in (1, 2):
            tracker.log("train", step, {"reward/total": 0.5 * step})
        tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/reward/total")] == [(1, 0.5), (2, 1.0)]
    assert (tmp_path / "metrics.jsonl").exists()


def test_missing_extras_raise_with_their_command(tmp_path, monkeypatch):
    real = builtins.__import__

    def without_wandb(name, *args, **kwargs):
        if name == "wandb":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_wandb)
    with pytest.raises(RunError, match=r'pip install "mmrl-suite\[track\]"'):
        build_trackers(tmp_path, ["wandb"], "name", {})
