"""Studies: a published claim and its ablation in one file, run by one command, with an honest verdict.

    study = load_study("gdpo")                                   # or the path of a YAML file
    result = run_study(study, StudyOptions(), display)           # arms side by side; resumes; shares arms
    result.verdict                                               # "holds", "opposite" or "not told apart"

`study` is the file, `claims` its comparisons, `arm_cache` the trained arms on disk, `runner` and `scoring` do the work,
and `study_result` is what they write. The intervals are in `mmrl.statistics.crossed`.
"""

from __future__ import annotations

from mmrl.lazy import exports

_HOMES = {
    "Study": "study",
    "StudyOptions": "runner",
    "StudyResult": "study_result",
    "list_studies": "study",
    "load_study": "study",
    "run_study": "runner",
}

__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)
