"""An evaluation repeats its noise, keeps its failures and survives the disk."""

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from mmrl.data import Sample
from mmrl.evaluation import Evaluation, EvaluationError, evaluate, evaluation_steps, paired_difference
from mmrl.rewards import RewardSuite
from tests.evaluation.conftest import PaintPolicy, Redness

SUITE = RewardSuite([(Redness(), 2.0)])


def run(policy, samples, **settings):
    return evaluate(policy, samples, SUITE, **({"draws": 2, "batch": 5, "seed": 7} | settings))


def test_evaluation_rows_are_chunked_with_separate_seeds(samples):
    policy = PaintPolicy()
    result = run(policy, samples[:4])
    assert policy.calls == [
        (7, [("p0", 2, 0), ("p1", 2, 1), ("p2", 1, 2)]),
        (8, [("p2", 1, 2), ("p3", 2, 3)]),
    ]
    assert result.ids == ("p0", "p1", "p2", "p3") and result.sources == ("train", "new", "train", "new")
    assert result.values["redness"].shape == (8,) and len(result.images) == 8
    np.testing.assert_allclose(result.values["total"], 2 * result.values["redness"])
    assert result.counts == {"redness": {"ok": 8}, "total": {"ok": 8}}
    assert result.by_prompt("redness")[2, 1] == result.values["redness"][5]


def test_evaluations_share_their_noise(samples):
    before, again, after = (run(PaintPolicy(shade), samples) for shade in (0, 0, 51))
    np.testing.assert_array_equal(before.values["redness"], again.values["redness"])
    np.testing.assert_allclose(after.values["redness"] - before.values["redness"], 0.2, atol=1e-6)
    other = run(PaintPolicy(51), samples, seed=8)  # the control: other noise is seen
    assert np.abs(other.values["redness"] - after.values["redness"]).max() > 1e-3
    assert before.diversity == pytest.approx(after.diversity) and before.diversity > 0
    assert run(PaintPolicy(), samples, draws=1).diversity is None


def test_failed_scores_are_excluded_from_means_and_counted():
    samples = [Sample(id=str(i), prompt=text) for i, text in enumerate(["a", "unscorable", "b"])]
    result = run(PaintPolicy(), samples, draws=1)
    values = result.values["redness"]
    assert np.isnan(values).tolist() == [False, True, False]
    assert result.mean("redness") == pytest.approx((values[0] + values[2]) / 2, rel=1e-6)
    assert result.failed("redness") == 1 and result.counts["redness"] == {"ok": 2, "error": 1}
    assert result.metrics()["evaluation_failed/redness"] == 1
    assert [text.partition(": ")[0] for text in result.failures()] == [
        "redness could not score 1 of 3 answers, most often"
    ]
    assert not run(PaintPolicy(), samples[:1], draws=1).failures()
    lost = run(PaintPolicy(), samples[1:2], draws=1)
    assert math.isnan(lost.mean("redness")) and paired_difference(lost.values["redness"], values[:1]).n == 0


def test_metrics_are_also_by_source(samples):
    result = run(PaintPolicy(), samples)
    sources = result.by_source()
    assert list(sources) == ["new", "train"]
    assert result.mean("redness") == pytest.approx(np.mean([s["redness"] for s in sources.values()]), rel=1e-6)
    metrics = result.metrics()
    assert set(metrics) == {
        "evaluation/redness",
        "evaluation/total",
        "evaluation/diversity",
        "evaluation_by_source/new",
        "evaluation_by_source/train",
    }
    assert metrics["evaluation_by_source/new"] == sources["new"]["total"]


def test_saved_evaluations_are_loaded(tmp_path):
    samples = [Sample(id=str(i), prompt=p) for i, p in enumerate(["a\u2028b ●", "unscorable", '</script> "c"\n'])]
    result = run(PaintPolicy(), samples, step=30)
    result.save(tmp_path, pictures=2)
    result.save(tmp_path, pictures=1)  # replaces the first
    loaded = Evaluation.load(tmp_path, 30)
    for name in ("step", "draws", "ids", "prompts", "sources", "diversity", "counts"):
        assert getattr(loaded, name) == getattr(result, name)
    for name, values in result.values.items():
        np.testing.assert_array_equal(loaded.values[name], values)
    assert [image is not None for image in loaded.images] == [True, True] + [False] * 4
    np.testing.assert_array_equal(np.asarray(loaded.images[1]), np.asarray(result.images[1]))
    assert Evaluation.load(tmp_path, 30, images=False).images == [None] * 6
    assert sorted(p.name for p in tmp_path.rglob("*.*")) == ["0000-0.png", "0000-1.png", "step-30.jsonl"]
    assert evaluation_steps(tmp_path) == [30]


def test_evaluates_texts_and_videos(tmp_path):
    class Writer(PaintPolicy):
        def rollout(self, requests, seed):
            rollout = super().rollout(requests, seed)
            return dataclasses.replace(
                rollout, media=["a text", *[[m, Image.new("RGB", (8, 8))] for m in rollout.media[1:]]]
            )

    result = run(Writer(), [Sample(id="t", prompt="x"), Sample(id="v", prompt="y")], draws=1)
    assert [type(image) for image in result.images] == [type(None), Image.Image]
    assert result.counts["redness"] == {"error": 2}  # it needs an image


def test_outputs_of_another_modality_raise(samples):
    class Lazy(PaintPolicy):
        def rollout(self, requests, seed):
            return super().rollout(requests[:1], seed)

    with pytest.raises(EvaluationError, match=r"expected rollouts of the samples .*, got \['p0', 'p0'\]"):
        run(Lazy(), samples)
    with pytest.raises(EvaluationError, match="cannot evaluate 0 samples"):
        run(PaintPolicy(), [])


def test_damaged_files_raise_with_their_line(tmp_path, samples):
    path = run(PaintPolicy(), samples).save(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    for damage, message in [
        ([*lines[:2], '{"id": "p1"'], r"step-0.jsonl:3: is no line of an evaluation"),
        ([*lines[:2], '{"id": "p1"}\n'], r"step-0.jsonl:3: "),
        ([lines[0], lines[2], lines[1]], "its rows are not 2 draws"),
        (lines[:3], "its rows are not 2 draws"),
        ([], r"step-0.jsonl:1: "),
    ]:
        path.write_text("".join(damage))
        with pytest.raises(EvaluationError, match=message):
            Evaluation.load(tmp_path, 0)
    with pytest.raises(EvaluationError, match=r"step-9.jsonl: no such evaluation; there are steps \[0\]"):
        Evaluation.load(tmp_path, 9)


@pytest.mark.integration
def test_reading_results_imports_no_torch():
    subprocess.run([sys.executable, "-c", "import mmrl.evaluation, sys; assert 'torch' not in sys.modules"], check=True)
