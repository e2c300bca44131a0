"""Metrics by name."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mmrl.config.protocol import MetricConfig
from mmrl.evaluation.errors import EvaluationError
from mmrl.evaluation.metrics.coco_map import CocoMAP
from mmrl.evaluation.metrics.counts import CountError, CountWithin
from mmrl.evaluation.metrics.means import Mean, MeanOverTags, ShareAtLeast
from mmrl.evaluation.metrics.metric import Metric
from mmrl.evaluation.metrics.rows import Row

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
    except TypeError as why:
        raise EvaluationError(f"metric {config.label}: {config.name}{inspect.signature(factory)}: {why}") from None
    return factory(**of, **config.args)


def measure(metric: Metric, rows: Sequence[Row]) -> float:
    """The number over all rows; NaN where none was scored."""
    return metric.prepare(rows)(np.arange(len(rows)))
