"""Evaluation of runs: scores before and after training, paired differences, warnings, reports.

    result = evaluate(policy, samples, suite, draws=1, batch=64, seed=1234)
    result.save(run)                      # evaluations/step-N.jsonl, and pictures
    render(summarise([run_a, run_b]))     # paired differences, per run and over runs
    write_report(run)                     # report.html

evaluate         rollouts of fixed samples, scored
results          the `Evaluation`, its files, and the paired change of a reward between two
run_reader       the contents of a run folder
summary          paired differences of runs, and their tables
reward_hacking   trained rewards that rise while held-out ones do not
run_warnings     warnings about a run as sentences
final_summary    the terminal output at the end of a run
image_grid       contact sheets and the pictures in prompts
score_folder     scores of existing pictures
episodes/        episodes of several turns for people to look at
report/          report.html: cards, charts, pages
comparison/      checkpoints side by side on any samples

A comparison is fair if prompts and noise are the same; intervals are then over paired differences. Reading results
loads no torch.
"""

from mmrl.errors import EvaluationError
from mmrl.evaluation.evaluate import evaluate
from mmrl.evaluation.final_summary import curve_text
from mmrl.evaluation.image_grid import before_after_grid
from mmrl.evaluation.report.run_report import write_report
from mmrl.evaluation.results import Evaluation, RewardChange, evaluation_steps
from mmrl.evaluation.summary import RunSummary, Summary, render, summarise, summarise_run
from mmrl.statistics.distances import differing_pairs, pairwise_distance
from mmrl.statistics.intervals import Interval, mean_over_seeds, paired_difference

__all__ = [
    "Evaluation",
    "EvaluationError",
    "Interval",
    "RewardChange",
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
