"""Whether training helped, and what it changed.

    result = evaluate(policy, samples, suite, draws=1, batch=64, seed=1234)
    result.save(run)                      # evaluations/step-N.jsonl, and pictures that were made or shown
    render(summarise([run_a, run_b]))     # paired differences, per run and over runs
    write_report(run)                     # report.html

A comparison is fair where prompts and noise are the same; intervals are then over paired differences. Reading results
loads no torch.
"""

from mmrl.errors import EvaluationError
from mmrl.evaluation.evaluate import evaluate
from mmrl.evaluation.image_grid import before_after_grid, curve_text
from mmrl.evaluation.report.run_report import write_report
from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.evaluation.summary import Change, RunSummary, Summary, render, summarise, summarise_run
from mmrl.statistics.diversity import differing_pairs, pairwise_distance
from mmrl.statistics.intervals import Interval, mean_over_seeds, paired_difference

__all__ = [
    "Change",
    "Evaluation",
    "EvaluationError",
    "Interval",
    "RunSummary",
    "Summary",
    "before_after_grid",
    "curve_text",
    "differing_pairs",
    "evaluate",
    "evaluation_steps",
    "mean_over_seeds",
    "paired_difference",
    "pairwise_distance",
    "render",
    "summarise",
    "summarise_run",
    "write_report",
]
