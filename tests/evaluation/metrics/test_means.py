"""Means, shares and means over tags, as numbers by hand."""

import math

import numpy as np
import pytest

from mmrl.benchmarks.metrics import METRICS, Row, build_metric, measure
from mmrl.benchmarks.protocol import MetricConfig
from mmrl.data.sample import Sample
from mmrl.errors import EvaluationError


def rows(*values, tags=None, name="box_iou"):
    tags = tags or [[]] * len(values)
    return [
        Row(Sample(id=f"s{n}", metadata={"tags": tag}), values={name: value})
        for n, (value, tag) in enumerate(zip(values, tags, strict=True))
    ]


def metric(name, of="box_iou", **args):
    return build_metric(MetricConfig(name=name, label=name, of=of, args=args))


def test_means_exclude_unscored_rows():
    assert measure(metric("mean"), rows(0.5, math.nan, 1.0)) == 0.75
    assert math.isnan(measure(metric("mean"), rows(math.nan)))
    assert measure(metric("share_at_least", threshold=0.5), rows(0.5, math.nan, 0.2)) == 0.5


def test_threshold_includes_float32_values():
    for threshold in (0.3, 0.5, 0.7):
        stored = float(np.float32(threshold))
        assert measure(metric("share_at_least", threshold=threshold), rows(stored, threshold, threshold - 1e-6)) == (
            pytest.approx(2 / 3)
        )


def test_mean_over_tags_weighs_tags_equally_as_in_geneval():
    """GenEval: 2 of 4 of one task and 1 of 1 of another are (0.5 + 1) / 2, not 3 of 5."""
    scored = rows(1, 1, 0, 0, 1, tags=[["counting"]] * 4 + [["colors"]])
    assert measure(metric("mean_over_tags"), scored) == 0.75
    assert measure(metric("mean"), scored) == 0.6
    assert measure(metric("mean", tag="counting"), scored) == 0.5
    over = metric("mean_over_tags").prepare(scored)
    assert over(np.array([0, 1, 1])) == 1.0  # no `colors` was drawn


def test_resamples_equal_the_metric_of_the_sampled_rows():
    scored = rows(0.1, 0.9, 0.4, math.nan, tags=[["a"], ["b"], ["a"], ["b"]])
    drawn = np.array([3, 1, 1, 0])
    for name, args in (("mean", {}), ("share_at_least", {"threshold": 0.4}), ("mean_over_tags", {})):
        whole = metric(name, **args)
        assert whole.prepare(scored)(drawn) == pytest.approx(measure(whole, [scored[n] for n in drawn]))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "maen", "of": "a"}, "there is no metric 'maen': did you mean mean"),
        ({"name": "mean"}, "missing a required argument: 'of'"),
        ({"name": "share_at_least", "of": "a"}, "missing a required argument: 'threshold'"),
        ({"name": "coco_map", "of": "a"}, "unexpected keyword argument 'of'"),
    ],
)
def test_invalid_metrics_raise_with_the_expected_fields(config, message):
    with pytest.raises(EvaluationError) as caught:
        build_metric(MetricConfig(label="x", **config))
    assert message in str(caught.value)


def test_unknown_values_raise_and_partly_missing_ones_do_not():
    with pytest.raises(EvaluationError, match="no answer has a value 'ocr_ned': rewards gave box_iou"):
        metric("mean", of="ocr_ned").prepare(rows(1.0))
    assert measure(metric("mean", of="a"), rows(1.0, name="a") + rows(0.0, name="b")) == 1.0
    with pytest.raises(EvaluationError, match="1 samples have no tags"):
        metric("mean_over_tags").prepare(rows(1.0))


def test_every_metric_has_a_direction():
    needed = {"mean": {"of": "a"}, "share_at_least": {"of": "a", "threshold": 0.5}, "mean_over_tags": {"of": "a"}}
    directions = {name: METRICS.load(name)(**needed.get(name, {})).direction for name in METRICS.names()}
    assert {name for name, way in directions.items() if way == "lower"} == {"count_error"}
    assert metric("mean", direction="lower").direction == "lower"
