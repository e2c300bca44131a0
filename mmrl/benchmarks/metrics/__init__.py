"""One number over all rows of an evaluation: means, shares, accuracies by tag, COCO's mean average precision.

    metric = build_metric(config)              # of a MetricConfig of a protocol; EvaluationError: an unknown name
    metric.direction                           # "higher" or "lower" is better
    over = metric.prepare(rows)                # reads every answer once; `rows` are `Row`s
    over(numpy.arange(len(rows)))              # the number
    over(numpy.array([0, 0, 3]))               # of some rows, again and again: what a bootstrap asks for
    measure(metric, rows)                      # the same as the first, in one call

A row whose value is NaN was not scored: it is left out, and where nothing is left the number is NaN. An answer that
cannot be read is not left out: it is wrong.

- `mean`, `share_at_least(threshold)`, `mean_over_tags(key)`: of the value named by `of`
- `count_error`, `count_within(margin)`: of answers that are counts
- `coco_map(iou)`: of answers that are boxes
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mmrl.benchmarks.metrics.coco_map import CocoMAP
from mmrl.benchmarks.metrics.counts import CountError, CountWithin
from mmrl.benchmarks.metrics.means import Mean, MeanOverTags, ShareAtLeast
from mmrl.benchmarks.metrics.metric import Direction, Metric, Over, Row
from mmrl.benchmarks.protocol import MetricConfig
from mmrl.errors import EvaluationError

__all__ = ["METRICS", "Direction", "Metric", "Over", "Row", "build_metric", "measure"]


# Metrics by name.


METRICS: Mapping[str, Callable[..., Metric]] = {
    "mean": Mean,
    "share_at_least": ShareAtLeast,
    "mean_over_tags": MeanOverTags,
    "count_error": CountError,
    "count_within": CountWithin,
    "coco_map": CocoMAP,
}
"""What a protocol may name; those with a parameter `of` read the value that the protocol names there."""


def build_metric(config: MetricConfig) -> Metric:
    """The metric that a protocol names.

    Raises:
        EvaluationError: there is none of that name, or it has no such settings.
    """
    factory = METRICS.get(config.name)
    if factory is None:
        near = difflib.get_close_matches(config.name, METRICS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(METRICS)}"
        raise EvaluationError(f"metric {config.label}: no metric is called {config.name}: {hint}")
    of = {} if config.of is None else {"of": config.of}
    try:
        inspect.signature(factory).bind(**of, **config.args)
    except TypeError as err:
        raise EvaluationError(f"metric {config.label}: {config.name}{inspect.signature(factory)}: {err}") from None
    return factory(**of, **config.args)


def measure(metric: Metric, rows: Sequence[Row]) -> float:
    """The number over all rows; NaN where none was scored."""
    return metric.prepare(rows)(np.arange(len(rows)))
