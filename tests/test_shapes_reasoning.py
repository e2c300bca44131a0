"""Runs of the recipe `shapes-reasoning`: it learns to calculate in a chain of steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmrl.config import load_config
from mmrl.workflows.train import train as train_run

QUIET = ("run.display=quiet", "run.pictures=4")


def evaluations(folder: Path, *overrides: str) -> list[dict[str, Any]]:
    """Train as configured, and return the metrics of all evaluations."""
    run = train_run(load_config("shapes-reasoning", [*QUIET, f"run.dir={folder}", *overrides]))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "evaluation"]


@pytest.mark.slow
def test_a_few_iterations_raise_the_reward(tmp_path):
    """Forty prompts' worth of chance is about 0.05; the gain is several times that."""
    before, after = evaluations(tmp_path / "run", "training.iterations=24", "evaluation.prompts=256")
    assert 0.25 < before["evaluation/total"] < 0.5
    assert after["evaluation/total"] > before["evaluation/total"] + 0.12
    assert after["greedy_evaluation/total"] > before["greedy_evaluation/total"] + 0.12


@pytest.mark.slow
def test_the_length_of_chains_can_be_rewarded_beside_the_answer(tmp_path):
    rewards = "rewards=[{name: numeric}, {name: length, weight: 0.2, args: {limit: 4, slack: 60}}]"
    before, after = evaluations(
        tmp_path / "run", rewards, "training.iterations=2", "evaluation.prompts=64", "evaluation.greedy=false"
    )
    assert 0 < after["evaluation/length"] <= 1 and before["evaluation/numeric"] > 0.2


@pytest.mark.integration
def test_a_bonus_may_count_in_right_answers_only(tmp_path):
    """Totals are 0 for wrong answers, and between 1 and 1.5 for right ones."""
    bonus = "{name: length, weight: 0.5, args: {limit: 4, slack: 60}, counts_if: {reward: numeric, at_least: 1.0}}"
    _, after = evaluations(
        tmp_path / "run",
        f"rewards=[{{name: numeric}}, {bonus}]",
        "training.iterations=2",
        "evaluation.prompts=64",
        "evaluation.greedy=false",
    )
    right = after["evaluation/numeric"]
    assert right < after["evaluation/total"] <= 1.5 * right
    assert after["evaluation/length"] > right  # wrong answers have a length too, which is measured and adds nothing


@pytest.mark.slow
def test_the_recipe_solves_most_of_its_validation_set(tmp_path):
    before, after = evaluations(tmp_path / "run")
    assert after["evaluation/total"] > before["evaluation/total"] + 0.4
    assert after["greedy_evaluation/total"] > 0.9
    assert after["evaluation_tokens"] > before["evaluation_tokens"] + 4


@pytest.mark.integration
def test_failed_prompts_are_answered_with_hints(tmp_path):
    """The runs that are compared sample equal first rounds, so hints alone make the difference."""
    few = ("training.iterations=2", "data.groups=4", "data.group_size=4", "sampling.temperature=1.5")
    few += ("policy.model=shapeworld:remainders", "data.path=shapeworld:remainders-hard", "data.validation=null")
    hints = "data.starts={name: solution_hints, args: {place: prefix, step_end: ';'}}"
    run = train_run(load_config("shapes-reasoning", [*QUIET, *few, hints, f"run.dir={tmp_path / 'run'}"]))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, second = (row for row in rows if row["kind"] == "train")
    for row in (first, second):
        assert row["starts/rows"] > 16 == row["starts/trained_rows"]
        assert row["zero_variance_share_trained"] < row["zero_variance_share"]
        assert row["replay_gap"] < 1e-4


@pytest.mark.integration
def test_a_model_goes_on_from_beginnings_of_its_own_answers(tmp_path):
    rule = "data.starts={name: partial_solutions, args: {step_end: ';', share: 0.25}}"
    few = ("policy.model=shapeworld:remainders", "data.path=shapeworld:remainders-train", "data.validation=null")
    few += ("training.iterations=2", "data.groups=4", "data.group_size=4", rule)
    run = train_run(load_config("shapes-reasoning", [*QUIET, *few, f"run.dir={tmp_path / 'run'}"]))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in (row for row in rows if row["kind"] == "train"):
        assert row["partial/states"] > 0 and row["starts/rows"] == 16 + 4 * row["partial/states"]
        drawn = (row[f"starts/share/{name}"] * row[f"starts/length/{name}"] for name in ("alone", "partial"))
        assert row["tokens"] == pytest.approx(row["starts/rows"] * sum(drawn))  # a beginning is no decision
        assert row["replay_gap"] < 1e-4


@pytest.mark.integration
def test_a_model_searches_for_answers(tmp_path):
    rule = "data.starts={name: tree_search, args: {answers: 2, step_tokens: 6, max_depth: 12}}"
    few = ("policy.model=shapeworld:remainders", "data.path=shapeworld:remainders-train", "data.validation=null")
    few += ("training.iterations=2", "data.groups=4", "data.group_size=4", rule)
    run = train_run(load_config("shapes-reasoning", [*QUIET, *few, f"run.dir={tmp_path / 'run'}"]))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in (row for row in rows if row["kind"] == "train"):
        assert row["tree/answers"] == 2 and 1 <= row["tree/depth"] <= 12
        assert row["starts/rows"] % 4 == 0 and row["tokens"] <= 6 * row["starts/rows"]
        assert row["replay_gap"] < 1e-4
