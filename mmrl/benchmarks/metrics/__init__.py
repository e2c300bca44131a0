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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mmrl.benchmarks.protocol import MetricConfig
from mmrl.components import Registry
from mmrl.data.sample import Sample
from mmrl.errors import EvaluationError

__all__ = ["METRICS", "Direction", "Metric", "MetricFunction", "Row", "build_metric", "measure"]

Direction: TypeAlias = Literal["higher", "lower"]
MetricFunction: TypeAlias = Callable[[NDArray[np.int64]], float]
"""Maps row indices [N] int64, with repetitions, to the metric of those rows; NaN if none of them was scored."""


class Metric(Protocol):
    """A number over any number of answers."""

    @property
    def direction(self) -> Direction:
        """The direction of better values."""

    def prepare(self, rows: Sequence[Row]) -> MetricFunction:
        """Read every row once, and return the metric as a function of row indices, for resampling.

        Raises:
            EvaluationError: the rows lack a value or text that the metric reads.
        """


@dataclass(frozen=True)
class Row:
    """An answer to a sample, with its scores."""

    sample: Sample  # with its task's instruction, and with true boxes in the coordinates of the answers
    text: str | None = None  # None: an image or a video
    values: Mapping[str, float] = field(default_factory=dict)  # {reward or further value: score}; NaN: failed
    draw: int = 0  # the index of the answer among those to this sample

    @property
    def id(self) -> str:
        """The id of the sample; samples are resampled with all their answers."""
        return self.sample.id


METRICS: Registry[Callable[..., Metric]] = Registry(
    "mmrl.metrics",
    "metric",
    {
        "mean": "mmrl.benchmarks.metrics.means:Mean",
        "share_at_least": "mmrl.benchmarks.metrics.means:ShareAtLeast",
        "mean_over_tags": "mmrl.benchmarks.metrics.means:MeanOverTags",
        "count_error": "mmrl.benchmarks.metrics.means:CountError",
        "count_within": "mmrl.benchmarks.metrics.means:CountWithin",
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
