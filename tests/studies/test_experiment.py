"""Studies that call a function: its values, a study of it, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from mmrl.errors import ConfigError, EvaluationError
from mmrl.studies.arm_cache import data_files
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


@pytest.mark.integration
def test_study_of_a_function(tmp_path):
    result = run_study(load_study(write(tmp_path)), StudyOptions(root=tmp_path / "runs"), quiet())
    assert result.verdict == "holds"
    assert result.measures["square"].matrix("n=4").shape == (1, 4)
    assert result.also["cube"]["n=4"] == [64.0] * 4
    assert "square" in (tmp_path / "runs" / "squares" / "squares.md").read_text()


FAILING = """\
from pathlib import Path

def noisy_square(seed, n):
    with Path(__file__).with_name("calls.txt").open("a") as file:
        file.write(f"{seed} {n}\\n")
    if seed == 2 and not Path(__file__).with_name("mended").exists():
        raise OSError("disk full")
    return {"square": [n * n + seed / 7], "cube": [n**3]}
"""


def test_an_interrupted_study_goes_on_after_the_last_call(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.studies.test_experiment.FUNCTION", FAILING)
    study, options = load_study(write(tmp_path)), StudyOptions(root=tmp_path / "runs")
    with pytest.raises(OSError, match="disk full"):
        run_study(study, options, quiet())
    (tmp_path / "mended").touch()
    result = run_study(study, options, quiet())
    calls = (tmp_path / "calls.txt").read_text().splitlines()
    assert len(calls) == 4 * 3 + 1 and calls.count("2 1") == 2  # only the call that failed is made again
    assert result.measures["square"].matrix("n=4")[0].tolist() == [16 + seed / 7 for seed in range(4)]
    # of another length: within a second, Python would take the file that it compiled
    (tmp_path / "squares.py").write_text(FAILING.replace("/ 7", "/ 9.0"))
    sys.modules.pop("squares", None)
    changed = run_study(study, options, quiet())
    assert changed.measures["square"].matrix("n=1")[0].tolist() == [1 + seed / 9 for seed in range(4)]


def test_calls_depend_on_shipped_models_and_recipes_and_not_on_studies():
    names = {name for name, _ in data_files()}
    assert any(name.startswith("mmrl_shapeworld.weights.") and name.endswith(".safetensors") for name in names)
    assert "understanding.shapes-vlm.yaml" in names
    assert not any(name.startswith(("studies.", "mmrl.studies.")) for name in names)


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
        run_experiment(study, [0], {}, quiet(), tmp_path / "measured")


def test_what_decides_must_be_the_call(tmp_path):
    with pytest.raises(ConfigError, match="on: call"):
        load_study(write(tmp_path, STUDY.replace("square, on: call", "square")))


@pytest.mark.integration
def test_shared_prompts_give_the_same_gradients_for_fewer_tokens():
    found = update_cost(0, answers=4, tokens=8, side=56, turns=1)
    assert found["gradient_difference"][0] < 1e-5
    prompt = 16 + 11  # tokens of the image, and of the question in its template
    assert found["token_ratio"][0] == pytest.approx(4 * (prompt + 8) / (prompt + 4 * 8), rel=0.1)
    assert found["speedup"][0] > 0
