"""Studies that train nothing and call a function in place of a recipe: each arm is a set of its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path

from mmrl.components import load_reference
from mmrl.errors import ConfigError, EvaluationError
from mmrl.studies.measured_calls import Experiment, MeasuredCalls
from mmrl.studies.study import Study
from mmrl.studies.study_display import StudyDisplay
from mmrl.studies.study_result import MeasuredArms, StudyResult, judged_result, label


def run_experiment(
    study: Study, seeds: Sequence[int], libraries: Mapping[str, str], display: StudyDisplay, measured: Path
) -> StudyResult:
    """Return the result of a study whose arms are calls of one function; each seed is an independent repetition.

    The values of every call are kept in the folder `measured`, and are read there by a run after an interruption.

    Raises:
        ConfigError: the function cannot be loaded, or does not take an arm's arguments.
        EvaluationError: a call gave no values of a metric that decides, or another number of them than the first did.
    """
    assert study.config.experiment is not None
    function: Experiment = load_reference(study.config.experiment.function)
    arguments = {arm: {**study.config.common, **patch} for arm, patch in study.arms.items()}
    for arm, each in arguments.items():
        try:
            signature(function).bind(0, **each)
        except TypeError as err:
            raise ConfigError(f"{study.path}, arm {arm}: {err}") from None
    metrics = {label(each): each.metric for each in (*study.decides, *study.config.also)}
    found: dict[str, dict[str, dict[str, list[float]]]] = {name: {arm: {} for arm in arguments} for name in metrics}
    calls = MeasuredCalls(measured)
    for seed in seeds:
        for arm, each in arguments.items():
            values, is_earlier = calls.values(function, seed, each)
            for name, metric in metrics.items():
                if metric not in values:
                    raise EvaluationError(f"{arm}: measured no {metric}; there are {', '.join(values)}")
                found[name][arm][str(seed)] = values[metric]
            display.log(f"{arm}, seed {seed}: {'was measured before' if is_earlier else 'measured'}")
    measures = {name: MeasuredArms(_ids(name, found[name]), found[name]) for name in map(label, study.decides)}
    also = {
        name: {
            arm: [sum(values) / len(values) for values in of_seeds.values()] for arm, of_seeds in found[name].items()
        }
        for name in map(label, study.config.also)
    }
    return judged_result(study, measures, also, f"{len(seeds)} repetitions, fixed before", len(seeds), libraries)


def _ids(name: str, arms: Mapping[str, Mapping[str, Sequence[float]]]) -> tuple[str, ...]:
    counts = {len(values) for seeds in arms.values() for values in seeds.values()}
    if len(counts) != 1 or 0 in counts:
        raise EvaluationError(f"{name}: every arm and seed needs as many values, got {sorted(counts)}")
    return tuple(map(str, range(counts.pop())))
