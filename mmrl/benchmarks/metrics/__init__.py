"""Metrics: one number over all answers of an evaluation, such as means, shares and COCO's mean average precision.

    metric = build_metric(config)              # config: a MetricConfig of a protocol
    metric.direction                           # "higher" or "lower" is better
    function = metric.prepare(rows)            # reads every answer once; `rows` are `Row`s
    function(numpy.arange(len(rows)))          # the metric over all rows
    function(numpy.array([0, 0, 3]))           # over some rows, as a bootstrap needs it
    measure(metric, rows)                      # the metric over all rows, in one call

A row whose value is NaN was not scored and is left out; the metric of no rows is NaN. An answer that cannot be read
counts as wrong.

- `mean`, `share_at_least(threshold)`, `mean_over_tags(key)`: of the value named by `of`
- `count_error`, `count_within(margin)`: of answers that are counts
- `coco_map(iou)`: of answers that are boxes

Another package offers metrics as entry points of the group `mmrl.metrics`; `path/to/file.py:Name` is a metric too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import numpy as np

from mmrl.benchmarks.metrics.metric import Direction, Metric, MetricFunction, Row
from mmrl.benchmarks.protocol import MetricConfig
from mmrl.components import Registry
from mmrl.errors import EvaluationError

__all__ = ["METRICS", "Direction", "Metric", "MetricFunction", "Row", "build_metric", "measure"]

METRICS: Registry[Callable[..., Metric]] = Registry(
    "mmrl.metrics",
    "metric",
    {
        "mean": "mmrl.benchmarks.metrics.means:Mean",
        "share_at_least": "mmrl.benchmarks.metrics.means:ShareAtLeast",
        "mean_over_tags": "mmrl.benchmarks.metrics.means:MeanOverTags",
        "count_error": "mmrl.benchmarks.metrics.counts:CountError",
        "count_within": "mmrl.benchmarks.metrics.counts:CountWithin",
        "coco_map": "mmrl.benchmarks.metrics.coco_map:CocoMAP",
    },
    error=EvaluationError,
)
"""Metrics by name; a metric with a parameter `of` reads the value that the protocol names there."""


def build_metric(config: MetricConfig) -> Metric:
    """Return the metric that a protocol names.

    Raises:
        EvaluationError: there is no metric of that name, or it has other settings.
    """
    try:
        factory = METRICS.load(config.name)
    except EvaluationError as err:
        raise EvaluationError(f"metric {config.label}: {err}") from None
    of = {} if config.of is None else {"of": config.of}
    try:
        inspect.signature(factory).bind(**of, **config.args)
    except TypeError as err:
        raise EvaluationError(f"metric {config.label}: {config.name}{inspect.signature(factory)}: {err}") from None
    return factory(**of, **config.args)


def measure(metric: Metric, rows: Sequence[Row]) -> float:
    """Return the metric over all rows; NaN if none was scored."""
    return metric.prepare(rows)(np.arange(len(rows)))
