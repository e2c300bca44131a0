"""`StudyResult`: the raw values of a study, and the verdict on each claim, in `result.json`; those that are published.

The file holds one value for each held-out sample, arm and seed, so that any other statistic can be made from it. It
depends on the study, the code and the libraries alone: a study that was killed and resumed writes the same file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import mmrl
from mmrl.atomic_io import replace_text
from mmrl.errors import ResultError
from mmrl.statistics.crossed import crossed_interval, sequential_interval
from mmrl.statistics.intervals import Floats, Interval
from mmrl.studies.claims import Judgement, Outcome, Values, judge, overall
from mmrl.studies.study import DecideConfig, Study

RESULT = "result.json"
DIGITS = 6
BEST_OF = re.compile(r", best of (\d+) draws")
"""The part of a label that says of how many draws the best counts."""


@dataclass(frozen=True)
class ContrastResult:
    """The mean of one contrast, with its interval; None: infinite."""

    label: str
    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ClaimResult:
    """The verdict on one claim."""

    text: str
    test: str
    on: str
    verdict: Outcome
    contrasts: tuple[ContrastResult, ...]


@dataclass(frozen=True)
class MeasuredArms:
    """The values that decide a claim: those of the samples that every arm and seed could score."""

    ids: tuple[str, ...]
    values: Mapping[str, Mapping[str, Sequence[float]]]  # {arm: {seed: [one for each id]}}
    left_out: int = 0  # samples that some arm could not score

    @property
    def seeds(self) -> list[str]:
        """The seeds of every arm, in order."""
        return sorted(next(iter(self.values.values())), key=int)

    def matrix(self, arm: str) -> Floats:
        """Return an arm's values, [samples, seeds]."""
        return np.array([self.values[arm][seed] for seed in self.seeds], np.float64).T


@dataclass(frozen=True)
class ArmRecord:
    """An arm's settings, and the amount that it got."""

    settings: Mapping[str, Any]
    iterations: int | None
    rows: int | None  # of seed 0; trajectories that were sampled
    curve: Mapping[str, Sequence[float]]  # steps, and the means over seeds


@dataclass(frozen=True)
class StudyResult:
    """The result of a study."""

    study: str
    paper: Mapping[str, Any]
    verdict: Outcome
    claims: tuple[ClaimResult, ...]
    stopping: str
    seeds: int
    arms: Mapping[str, ArmRecord]
    measures: Mapping[str, MeasuredArms]  # by `label` of what decides
    also: Mapping[str, Mapping[str, Sequence[float]]]  # {label: {arm: [mean of each seed]}}
    tried: tuple[str, ...]
    libraries: Mapping[str, str]
    origin: str = ""
    """The runs that the values are of, if `mmrl study run` did not make them."""

    def save(self, folder: Path) -> Path:
        """Write `result.json` and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(rounded(asdict(self)), ensure_ascii=False, separators=(",", ":"))
        return replace_text(folder / RESULT, text.replace(',"', ',\n"', 1) + "\n")

    @classmethod
    def load(cls, path: Path) -> StudyResult:
        """Return the result that `save` wrote.

        Raises:
            ResultError: the file is missing or damaged.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            claims = tuple(
                ClaimResult(**claim | {"contrasts": tuple(ContrastResult(**each) for each in claim["contrasts"])})
                for claim in found["claims"]
            )
            arms = {name: ArmRecord(**arm) for name, arm in found["arms"].items()}
            measures = {
                label: MeasuredArms(tuple(each["ids"]), each["values"], each["left_out"])
                for label, each in found["measures"].items()
            }
            parts = {"claims": claims, "arms": arms, "measures": measures, "tried": tuple(found["tried"])}
            return cls(**found | parts)
        except OSError as err:
            raise ResultError(f"{path} cannot be read: {err.strerror}") from None
        except (ValueError, KeyError, TypeError) as err:
            raise ResultError(f"{path} is no result of a study: {type(err).__name__}: {err}") from None


