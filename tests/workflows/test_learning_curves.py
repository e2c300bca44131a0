"""Prompts are chosen by their learning curves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.config import load_config
from mmrl.config.loading.load import dump_config
from mmrl.errors import EvaluationError
from mmrl.evaluation.results import Evaluation
from mmrl.workflows.learning_curves import aligned_prompts, curve_alignment

CURVES = {
    "learnt": [0.0, 0.5, 1.0],
    "never": [0.0, 0.0, 0.0],
    "always": [1.0, 1.0, 1.0],
    "follows": [0.1, 0.4, 0.8],
    "forgotten": [1.0, 0.5, 0.0],
}


def written_run(folder: Path, curves=CURVES, steps=3) -> Path:
    """Write a run that was evaluated on the prompts of a file, with two draws of each."""
    data = folder / "prompts.jsonl"
    data.write_text("".join(json.dumps({"id": name, "prompt": name}) + "\n" for name in curves))
    run = folder / "run"
    run.mkdir()
    config = load_config("shapes-reasoning", [f"data.path={data}", f"data.validation={data}"])
    (run / "config.yaml").write_text(dump_config(config))
    ids = tuple(curves)
    for step in range(steps):
        values = np.repeat([curves[name][step] for name in ids], 2) + np.tile([0.05, -0.05], len(ids))
        status = {"total": ["ok"] * len(values)}
        Evaluation(
            step, 2, ids, ids, ("s",) * len(ids), {"total": values.astype(np.float32)}, status, [None] * len(values)
        ).save(run)
    return run


def test_alignment_by_hand():
    """Means 0.5, 0.25: room 0.25 + 0.5625; the first is off by 0.5 and 0.25, squared 0.3125."""
    found = curve_alignment(np.array([[1.0, 0.5], [0.0, 0.0]]))
    assert found.tolist() == pytest.approx([1 - 0.3125 / 0.8125] * 2)


def test_the_mean_curve_itself_is_aligned_best():
    curves = np.array([[0.0, 0.2, 0.4], [0.1, 0.3, 0.5], [0.2, 0.4, 0.6]])
    assert curve_alignment(curves).argmax() == 1
    assert curve_alignment(curves)[1] == pytest.approx(1.0)


def test_a_prompt_that_could_not_be_scored_is_left_out_of_the_mean():
    curves = np.array([[0.0, 1.0], [np.nan, 0.0]])
    assert curve_alignment(curves)[0] == 1
    assert np.isnan(curve_alignment(curves)[1])


def test_prompts_that_follow_the_others_stay(tmp_path):
    found = aligned_prompts(written_run(tmp_path), share=0.4)
    assert [sample.id for sample in found.kept] == ["learnt", "follows"]
    assert found.scores["follows"] > found.scores["learnt"] > found.scores["never"]


def test_what_cannot_work_is_refused(tmp_path):
    with pytest.raises(EvaluationError, match="is 0: choose a number above 0"):
        aligned_prompts(tmp_path, share=0)
    with pytest.raises(EvaluationError, match="has 2 evaluations, and a curve has at least 3"):
        aligned_prompts(written_run(tmp_path, steps=2), share=0.5)
    with pytest.raises(EvaluationError, match="every prompt was solved"):
        curve_alignment(np.ones((2, 3)))
    with pytest.raises(EvaluationError, match="no prompt could be scored"):
        curve_alignment(np.full((2, 3), np.nan))


def test_the_command_writes_them(tmp_path):
    out = tmp_path / "aligned.jsonl"
    done = CliRunner().invoke(app, ["data", "align", str(written_run(tmp_path)), "--share", "0.4", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "2 of 5 prompts stay" in done.output
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == ["learnt", "follows"]
