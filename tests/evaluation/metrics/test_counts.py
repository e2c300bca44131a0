"""Errors of counts, read off answers."""

import pytest

from mmrl.benchmarks.metrics import Row, build_metric, measure
from mmrl.benchmarks.protocol import MetricConfig
from mmrl.data.sample import Sample
from mmrl.errors import EvaluationError


def test_count_errors_by_hand():
    answers = [("3", 3), ("There are 4 circles.", 3), ("<think>2</think> seven", 5), ("many", 4)]
    rows = [Row(Sample(id=str(n), answer=truth), text) for n, (text, truth) in enumerate(answers)]

    def measured(name, **args):
        return measure(build_metric(MetricConfig(name=name, label=name, args=args)), rows)

    assert measured("count_error") == (0 + 1 + 2 + 4) / 4  # what is no count is taken for 0
    assert measured("count_within", margin=0) == 0.25
    assert measured("count_within", margin=1) == 0.5
    assert measured("count_within", margin=4) == 0.75  # and is within no margin


def test_count_answers_must_have_the_expected_format():
    row = Row(Sample(id="a", answer=3, metadata={"answer_form": "boxed"}), "2 or \\boxed{3}")
    assert measure(build_metric(MetricConfig(name="count_error", label="x")), [row]) == 0


def test_count_metrics_raise_on_images_and_invalid_references():
    metric = build_metric(MetricConfig(name="count_error", label="x"))
    with pytest.raises(EvaluationError, match="'a' has no answer in text"):
        metric.prepare([Row(Sample(id="a", answer=3))])
    with pytest.raises(EvaluationError, match=r"'a': references\['answer'\]"):
        metric.prepare([Row(Sample(id="a", answer=2.5), "3")])