def label(decide: DecideConfig) -> str:
    """Return the metric in words, such as `total on validation`."""
    metric = decide.metric if decide.beside is None else f"hypervolume of {decide.metric} and {decide.beside}"
    words = metric if decide.on == "call" else f"{metric} on {decide.on}"
    if decide.at == "mean":
        words += ", mean over training"
    if decide.draws == "best":
        words += ", best of its draws" if decide.of is None else f", best of {decide.of} draws"
    if decide.sources:
        words += f" ({', '.join(decide.sources)})"
    if decide.statistic == "spike":
        return f"{words}, largest over median"
    return words if decide.statistic == "mean" else f"{decide.statistic} with the truth"


def best_of_curves(also: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[int, dict[str, float]]]:
    """Return {metric: {k: {arm: mean over seeds}}} of what was measured for the best of k draws, if k has three values.

    >>> means = {k: {"arm": [k / 10, k / 5]} for k in (1, 2, 4)}
    >>> best_of_curves({f"right on validation, best of {k} draws": means[k] for k in means})["right on validation"][4]
    {'arm': 0.6}
    """
    found: dict[str, dict[int, dict[str, float]]] = {}
    for name, means in also.items():
        if match := BEST_OF.search(name):
            metric = name[: match.start()] + name[match.end() :]
            found.setdefault(metric, {})[int(match[1])] = {arm: float(np.mean(each)) for arm, each in means.items()}
    return {metric: dict(sorted(curve.items())) for metric, curve in found.items() if len(curve) >= 3}


def judge_claims(study: Study, measures: Mapping[str, MeasuredArms], independent: bool) -> tuple[ClaimResult, ...]:
    """Return the verdict on each claim of a study, by the interval of its stopping rule."""
    sequential = study.config.seeds.stop == "sequential"
    results = []
    for claim, comparison, decide in zip(study.config.claims, study.comparisons, study.decides, strict=True):
        rows_are_samples = independent and decide.on != "training" and decide.statistic == "mean"
        measured = measures[label(decide)]
        values: Values = {arm: measured.matrix(arm) for arm in comparison.arms}

        def interval_of(differences: Floats, samples: bool = rows_are_samples) -> Interval:
            return (sequential_interval if sequential else crossed_interval)(differences, independent=samples)

        judgement: Judgement = judge(comparison, values, interval_of)
        pairs = zip(comparison.contrasts, judgement.intervals, strict=True)
        contrasts = tuple(ContrastResult(c.label, i.mean, _finite(i.low), _finite(i.high)) for c, i in pairs)
        results.append(ClaimResult(claim.text, claim.test, label(decide), judgement.verdict, contrasts))
    return tuple(results)


def judged_result(
    study: Study,
    measures: Mapping[str, MeasuredArms],
    also: Mapping[str, Mapping[str, Sequence[float]]],
    stopping: str,
    seeds: int,
    libraries: Mapping[str, str],
    trained: Mapping[str, ArmRecord] | None = None,
) -> StudyResult:
    """Return the result with its claims judged; without `trained` arms, seeds are repetitions."""
    claims = judge_claims(study, measures, independent=trained is not None)
    untrained = {
        arm: ArmRecord(dict(patch), None, None, {"steps": [], "values": []}) for arm, patch in study.arms.items()
    }
    return StudyResult(
        study=study.name,
        paper=study.config.paper.model_dump(),
        verdict=verdict_of(claims),
        claims=claims,
        stopping=stopping,
        seeds=seeds,
        arms=untrained if trained is None else trained,
        measures=measures,
        also=also,
        tried=study.config.tried,
        libraries=libraries,
    )


def verdict_of(claims: Sequence[ClaimResult]) -> Outcome:
    """Return the verdict on the whole study."""
    return overall([claim.verdict for claim in claims])


def interval_cell(contrast: ContrastResult) -> str:
    """Return the interval as text; `unbounded` without one."""
    if contrast.low is None or contrast.high is None:
        return "unbounded"
    return f"{decimal(contrast.low, '+')} to {decimal(contrast.high, '+')}"


def decimal(value: float, sign: Literal["", "+"] = "") -> str:
    """Return a number with three decimals; one that would read 0.000 has two significant digits."""
    return f"{value:{sign}.3f}" if value == 0 or abs(value) >= 5e-4 else f"{value:{sign}.1e}"


def rounded(value: Any) -> Any:
    """Return JSON data with numbers of six significant digits, whole ones without a point."""
    if isinstance(value, float):
        short = float(f"{value:.{DIGITS}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


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
