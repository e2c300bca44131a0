"""Before and after, per run and over seeds."""

import io
import shutil

import pytest
from rich.console import Console
from scipy import stats

from mmrl.evaluation import Evaluation, EvaluationError, render, summarise


def test_differences_are_paired_per_run_and_averaged_over_runs(make_run):
    runs = [make_run(f"seed-{seed}", seed=seed, failed=2) for seed in range(3)]
    summary = summarise(runs)
    assert [run.name for run in summary.runs] == ["seed-0", "seed-1", "seed-2"]
    assert list(summary.runs[0].changes) == ["total", "redness", "held"]  # held out comes last
    first, last = (Evaluation.load(runs[1], step).values["redness"].astype(float) for step in (0, 10))
    truth = stats.ttest_rel(last, first).confidence_interval()
    change = summary.runs[1].changes["redness"]
    assert (change.difference.low, change.difference.high) == pytest.approx((truth.low, truth.high))
    assert change.after - change.before == pytest.approx(change.difference.mean)
    heldout = summary.runs[1].changes["held"]
    assert heldout.difference.verdict == "down" and (heldout.difference.n, heldout.difference.dropped) == (38, 2)
    assert heldout.after - heldout.before == pytest.approx(heldout.difference.mean)
    means = [run.changes["redness"].difference.mean for run in summary.runs]
    assert summary.over_runs["redness"].mean == pytest.approx(sum(means) / 3) and summary.over_runs["redness"].n == 3
    assert summary.runs[0].diversity == (0.5, 0.4) and summary.diversity_ratio.mean == pytest.approx(0.8)
    assert list(summary.runs[0].by_source) == ["new words", "plain"]
    assert summary.runs[0].by_source["plain"]["redness"].difference.n == 20


def test_runs_in_folders_of_one_name_have_different_names(make_run, tmp_path):
    folder = make_run("seed-0", seed=0)
    copies = [tmp_path / "sweep" / rate / "seed-0" for rate in ("lr-1", "lr-2")]
    for copy in copies:
        shutil.copytree(folder, copy)
    assert [run.name for run in summarise(copies).runs] == ["lr-1/seed-0", "lr-2/seed-0"]
    assert [run.name for run in summarise([copies[0], copies[0]]).runs] == ["seed-0", "seed-0"]


def test_tables_hold_every_number(make_run):
    runs = [make_run(f"seed-{seed}", seed=seed, failed=2) for seed in range(2)]
    console = Console(width=160, file=io.StringIO())
    for table in render(summarise(runs)):
        console.print(table)
    text = console.file.getvalue()
    assert "seed-1 (step 10)" in text and "2 of 2" in text and "new words" in text and "x 0.80" in text
    interval = summarise(runs).runs[0].changes["redness"].difference
    assert f"{interval.mean:+.3f}" in text and f"{interval.low:+.3f} to {interval.high:+.3f}" in text
    assert len(render(summarise(runs[:1]))) == 2  # nothing to average over one run


def test_incomparable_folders_raise(make_run, tmp_path):
    with pytest.raises(EvaluationError, match=r"nowhere is no run: it has no config.yaml"):
        summarise([tmp_path / "nowhere"])
    with pytest.raises(EvaluationError, match=r"evaluated steps: 0\."):
        summarise([make_run("single", steps=(0,))])
    with pytest.raises(EvaluationError, match=r"evaluated steps: 5, 10\."):
        summarise([make_run("late", steps=(5, 10))])
    mixed, other = make_run("mixed"), make_run("other", prompts=8)
    shutil.copy(other / "evaluations" / "step-10.jsonl", mixed / "evaluations")
    with pytest.raises(EvaluationError, match="steps 0 and 10 were evaluated on different samples"):
        summarise([mixed])
    with pytest.raises(EvaluationError, match="there is no run"):
        summarise([])
