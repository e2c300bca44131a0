"""Studies that call a function: its values, a study of it, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from mmrl.errors import ConfigError, EvaluationError
from mmrl.studies.experiment import run_experiment
from mmrl.studies.runner import StudyOptions, run_study
from mmrl.studies.study import load_study
from mmrl.studies.study_display import PlainStudyDisplay
from mmrl_shapeworld.shared_prompts import update_cost

FUNCTION = """\
import random

def noisy_square(seed, n):
    return {"square": [n * n + random.Random(seed + n).random()], "cube": [n**3]}
"""
STUDY = """\
paper: {{key: squares, title: Squares}}
claim: {{text: "squares grow", test: increasing in n}}
experiment: {{function: "{file}:noisy_square"}}
sweep: {{name: n, key: n, values: [1, 2, 4]}}
decide: {{metric: square, on: call}}
also: [{{metric: cube, on: call}}]
seeds: {{first: 4}}
"""


def write(folder: Path, text: str = STUDY) -> str:
    (folder / "squares.py").write_text(FUNCTION)
    (folder / "squares.yaml").write_text(text.format(file=folder / "squares.py"))
    return str(folder / "squares.yaml")


def quiet() -> PlainStudyDisplay:
    return PlainStudyDisplay(Console(quiet=True))


def test_study_of_a_function(tmp_path):
    result = run_study(load_study(write(tmp_path)), StudyOptions(root=tmp_path / "runs"), quiet())
    assert result.verdict == "holds"
    assert result.measures["square"].matrix("n=4").shape == (1, 4)
    assert result.also["cube"]["n=4"] == [64.0] * 4
    assert "square" in (tmp_path / "runs" / "squares" / "squares.md").read_text()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (("key: n,", "key: m,"), ConfigError, "arm n=1: .*argument"),
        (("metric: square", "metric: root"), EvaluationError, "measured no root; there are square, cube"),
    ],
)
def test_wrong_arguments_and_metrics_are_named(tmp_path, change, error, message):
    study = load_study(write(tmp_path, STUDY.replace(*change)))
    with pytest.raises(error, match=message):
        run_experiment(study, [0], {}, quiet())


def test_what_decides_must_be_the_call(tmp_path):
    with pytest.raises(ConfigError, match="on: call"):
        load_study(write(tmp_path, STUDY.replace("square, on: call", "square")))


def test_shared_prompts_give_the_same_gradients_for_fewer_tokens():
    found = update_cost(0, answers=4, tokens=8, side=56, turns=1)
    assert found["gradient_difference"][0] < 1e-5
    prompt = 16 + 11  # tokens of the image, and of the question in its template
    assert found["token_ratio"][0] == pytest.approx(4 * (prompt + 8) / (prompt + 4 * 8), rel=0.1)
    assert found["speedup"][0] > 0
