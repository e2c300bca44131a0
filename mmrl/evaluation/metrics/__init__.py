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

from mmrl.evaluation.metrics.building import METRICS, build_metric, measure
from mmrl.evaluation.metrics.metric import Direction, Metric, Over
from mmrl.evaluation.metrics.rows import Row

__all__ = ["METRICS", "Direction", "Metric", "Over", "Row", "build_metric", "measure"]
