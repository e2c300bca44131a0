"""Comparisons of checkpoints on the same samples, with the same noise and settings.

store             samples, answers and scores on disk, batch by batch, so that a killed comparison continues
estimates         metrics with bootstrap intervals, paired differences, wins and losses
aggregate         from rows to a `Result`: metrics, groups by task, source and tag, diversity and drift
result            the `Result` and result.json
result_tables     tables for a terminal and result.md
comparison_page   result.html
regression        two results side by side: the metrics that became worse
progress          the display while subjects answer

Reading and comparing results loads no torch.
"""

from mmrl.evaluation.comparison.aggregate import AggregationPlan, EvaluatedModel, aggregate
from mmrl.evaluation.comparison.regression import Diff, diff_results
from mmrl.evaluation.comparison.result import Result, read_result, write_result
from mmrl.evaluation.comparison.store import ComparisonRow, SubjectStore, file_name

__all__ = [
    "AggregationPlan",
    "ComparisonRow",
    "Diff",
    "EvaluatedModel",
    "Result",
    "SubjectStore",
    "aggregate",
    "diff_results",
    "file_name",
    "read_result",
    "write_result",
]
