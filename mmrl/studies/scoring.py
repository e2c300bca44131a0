"""Studies of rewards that train nothing: stored answers are scored, and the scores are compared with the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ValidationError
from scipy.stats import rankdata, spearmanr

from mmrl.components import load_reference
from mmrl.config.rewards import RewardConfig
from mmrl.errors import ConfigError, EvaluationError
from mmrl.rewards import Reward, RewardInput, load
from mmrl.statistics.intervals import Floats
from mmrl.studies.study import DecideConfig, Study
from mmrl.studies.study_display import StudyDisplay
from mmrl.studies.study_result import MeasuredArms, StudyResult, judged_result, label


@dataclass(frozen=True)
class LabelledAnswers:
    """N answers, with how good each is: a number, or 0 and 1."""

    ids: tuple[str, ...]  # N
    inputs: Sequence[RewardInput]  # N
    truth: Floats  # [N]


def score_study(study: Study, seeds: Sequence[int], libraries: Mapping[str, str], display: StudyDisplay) -> StudyResult:
    """Return the result of a study that scores stored answers; each seed is an independent set of them.

    Answers that some arm could not score are left out of a mean, in all arms and sets.

    Raises:
        ConfigError: the function of answers cannot be loaded, or an arm has no valid `reward`.
        EvaluationError: a reward scored no answer, or a mean is of sets of unequal sizes.
    """
    assert study.config.score is not None
    source = load_reference(study.config.score.answers)
    rewards = {arm: load(settings.name, **settings.args) for arm in study.arms for settings in [_reward(study, arm)]}
    wanted = {label(each): each for each in study.decides}
    values: dict[str, dict[str, dict[str, list[float]]]] = {name: {arm: {} for arm in rewards} for name in wanted}
    ids: dict[str, tuple[str, ...]] = dict.fromkeys(wanted, ())
    for seed in seeds:
        answers: LabelledAnswers = source(seed)
        for arm, reward in rewards.items():
            scores = _scores(answers, reward, arm)
            for name, decide in wanted.items():
                found = statistic(scores, answers.truth, decide)
                values[name][arm][str(seed)] = found.tolist()
                ids[name] = answers.ids if len(found) == len(answers.ids) > 1 else ("all",)
            display.log(f"{arm}, set {seed}: {len(scores)} answers scored")
    measures = {name: _common(name, ids[name], values[name]) for name in wanted}
    stopping = f"{len(seeds)} independent sets of answers, fixed before"
    return judged_result(study, measures, {}, stopping, len(seeds), libraries)


def statistic(scores: Floats, truth: Floats, decide: DecideConfig) -> Floats:
    """Return what decides: the scores [N], or [1] their rank correlation with the truth, or the area under the ROC.

    NaN among the scores stays there, and is left out of a correlation or an area.

    Raises:
        EvaluationError: an area under the curve where all answers are right or all are wrong.
    """
    if decide.statistic == "mean":
        return scores
    known = np.isfinite(scores)
    scores, truth = scores[known], truth[known]
    if decide.statistic == "correlation":
        return np.array([spearmanr(scores, truth).statistic], np.float64)
    right = truth > 0.5
    if right.all() or not right.any():
        raise EvaluationError("the area under the ROC needs right and wrong answers; here all are alike")
    ranks, count = rankdata(scores), int(right.sum())
    area = (ranks[right].sum() - count * (count + 1) / 2) / (count * (len(right) - count))
    return np.array([area], np.float64)


def _common(name: str, ids: tuple[str, ...], values: Mapping[str, Mapping[str, list[float]]]) -> MeasuredArms:
    """Return the values of the rows that every arm could score in every set."""
    rows = [row for sets in values.values() for row in sets.values()]
    if len(sizes := {len(row) for row in rows}) > 1:
        raise EvaluationError(f"{name}: the sets have {min(sizes)} to {max(sizes)} answers; expected as many in each")
    kept = np.flatnonzero(np.isfinite(rows).all(axis=0))
    if not len(kept):
        raise EvaluationError(f"{name}: there is no answer that all arms could score in all sets")
    common = {arm: {seed: [row[place] for place in kept] for seed, row in sets.items()} for arm, sets in values.items()}
    return MeasuredArms(tuple(ids[place] for place in kept), common, left_out=len(ids) - len(kept))


def _scores(answers: LabelledAnswers, reward: Reward, arm: str) -> Floats:
    output = reward.score(list(answers.inputs))
    scores = np.asarray(output.values[reward.name], np.float64)
    if not np.isfinite(scores).any():
        raise EvaluationError(f"{arm}: {reward.name} scored none of {len(scores)} answers")
    return scores


def _reward(study: Study, arm: str) -> RewardConfig:
    patch: dict[str, Any] = {**study.config.common, **study.arms[arm]}
    if (swept := study.config.sweep) is not None and swept.key in patch and swept.key.startswith("reward."):
        value = patch.pop(swept.key)
        reward = dict(patch["reward"])
        reward["args"] = {**reward.get("args", {}), swept.key.removeprefix("reward.args."): value}
        patch["reward"] = reward
    try:
        return RewardConfig.model_validate(patch["reward"])
    except (KeyError, ValidationError) as err:
        raise ConfigError(f"{study.path}, arm {arm}: needs a `reward` with a name: {err}") from None
