"""Two results beside one another: what is a regression, and what is none."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.data.sample import Sample
from mmrl.errors import ResultError
from mmrl.evaluation.comparison import (
    AggregationPlan,
    ComparisonRow,
    EvaluatedModel,
    SubjectStore,
    aggregate,
    diff_results,
    write_result,
)
from mmrl.evaluation.comparison.regression import regression_verdict
from mmrl.statistics.distances import Distances

QUESTIONS = 30
NOISE = np.random.default_rng(0).normal(0, 0.3, QUESTIONS)


def write(folder, subjects, lower=(), questions=QUESTIONS, settings=None):
    """The result of subjects whose values are given, {name: [N] or a number added to the noise that all share}."""
    entrants = []
    for name, scores in subjects.items():
        store = SubjectStore(folder, f"file-{name}")
        values = NOISE[:questions] + scores if np.isscalar(scores) else scores
        status = ["ok" if math.isfinite(value) else "error" for value in values]
        reasons = [{} if math.isfinite(value) else {"x": "the judge is down"} for value in values]
        store.append(
            [
                ComparisonRow(0, n, 0, f"q{n}", {"x": float(v)}, {"x": status[n]}, reasons[n], "an answer")
                for n, v in enumerate(values)
            ]
        )
        store.save_samples([Sample(id=f"q{n}", prompt=f"question {n}") for n in range(questions)])
        trained = name != "base"
        checkpoint = f"{name}/checkpoints/step-4" if trained else None
        base = "base" if trained and "base" in subjects else None
        entrants.append(EvaluatedModel(name, f"file-{name}", "tiny", 4 if trained else 0, checkpoint, "0", base))
    plan = AggregationPlan((), "x", shows_total=False, lower=frozenset(lower), distances=Distances(), seed=0)
    result = aggregate(folder, entrants, 1, plan, {"title": "questions", **(settings or {})}, {"mmrl": "0"})
    write_result(result, folder)
    return folder


def run(*words):
    return CliRunner().invoke(app, ["evaluate", "diff", *map(str, words)])


@pytest.fixture
def first(tmp_path):
    return write(tmp_path / "a", {"base": 0.0, "tuned": 0.2})


def test_equal_results_are_no_regression(first):
    found = diff_results(first, first / "result.json")
    assert {change.verdict for change in found.changes} == {"unsure"} and not found.regressions
    assert {(change.low, change.high, change.samples) for change in found.changes} == {(0.0, 0.0, QUESTIONS)}
    assert run(first, first).exit_code == 0


def test_significant_falls_are_regressions_unless_tolerated(first, tmp_path):
    second = write(tmp_path / "b", {"base": 0.0, "tuned": 0.1})
    (change,) = diff_results(first, second).regressions
    assert (change.subject, change.label) == ("tuned", "x") and change.difference == pytest.approx(-0.1)
    output = run(first, second)
    assert output.exit_code == 1 and "Regression: tuned x" in output.stdout
    assert run(first, second, "--tolerance", "0.2").exit_code == 0
    assert run(second, first).exit_code == 0  # the other way round it has risen
    text = run(first, second, "--json")
    assert text.exit_code == 1 and json.loads(text.stdout)["changes"][1]["verdict"] == "regression"


def test_rises_of_lower_is_better_metrics_are_regressions(tmp_path):
    one, other = (write(tmp_path / name, {"tuned": by}, lower=["x"]) for name, by in (("a", 0.0), ("b", 0.1)))
    assert run(one, other).exit_code == 1 and run(other, one).exit_code == 0


def test_differences_without_rows_are_unpaired_and_less_certain(first, tmp_path):
    second = write(tmp_path / "b", {"base": 0.0, "tuned": 0.1})
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "result.json").write_bytes((second / "result.json").read_bytes())
    found = diff_results(first, bare)
    assert not found.regressions and {change.samples for change in found.changes} == {0}
    assert any("nothing is paired" in note for note in found.notes)
    far = write(tmp_path / "far", {"base": 0.0, "tuned": -2.0})
    (bare / "result.json").write_bytes((far / "result.json").read_bytes())
    assert [change.subject for change in diff_results(first, bare).regressions] == ["tuned"]


def test_subjects_and_metrics_of_one_result_alone_are_listed(first, tmp_path):
    second = write(tmp_path / "b", {"base": 0.0, "tuned": 0.2, "other": 0.0}, questions=20, settings={"seed": 5})
    found = diff_results(first, second)
    assert found.only_second == ("other",) and found.only_first == ()
    assert {change.samples for change in found.changes} == {20}
    assert "the two were not made with the same settings: seed differ" in found.notes
    output = run(first, second)
    assert f"Only in {second}: other" in " ".join(output.stdout.split()) and output.exit_code == 0


def test_sole_trained_subjects_are_compared_under_any_name(first, tmp_path):
    second = write(tmp_path / "b", {"base": 0.0, "new": 0.0})
    found = diff_results(first, second)
    assert [change.subject for change in found.regressions] == ["tuned → new"]
    assert any("new is compared with tuned" in note for note in found.notes)


def test_unscored_rows_are_dropped_counted_and_listed(first, tmp_path):
    lost = NOISE + 0.2
    lost[:5] = math.nan
    second = write(tmp_path / "b", {"base": 0.0, "tuned": lost})
    (_, change) = diff_results(first, second).changes
    assert (change.samples, change.dropped, change.difference) == (25, 5, pytest.approx(0.0))
    text = json.loads((second / "result.json").read_text())["subjects"]["tuned"]
    assert text["unscored"] == {"x": {"error: the judge is down": 5}}
    assert text["numbers"]["x"]["unscored"] == 5 and text["invalid"] == {}
    assert text["numbers"]["x"]["value"] == pytest.approx(lost[5:].mean())  # not drawn towards 0


@pytest.mark.parametrize("content", [None, "", "{}", '{"format": 2}'])
def test_unusable_results_exit_2(first, tmp_path, content):
    odd = tmp_path / "odd"
    odd.mkdir()
    if content is not None:
        (odd / "result.json").write_text(content)
    output = run(first, odd)
    assert output.exit_code == 2 and "result.json" in output.stderr


def test_results_without_common_subjects_exit_2(first, tmp_path):
    second = write(tmp_path / "b", {"x": 0.0, "y": 0.0})
    with pytest.raises(ResultError, match="have no subject in common: base, tuned; x, y"):
        diff_results(first, second)
    assert run(first, second).exit_code == 2


def test_verdicts_at_boundary_values():
    assert regression_verdict(-0.3, -0.2, 0.1) == "regression" and regression_verdict(-0.3, -0.1, 0.1) == "worse"
    assert regression_verdict(-0.1, 0.1, 0.0) == "unsure" and regression_verdict(0.1, 0.2, 0.0) == "better"
    assert (
        regression_verdict(0.2, 0.3, 0.1, "lower") == "regression"
        and regression_verdict(-0.3, -0.2, 0.1, "lower") == "better"
    )
    assert regression_verdict(-1e-9, -1e-9, 0.0) == "worse"  # rounding is no regression
    assert regression_verdict(math.nan, math.nan, 0.0) == "unsure"
