"""Reading from a run folder which rewards it was trained on."""

import json
from pathlib import Path

import pytest
import yaml

from mmrl.evaluation import Evaluation
from mmrl.evaluation.run_reader import evaluated_splits, read_run
from tests.evaluation.evaluated_runs import skills, write_run


def with_config(folder: Path, **changes: object) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))
    return folder


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "run", skills(0.3, 0.3, 0.3), skills(0.8, 0.8, 0.8))


def test_requested_rewards_are_read_from_the_evaluation(answered):
    record = read_run(with_config(answered, rewards=[]))
    assert record.trained == {"exact": None, "near": None} and record.shows_total
    kinds = {name: record.role(name) for name in ("total", "exact", "near", "near_digits", "brief")}
    assert kinds == dict.fromkeys(("total", "exact", "near"), "trained") | {"near_digits": "", "brief": "held out"}


def test_configured_rewards_keep_their_weights_beside_requested_ones(answered):
    record = read_run(with_config(answered, rewards=[{"name": "exact", "weight": 0.5}, {"name": "unused"}]))
    assert record.trained == {"exact": 0.5, "near": None}, "no sample requested `unused`"
    record = read_run(with_config(answered, rewards=[{"name": "unused"}]))
    assert record.trained == {"exact": None, "near": None}


def test_extra_scores_of_a_reward_are_not_trained(make_run):
    folder = make_run()
    rows = [json.loads(line) for line in (folder / "evaluations" / "step-0.jsonl").read_text().splitlines()]
    for row in rows:
        row["rewards"]["redness_detail"], row["status"]["redness_detail"] = 0.5, "ok"
    (folder / "evaluations" / "step-0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = read_run(folder)
    assert record.trained == {"redness": 2.0} and not record.shows_total
    assert record.role("redness_detail") == ""


def test_requested_rewards_are_read_from_curves_without_an_evaluation(answered, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.yaml").write_text("name: bare\n")
    (bare / "metrics.jsonl").write_text(
        '{"kind": "train", "step": 1, "reward/exact": 1, "reward/total": 1, "reward/total_std": 0}\n'
    )
    record = read_run(bare)
    assert record.first is None and record.trained == {"exact": None} and not record.shows_total


def test_further_evaluation_sets_are_found(answered):
    assert evaluated_splits(answered) == []
    Evaluation.load(answered, 0).save(answered / "greedy")
    assert [(kind.place, folder.name) for kind, folder in evaluated_splits(answered)] == [("greedily", "greedy")]
