"""Studies that score stored answers: the statistics, and a study of two rewards written in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from mmrl.errors import ConfigError, EvaluationError
from mmrl.studies.runner import StudyOptions, run_study
from mmrl.studies.scoring import statistic
from mmrl.studies.study import DecideConfig, load_study
from mmrl.studies.study_display import PlainStudyDisplay

ANSWERS = '''\
import numpy as np
from mmrl.rewards import RewardInput
from mmrl.studies.scoring import LabelledAnswers

def lengths(seed):
    """Texts of 1 to 30 letters; longer is better."""
    counts = np.random.default_rng(seed).integers(1, 30, 60)
    inputs = [RewardInput(id=str(i), group=0, prompt="", text="a" * int(n)) for i, n in enumerate(counts)]
    return LabelledAnswers(tuple(each.id for each in inputs), inputs, (counts > 10).astype(float))

def by_length(prompt, text):
    return float(len(text))

def at_random(prompt, text):
    return float(hash(text) % 7)
'''
STUDY = """\
paper: {{key: lengths, title: Lengths}}
claim: {{text: "the length says more than chance", test: length > chance}}
score: {{answers: "{file}:lengths"}}
arms:
  length: {{reward: {{name: "{file}:by_length"}}}}
  chance: {{reward: {{name: "{file}:at_random"}}}}
decide: {{statistic: auc}}
seeds: {{first: 4}}
"""


def write(folder: Path, text: str = STUDY) -> str:
    (folder / "answers.py").write_text(ANSWERS)
    (folder / "lengths.yaml").write_text(text.format(file=folder / "answers.py"))
    return str(folder / "lengths.yaml")


def test_statistics_against_scipy():
    random = np.random.default_rng(0)
    truth = random.integers(0, 2, 50).astype(float)
    scores = truth + random.normal(0, 1, 50).round(1)  # with ties
    area = statistic(scores, truth, DecideConfig(statistic="auc"))
    larger = stats.mannwhitneyu(scores[truth > 0], scores[truth == 0]).statistic
    assert area[0] == pytest.approx(larger / ((truth > 0).sum() * (truth == 0).sum()))
    correlation = statistic(scores, truth, DecideConfig(statistic="correlation"))
    assert correlation[0] == pytest.approx(stats.spearmanr(scores, truth).statistic)


def test_statistic_leaves_unscored_answers_out():
    scores, truth = np.array([0.1, np.nan, 0.9]), np.array([0.0, 1.0, 1.0])
    assert statistic(scores, truth, DecideConfig(statistic="auc"))[0] == 1.0


def test_area_of_answers_that_are_all_right_is_refused():
    with pytest.raises(EvaluationError, match="needs right and wrong answers"):
        statistic(np.array([0.1, 0.2]), np.ones(2), DecideConfig(statistic="auc"))


def test_study_of_two_rewards(tmp_path):
    study = load_study(write(tmp_path))
    result = run_study(study, StudyOptions(root=tmp_path / "runs"), PlainStudyDisplay(Console(quiet=True)))
    assert result.verdict == "holds"
    measured = result.measures["auc with the truth"]
    assert measured.matrix("length").shape == (1, 4)
    assert measured.matrix("length").min() == 1.0
    assert (tmp_path / "runs" / "lengths" / "lengths.md").is_file()


def test_means_are_of_answers_that_all_arms_could_score(tmp_path):
    failing = """
def all_but_short(prompt, text):
    if len(text) < 5:
        raise ValueError("too short")
    return float(len(text))

def all_but_long(prompt, text):
    if len(text) > 25:
        raise ValueError("too long")
    return float(len(text))
"""
    text = STUDY.replace("by_length", "all_but_short").replace("at_random", "all_but_long").replace("auc", "mean")
    path = write(tmp_path, text)
    (tmp_path / "answers.py").write_text(ANSWERS + failing)
    result = run_study(load_study(path), StudyOptions(root=tmp_path / "runs"), PlainStudyDisplay(Console(quiet=True)))
    (measured,) = result.measures.values()
    assert measured.left_out > 0 and len(measured.ids) + measured.left_out == 60
    assert measured.values["length"] == measured.values["chance"]  # the two differ in what they cannot score alone
    assert result.claims[0].contrasts[0].mean == 0


def test_arm_without_a_reward_is_refused(tmp_path):
    path = write(tmp_path, STUDY.replace('{{reward: {{name: "{file}:at_random"}}}}', "{{}}"))
    with pytest.raises(ConfigError, match="arm chance: needs a `reward`"):
        run_study(load_study(path), StudyOptions(root=tmp_path / "runs"), PlainStudyDisplay(Console(quiet=True)))
