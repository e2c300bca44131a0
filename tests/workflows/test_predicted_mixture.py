"""The best weights of sources are predicted from the evaluations of runs with others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.config import load_config
from mmrl.config.loading.load import dump_config
from mmrl.errors import EvaluationError
from mmrl.evaluation.results import Evaluation
from mmrl.workflows.predicted_mixture import predicted_mixture

MIXTURES = [(1, 0), (0, 2), (1, 1), (0.2, 0.8), (3, 1)]
IDS = ("a", "b", "c", "d")


def outcome(sums: float, charts: float) -> float:
    """A quadratic of the share of sums, which is highest at 0.7."""
    return 0.9 - (sums / (sums + charts) - 0.7) ** 2


def written_run(run: Path, sums: float, charts: float, *, step: int = 5, ids=IDS, names=("sums", "charts")) -> Path:
    """Write a run that was evaluated twice: half of its samples have the outcome, and those of `other` none of it."""
    (run / "greedy").mkdir(parents=True)
    weights = f"{{name: mixture, weights: {{{names[0]}: {sums}, {names[1]}: {charts}}}}}"
    (run / "config.yaml").write_text(dump_config(load_config("shapes-reasoning", [f"data.prompts={weights}"])))
    sources = ("unseen", "other") * (len(ids) // 2)
    for number, good in ((0, 0.5), (step, outcome(sums, charts))):
        values = np.array([good + noise if source == "unseen" else 0.1 for source in sources for noise in (-0.1, 0.1)])
        status = {"total": ["ok"] * len(values)}
        for folder, each in ((run, values), (run / "greedy", 1 - values)):
            rows = {"total": each.astype(np.float32)}
            Evaluation(number, 2, ids, ids, sources, rows, status, [None] * len(values)).save(folder)
    return run


def written_runs(folder: Path) -> list[Path]:
    return [written_run(folder / f"run-{number}", *weights) for number, weights in enumerate(MIXTURES)]


def test_the_maximum_of_an_exact_quadratic_is_found(tmp_path):
    found = predicted_mixture(written_runs(tmp_path), sources=["unseen"], ridge=0.0)
    assert found.weights == pytest.approx({"sums": 0.7, "charts": 0.3}, abs=1e-5)
    assert found.predicted == pytest.approx(0.9, abs=1e-6)
    assert found.even == pytest.approx(0.86, abs=1e-6)
    assert found.outcomes == pytest.approx([outcome(*each) for each in MIXTURES], abs=1e-6)
    assert found.shares[4] == {"charts": 0.25, "sums": 0.75}


def test_other_samples_and_other_evaluations_count_if_they_are_chosen(tmp_path):
    runs = written_runs(tmp_path)
    everything = predicted_mixture(runs, ridge=0.0)
    assert everything.outcomes == pytest.approx([(outcome(*each) + 0.1) / 2 for each in MIXTURES], abs=1e-6)
    greedy = predicted_mixture(runs, on="greedy", sources=["unseen"], ridge=0.0)
    assert greedy.weights == pytest.approx({"sums": 0.0, "charts": 1.0})  # where 1 - outcome is highest


def test_a_sample_with_an_unscored_answer_counts_as_much_as_another(tmp_path):
    runs = written_runs(tmp_path)
    for run in runs:
        file = Evaluation.load(run, 5)
        file.values["total"][0] = np.nan
        file.status["total"][0] = "error"
        file.save(run)
    found = predicted_mixture(runs, sources=["unseen"], ridge=0.0)
    assert found.outcomes == pytest.approx([outcome(*each) + 0.05 for each in MIXTURES], abs=1e-6)


@pytest.mark.integration
def test_what_cannot_be_compared_is_refused(tmp_path):
    runs = written_runs(tmp_path)
    with pytest.raises(EvaluationError, match="there are 2 runs"):
        predicted_mixture(runs[:2])
    with pytest.raises(EvaluationError, match="has no 'numbers': it has total"):
        predicted_mixture(runs, "numbers")
    with pytest.raises(EvaluationError, match="no samples from 'clips': there are other, unseen"):
        predicted_mixture(runs, sources=["clips"])
    with pytest.raises(EvaluationError, match="on 'training': choose one of validation, heldout, greedy"):
        predicted_mixture(runs, on="training")
    with pytest.raises(EvaluationError, match="has no evaluation on heldout after training"):
        predicted_mixture(runs, on="heldout")
    longer = written_run(tmp_path / "longer", 1, 3, step=9)
    with pytest.raises(EvaluationError, match="longer was evaluated on 4 samples after 9 iterations"):
        predicted_mixture([*runs, longer])
    fewer = written_run(tmp_path / "fewer", 1, 3, ids=("a", "b"))
    with pytest.raises(EvaluationError, match="fewer was evaluated on 2 samples after 5 iterations"):
        predicted_mixture([*runs, fewer])
    others = written_run(tmp_path / "others", 1, 3, names=("sums", "clips"))
    with pytest.raises(EvaluationError, match=r"others mixes clips, sums, and .* mixes charts, sums"):
        predicted_mixture([*runs, others])


def test_runs_without_one_mixture_are_refused(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(load_config("shapes-reasoning")))
    with pytest.raises(EvaluationError, match=r"trained with data\.prompts\.name=shuffled"):
        predicted_mixture([run] * 3)


def test_the_command_writes_them(tmp_path):
    out = tmp_path / "weights.yaml"
    runs = [str(run) for run in written_runs(tmp_path)]
    done = CliRunner().invoke(app, ["data", "mixture", *runs, "--source", "unseen", "--ridge", "0", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "total 0.900 is predicted with the best weights and 0.860 with equal ones" in done.output
    assert "Train with 'data.prompts={name: mixture, weights: {charts: 0.3, sums: 0.7}}'" in done.output
    found = yaml.safe_load(out.read_text())
    assert found["weights"] == {"charts": 0.3, "sums": 0.7}
    assert found["pairs"] == {"charts x sums": 0.25}
    assert [each["outcome"] for each in found["runs"]] == [round(outcome(*each), 4) for each in MIXTURES]
