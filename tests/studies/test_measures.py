"""The numbers of finished arms."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from mmrl.errors import EvaluationError
from mmrl.evaluation.results import Evaluation
from mmrl.studies.measures import best_of_some, common_samples, hypervolume, measure
from mmrl.studies.study import DecideConfig

SHARE = DecideConfig(metric="zero_variance_share", on="training")


def write_run(folder: Path, values: list[float]) -> Path:
    """Write a run folder whose iterations logged these shares."""
    folder.mkdir()
    (folder / "config.yaml").write_text("name: x\n")
    rows = [{"kind": "train", "step": step, "zero_variance_share": each} for step, each in enumerate(values, start=1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_arms_with_different_numbers_of_iterations_are_comparable(tmp_path):
    short = measure(write_run(tmp_path / "short", [0.5, 0.3]), SHARE)
    long = measure(write_run(tmp_path / "long", [0.1, 0.2, 0.6]), SHARE)
    assert common_samples([short, long], "arms") == [0]
    assert short.values.tolist() == pytest.approx([0.4])
    assert long.values.tolist() == pytest.approx([0.3])


def test_a_spike_is_measured_against_the_run_s_own_median(tmp_path):
    spikes = DecideConfig(metric="zero_variance_share", on="training", statistic="spike")
    calm = measure(write_run(tmp_path / "calm", [0.8, 0.7, 0.8, 0.9, 1.0]), spikes)
    wild = measure(write_run(tmp_path / "wild", [0.2, 0.2, 0.6, 0.1, 0.2]), spikes)
    assert calm.values.tolist() == pytest.approx([1.25]) and wild.values.tolist() == pytest.approx([3.0])
    assert measure(tmp_path / "calm", SHARE).values > measure(tmp_path / "wild", SHARE).values  # which the mean is not


def test_spikes_are_of_training():
    with pytest.raises(ValidationError, match="spike is of the iterations of training, and `on` is validation"):
        DecideConfig(statistic="spike")


def test_a_metric_that_no_iteration_logged_is_named_with_those_that_are_there(tmp_path):
    run = write_run(tmp_path / "run", [0.5])
    with pytest.raises(EvaluationError, match="no iteration logged beauty; there are zero_variance_share"):
        measure(run, DecideConfig(metric="beauty", on="training"))


def evaluated(folder: Path, values: list[float], draws: int, **more: list[float]) -> Path:
    """Write an evaluation of `len(values) / draws` samples before training."""
    samples = tuple(str(sample) for sample in range(len(values) // draws))
    column = {name: np.array(each, np.float32) for name, each in {"right": values, **more}.items()}
    status = {name: ["ok"] * len(values) for name in column}
    Evaluation(0, draws, samples, samples, ("s",) * len(samples), column, status, [None] * len(values)).save(folder)
    return folder


def test_the_best_of_the_draws_is_pass_at_k(tmp_path):
    run = evaluated(tmp_path, [0, 1, 0, 0, float("nan"), 1, float("nan"), float("nan")], draws=2)
    assert measure(run, DecideConfig(metric="right", draws="best")).values.tolist()[:3] == [1, 0, 1]
    assert np.isnan(measure(run, DecideConfig(metric="right", draws="best")).values[3])
    assert measure(run, DecideConfig(metric="right")).values.tolist()[:3] == [0.5, 0, 1]


def test_the_best_of_some_draws_is_the_mean_over_all_choices_of_them(tmp_path):
    drawn = [[0, 0.5, 1, 0.25, 0], [0, 0, 0, 0, 1], [1, 1, 0, 0, float("nan")]]
    run = evaluated(tmp_path, [each for row in drawn for each in row], draws=5)
    for count in (1, 2, 3, 4):
        found = measure(run, DecideConfig(metric="right", draws="best", of=count)).values
        scored = [[each for each in row if np.isfinite(each)] for row in drawn]
        wanted = [np.mean([max(some) for some in combinations(row, count)]) for row in scored]
        assert found.tolist() == pytest.approx(wanted)
    of_five = measure(run, DecideConfig(metric="right", draws="best", of=5)).values
    assert of_five.tolist()[:2] == [1, 1] and np.isnan(of_five[2])  # four were scored


def test_the_estimate_of_pass_at_k_is_unbiased_and_the_best_of_all_draws_is_not_one_of_fewer():
    rng, chance, few = np.random.default_rng(0), 0.2, 4
    drawn = (rng.random((4000, 16)) < chance).astype(np.float64)
    truth = 1 - (1 - chance) ** few
    assert best_of_some(drawn, few).mean() == pytest.approx(truth, abs=0.01)
    assert best_of_some(drawn, 16).mean() > truth + 0.2


def test_more_draws_than_were_made_are_refused(tmp_path):
    run = evaluated(tmp_path, [0, 1, 0, 0], draws=2)
    with pytest.raises(
        EvaluationError, match="has 2 answers to a sample, and the best of 4 is measured: set evaluation"
    ):
        measure(run, DecideConfig(metric="right", draws="best", of=4))
    with pytest.raises(ValidationError, match="of: 4 is the number of answers of which the best counts: write draws"):
        DecideConfig(metric="right", of=4)


def test_the_hypervolume_of_draws_is_what_they_dominate_by_two_metrics(tmp_path):
    """By hand, and against the share of random points that some draw dominates."""
    nan = float("nan")
    run = evaluated(tmp_path, [0.5, 1, 0.2, nan, 0.5, 0.5], draws=2, blue=[0.5, 0.25, 0.3, 1, -1, 0.4])
    hv = DecideConfig(metric="right", beside="blue", draws="hypervolume")
    assert measure(run, hv).values.tolist() == pytest.approx([0.375, 0.06, 0.2])
    assert measure(run, hv.model_copy(update={"metric": "blue", "beside": "right"})).values.tolist() == pytest.approx(
        [0.375, 0.06, 0.2]
    )
    rng = np.random.default_rng(0)
    pairs, points = rng.random((3, 5, 2)), rng.random((100_000, 2))
    below = (points[:, None, None] < pairs).all(-1).any(-1).mean(0)
    found = hypervolume(pairs[..., 0], pairs[..., 1])
    assert found.tolist() == pytest.approx(below.tolist(), abs=0.01)
    best = np.concatenate([pairs, pairs.min(1, keepdims=True)], 1)  # one more, which all others dominate
    assert hypervolume(best[..., 0], best[..., 1]).tolist() == pytest.approx(found.tolist())


def test_a_hypervolume_has_two_metrics_that_are_there(tmp_path):
    run = evaluated(tmp_path, [0, 1], draws=2)
    with pytest.raises(EvaluationError, match="has no metric blue; there are right, tokens"):
        measure(run, DecideConfig(metric="right", beside="blue", draws="hypervolume"))
    for wrong in ({"draws": "hypervolume"}, {"beside": "blue"}):
        with pytest.raises(ValidationError, match="hypervolume, and it alone, has two metrics"):
            DecideConfig(metric="right", **wrong)


@pytest.mark.parametrize("on", ["greedy", "training", "call"])
def test_what_has_one_draw_has_no_best_one(on):
    with pytest.raises(ValidationError, match=f"draws: best .* `on` is {on}"):
        DecideConfig(metric="right", on=on, draws="best")
