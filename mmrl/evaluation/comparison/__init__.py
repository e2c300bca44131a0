"""Checkpoints beside one another on the same samples, with the same noise and settings.

store       what was asked and answered, batch by batch, so that a comparison that was killed goes on
bootstrap   how sure a number is
numbers     estimates, paired differences, wins and losses
groups      by task, source and tag
distances   diversity and drift
summing     all of it together: a `Result`
result      result.json
tables      in a terminal, and result.md
pages       result.html
diff        two results: has anything become worse?

Reading and comparing results loads no torch.
"""

from mmrl.evaluation.comparison.aggregate import EvaluatedModel, Plan, sum_up
from mmrl.evaluation.comparison.regression import Diff, diff_results
from mmrl.evaluation.comparison.result import Result, read_result, write_result
from mmrl.evaluation.comparison.store import Line, SubjectStore, file_name

__all__ = [
    "Diff",
    "EvaluatedModel",
    "Line",
    "Plan",
    "Result",
    "SubjectStore",
    "diff_results",
    "file_name",
    "read_result",
    "sum_up",
    "write_result",
]
