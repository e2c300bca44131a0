"""Lines about the arms of a study, where there is no terminal."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

from rich.console import Console

from mmrl.studies import study_display


def test_a_line_comes_with_another_iteration_alone(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(study_display, "EVERY_S", 0.0)
    printed = StringIO()
    display = study_display.PlainStudyDisplay(Console(file=printed))
    metrics = tmp_path / "metrics.jsonl"
    display.start("with, seed 0", 3)
    display.update("with, seed 0", tmp_path)  # the run has no metrics yet
    for step in (1, 1, 2):
        metrics.write_text(json.dumps({"kind": "train", "step": step, "reward/total": 0.5}) + "\n")
        display.update("with, seed 0", tmp_path)
    assert printed.getvalue().splitlines() == [
        "with, seed 0: started, 3 iterations",
        "with, seed 0: iteration 1 of 3, reward +0.500",
        "with, seed 0: iteration 2 of 3, reward +0.500",
    ]
