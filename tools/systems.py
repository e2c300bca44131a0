"""Publish results of studies, and write docs/systems.md.

python -m tools.systems                  # docs/systems.md from what is published
python -m tools.systems gdpo lite-ppo    # first take these studies' results from runs/studies
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from mmrl.studies.study_result import RESULT, results_folder
from mmrl.studies.systems import systems_page

PAGE = Path(__file__).resolve().parents[1] / "docs" / "systems.md"
RUNS = Path("runs/studies")


def publish(name: str, runs: Path = RUNS) -> None:
    """Copy the result, the page and the curve of a study from the folder of runs into the documentation."""
    folder = results_folder()
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(runs / name / RESULT, folder / f"{name}.json")
    for suffix in (".md", ".svg"):
        if (made := runs / name / f"{name}{suffix}").exists():
            shutil.copyfile(made, folder / made.name)


if __name__ == "__main__":
    for study in sys.argv[1:]:
        publish(study)
    PAGE.write_text(systems_page(), encoding="utf-8")
    print(PAGE)
