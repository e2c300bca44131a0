"""Results that were published with mmrl."""

from __future__ import annotations

from pathlib import Path

import mmrl
from mmrl.studies.study_result import StudyResult


def results_folder() -> Path:
    """Return the folder of published results: `_results` if installed, docs/results/studies in a checkout."""
    package = Path(mmrl.__file__).parent
    inside = package / "_results"
    return inside if inside.is_dir() else package.parent / "docs" / "results" / "studies"


def published_result(study: str) -> StudyResult | None:
    """Return the published result of a study; None if it has none.

    Raises:
        ResultError: the file is damaged.
    """
    path = results_folder() / f"{study}.json"
    return StudyResult.load(path) if path.is_file() else None
