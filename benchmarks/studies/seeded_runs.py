"""Shared parts of studies over seeds: training the missing runs, a row of a table, and a curve."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mmrl.evaluation.results import RewardChange
from mmrl.evaluation.run_reader import RunRecord
from mmrl.statistics.intervals import interval_text


def folder(runs: Path, arm: str, seed: int) -> Path:
    """Return the folder of a run."""
    return runs / arm / f"seed-{seed}"


def finished(runs: Path, arm: str, seeds: int) -> bool:
    """Return True if all seeds of an arm are trained."""
    return all((folder(runs, arm, seed) / "report.html").exists() for seed in range(seeds))


def train(recipe: str, arm: str, seed: int, runs: Path, overrides: Sequence[str]) -> None:
    """Train one run, or go on with it; nothing to do where it is finished. CPU seconds are kept in `cpu.json`."""
    run = folder(runs, arm, seed)
    if (run / "report.html").exists():
        return
    started = (run / "config.yaml").exists()
    what = ["--resume", str(run)] if started else [recipe, f"seed={seed}", f"run.dir={run}", *overrides]
    before = os.times()
    subprocess.run([sys.executable, "-m", "mmrl", "train", *what], check=True)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    kept = run / "cpu.json"
    earlier = json.loads(kept.read_text()) if kept.exists() else 0.0
    kept.write_text(json.dumps(earlier + spent))


def cpu_minutes(run: Path) -> float:
    """Return the CPU time of a run in minutes, evaluations included."""
    return float(json.loads((run / "cpu.json").read_text()) / 60)


def row(title: str, changes: Sequence[RewardChange]) -> str:
    """Return a table row of one measure over the seeds: after, and the paired difference with its interval."""
    cells = "".join(f" {c.after:.3f} ({c.difference.mean:+.3f}, {interval_text(c.difference)}) |" for c in changes)
    mean = float(np.mean([c.difference.mean for c in changes]))
    return f"| {title} | {changes[0].before:.3f} |{cells} **{mean:+.3f}** |"


def mean_curve(records: Sequence[RunRecord], source: str, width: int = 10) -> list[float]:
    """Return a source's mean reward over seeds in steps of `width` iterations, which need not all hold the source."""
    steps: dict[int, list[float]] = {}
    for record in records:
        curve = record.curve("train", f"reward_by_source/{source}")
        for step, value in zip(curve.steps, curve.values, strict=True):
            if np.isfinite(value):
                steps.setdefault((step - 1) // width, []).append(value)
    return [float(np.mean(steps[part])) for part in sorted(steps)]
