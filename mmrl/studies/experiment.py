"""Studies that train nothing and call a function in place of a recipe: each arm is a set of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

from mmrl.components import load_reference
from mmrl.errors import ConfigError, EvaluationError
from mmrl.studies.study import Study
from mmrl.studies.study_display import StudyDisplay
from mmrl.studies.study_result import ArmRecord, MeasuredArms, StudyResult, judge_claims, label, verdict_of

Experiment = Callable[..., Mapping[str, Sequence[float]]]
"""From a seed and the arguments of an arm to the values of each metric: as many for every arm and seed."""


def run_experiment(study: Study, seeds: int, libraries: Mapping[str, str], display: StudyDisplay) -> StudyResult:
    """Return the result of a study whose arms are calls of one function; each seed is an independent repetition.

    Raises:
        ConfigError: the function cannot be loaded, or does not take an arm's arguments.
        EvaluationError: a call gave no values of a metric that decides, or another number of them than the first did.
    """
    assert study.config.experiment is not None
    function: Experiment = load_reference(study.config.experiment.function)
    wanted = {label(each): each.metric for each in study.decides}
    also = {label(each): each.metric for each in study.config.also}
    found: dict[str, dict[str, dict[str, list[float]]]] = {
        name: {arm: {} for arm in study.arms} for name in wanted | also
    }
    for seed in range(seeds):
        for arm, patch in study.arms.items():
            values = _call(study, function, arm, seed, {**study.config.common, **patch})
            for name, metric in (wanted | also).items():
                if metric not in values:
                    raise EvaluationError(f"{arm}: measured no {metric}; there are {', '.join(values)}")
                found[name][arm][str(seed)] = [float(value) for value in values[metric]]
            display.log(f"{arm}, seed {seed}: measured")
    measures = {name: MeasuredArms(_ids(name, found[name]), found[name]) for name in wanted}
    claims = judge_claims(study, measures, independent=False)
    return StudyResult(
        study=study.name,
        paper=study.config.paper.model_dump(),
        verdict=verdict_of(claims),
        claims=claims,
        stopping=f"{seeds} repetitions, fixed before",
        seeds=seeds,
        arms={arm: ArmRecord(dict(study.arms[arm]), None, None, {"steps": [], "values": []}) for arm in study.arms},
        measures=measures,
        also={name: {arm: [sum(v) / len(v) for v in found[name][arm].values()] for arm in study.arms} for name in also},
        tried=study.config.tried,
        libraries=libraries,
    )


def _call(
    study: Study, function: Experiment, arm: str, seed: int, arguments: Mapping[str, Any]
) -> Mapping[str, Sequence[float]]:
    """Return what the function measures."""
    try:
        signature(function).bind(seed, **arguments)
    except TypeError as err:
        raise ConfigError(f"{study.path}, arm {arm}: {err}") from None
    return function(seed, **arguments)


def _ids(name: str, arms: Mapping[str, Mapping[str, Sequence[float]]]) -> tuple[str, ...]:
    counts = {len(values) for seeds in arms.values() for values in seeds.values()}
    if len(counts) != 1 or 0 in counts:
        raise EvaluationError(f"{name}: every arm and seed needs as many values, got {sorted(counts)}")
    return tuple(map(str, range(counts.pop())))
