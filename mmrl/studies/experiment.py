"""Studies that train nothing and call a function in place of a recipe: each arm is a set of its arguments."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mmrl.atomic_io import replace_text
from mmrl.components import load_reference
from mmrl.errors import ConfigError, EvaluationError
from mmrl.studies.arm_cache import data_files, library_versions, source_files
from mmrl.studies.study import Study
from mmrl.studies.study_display import StudyDisplay
from mmrl.studies.study_result import MeasuredArms, StudyResult, judged_result, label

Experiment = Callable[..., Mapping[str, Sequence[float]]]
"""From a seed and the arguments of an arm to the values of each metric: as many for every arm and seed."""


@dataclass(frozen=True)
class MeasuredCalls:
    """The finished calls of experiments in a folder, so that a study that was interrupted goes on after the last one.

        measured/<digest>.json   the function, its arguments and seed, and the values that it returned

    The digest is that of the call, of the suite's code, shipped models and recipes and the function's own file, to the
    byte, and of the versions of libraries: after a change of any of them, a call is made anew.
    """

    folder: Path

    def values(
        self, function: Experiment, seed: int, arguments: Mapping[str, Any]
    ) -> tuple[dict[str, list[float]], bool]:
        """Return what the function returns, and True if an earlier call of it is read in place of a new one."""
        own = inspect.getsourcefile(function)
        call = {
            "function": f"{function.__module__}:{function.__qualname__}",
            "seed": seed,
            "arguments": dict(arguments),
            "libraries": library_versions(),
            "code": [_suite_digest(), hashlib.sha256(Path(own).read_bytes() if own else b"").hexdigest()],
        }
        text = json.dumps(call, sort_keys=True)
        path = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
        if path.is_file():
            found: dict[str, list[float]] = json.loads(path.read_text(encoding="utf-8"))["values"]
            return found, True
        returned = function(seed, **arguments)
        measured = {metric: [float(value) for value in values] for metric, values in returned.items()}
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(call | {"values": measured}))
        return measured, False


@cache
def _suite_digest() -> str:
    """Return a digest of the suite's files that can change a number: code, shipped models, and recipes."""
    digest = hashlib.sha256()
    for name, path in (*source_files(), *data_files()):
        digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()


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
            inspect.signature(function).bind(0, **each)
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
