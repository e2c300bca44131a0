"""From the rows of all subjects to the result of a comparison."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mmrl.benchmarks.metrics import build_metric
from mmrl.benchmarks.protocol import MetricConfig
from mmrl.data.sample import Sample
from mmrl.evaluation.comparison.estimates import difference, estimate, mean_estimate
from mmrl.evaluation.comparison.result import Against, Group, MetricInfo, Result, SubjectResult
from mmrl.evaluation.comparison.samples import Answers, Bools, Measured
from mmrl.evaluation.comparison.store import Line, SubjectStore
from mmrl.rewards.core.reward_errors import Status
from mmrl.rewards.core.reward_io import TOTAL
from mmrl.statistics.bootstrap import Ints
from mmrl.statistics.distances import Distances

REASONS = 3  # why rows could not be scored, the most frequent
LONGEST = 120  # characters of a reason


@dataclass(frozen=True)
class EvaluatedModel:
    """A subject that has answered everything."""

    name: str
    file: str  # its name in the folder
    model: str
    step: int
    checkpoint: str | None
    digest: str
    base: str | None  # the name of another entrant, if that has answered too

    @property
    def trained(self) -> bool:
        """Whether there is training behind it."""
        return self.checkpoint is not None


@dataclass(frozen=True)
class Plan:
    """What numbers are made."""

    metrics: Sequence[MetricConfig]  # of the protocol, the headline first; may be empty
    headline: str  # the value that says most where the protocol has no metrics
    shows_total: bool  # False: it repeats the one reward that there is
    lower: frozenset[str]  # names of rewards of which less is better
    distances: Distances
    seed: int


@dataclass
class _Subject:
    entrant: EvaluatedModel
    store: SubjectStore
    draws: int
    measured: dict[str, Measured] = field(default_factory=dict)

    @cached_property
    def lines(self) -> list[Line]:
        return self.store.lines()

    @cached_property
    def answers(self) -> Answers:
        return self.store.answers(self.lines, self.draws)

    @cached_property
    def made(self) -> list[list[Any]]:
        """[N][draws] texts, or pictures as they were kept; None where there is none."""
        made = [
            self.store.picture(each.sample, each.draw) if each.answer is None else each.answer for each in self.lines
        ]
        return [made[start : start + self.draws] for start in range(0, len(made), self.draws)]

    def measure(self, config: MetricConfig) -> Measured:
        if config.label not in self.measured:
            self.measured[config.label] = Measured(config, self.answers)
        return self.measured[config.label]

    def asked(self, config: MetricConfig) -> Bools:
        """[N * draws]; the rows that were to be scored for a metric."""
        return np.array(
            [each.status.get(config.of or "", Status.OK) != Status.NOT_APPLICABLE for each in self.lines], bool
        )


def sum_up(
    folder: Path,
    entrants: Sequence[EvaluatedModel],
    draws: int,
    plan: Plan,
    settings: Mapping[str, Any],
    provenance: Mapping[str, Any],
    notes: Sequence[str] = (),
    failed: Mapping[str, str] | None = None,
) -> Result:
    """All numbers of all subjects that have answered.

    Raises:
        EvaluationError: a metric of the protocol reads what the rows do not hold.
    """
    subjects = {each.name: _Subject(each, SubjectStore(folder, each.file), draws) for each in entrants}
    names = dict.fromkeys(n for each in subjects.values() for line in each.lines for n in line.scores)
    configs = metric_configs(plan, list(names))
    infos = [MetricInfo(c.label, build_metric(c).direction, c.model_dump(mode="json")) for c in configs]
    best = _best(subjects, configs[0])
    results = {name: _summed(each, subjects, configs, plan, best) for name, each in subjects.items()}
    texts = any(line.answer is not None for each in subjects.values() for line in each.lines[:1])
    return Result(
        settings=settings,
        provenance=provenance,
        notes=tuple(notes),
        metrics=tuple(infos),
        distance=plan.distances.told(texts),
        subjects=results,
        best=best,
        failed=failed or {},
    )


def metric_configs(plan: Plan, values: Sequence[str]) -> list[MetricConfig]:
    """The protocol's metrics, then the mean of every value that they do not give already."""
    names = [name for name in values if name != TOTAL or plan.shows_total]
    names.sort(key=lambda name: name != plan.headline)  # else in the order in which they come
    taken = {config.label for config in plan.metrics}
    told = {config.of for config in plan.metrics if config.name == "mean" and "tag" not in config.args}
    means = [mean_of(name, plan.lower) for name in names if name not in told and name not in taken]
    return [*plan.metrics, *means]


def mean_of(name: str, lower: frozenset[str]) -> MetricConfig:
    """The mean of one value."""
    less = name in lower or name.partition("/")[0] in lower
    return MetricConfig(name="mean", of=name, label=name, args={"direction": "lower"} if less else {})


def _best(subjects: Mapping[str, _Subject], headline: MetricConfig) -> str | None:
    """The trained subject with the best headline."""
    found: dict[str, float] = {}
    for name, each in subjects.items():
        if each.entrant.trained:
            measured = each.measure(headline)
            value = measured.sign * measured.of_samples(np.arange(len(each.answers)), measured.scored)
            found |= {name: value} if math.isfinite(value) else {}
    return max(found, key=lambda name: found[name]) if found else None


def _summed(
    subject: _Subject, subjects: Mapping[str, _Subject], configs: Sequence[MetricConfig], plan: Plan, best: str | None
) -> SubjectResult:
    entrant = subject.entrant
    base = subjects.get(entrant.base or "")
    numbers = {c.label: estimate(subject.measure(c), subject.asked(c), plan.seed) for c in configs}
    rival = subjects[best] if best is not None and best != entrant.name and entrant.trained else None
    known = [line.tokens for line in subject.lines if line.tokens is not None]
    drift = plan.distances.drift(base.made, subject.made) if base else None
    return SubjectResult(
        file=entrant.file,
        model=entrant.model,
        step=entrant.step,
        checkpoint=entrant.checkpoint,
        digest=entrant.digest,
        base=base.entrant.name if base else None,
        samples=len(subject.answers),
        draws=subject.draws,
        numbers=numbers,
        against_base=_against(base, subject, configs, plan) if base else None,
        against_best=_against(rival, subject, configs, plan) if rival else None,
        groups=_groups(base, subject, configs, plan),
        diversity=mean_estimate(plan.distances.diversity(subject.made), plan.seed) if subject.draws > 1 else None,
        drift=mean_estimate(drift, plan.seed) if drift is not None else None,
        tokens=sum(known) / len(known) if known else None,
        unscored=_reasons(subject.lines, (Status.ERROR, Status.TIMEOUT)),
        invalid=_reasons(subject.lines, (Status.INVALID,)),
    )


def _against(other: _Subject, subject: _Subject, configs: Sequence[MetricConfig], plan: Plan) -> Against:
    numbers = {c.label: difference(other.measure(c), subject.measure(c), plan.seed) for c in configs}
    return Against(other.entrant.name, numbers)


def _groups(
    base: _Subject | None, subject: _Subject, configs: Sequence[MetricConfig], plan: Plan
) -> dict[str, dict[str, Group]]:
    """Numbers of each group, of the metrics that any of its samples were to be scored for."""
    asked = {c.label: subject.asked(c)[:: subject.draws] for c in configs}  # all draws of a sample are asked alike
    samples = [row.sample for row in subject.answers.rows[:: subject.draws]]
    found: dict[str, dict[str, Group]] = {}
    for by, groups in groups_of(samples).items():
        found[by] = {}
        for name, among in groups.items():
            mine = [c for c in configs if asked[c.label][among].any()]
            numbers = {c.label: estimate(subject.measure(c), subject.asked(c), plan.seed, among) for c in mine}
            moved = {
                c.label: difference(base.measure(c), subject.measure(c), plan.seed, among)
                for c in mine
                if base is not None
            }
            found[by][name] = Group(len(among), numbers, moved)
    return found


def _reasons(lines: Sequence[Line], statuses: Sequence[Status]) -> dict[str, dict[str, int]]:
    """Why rows have these statuses, by reward; nothing where none has."""
    reasons: dict[str, Counter[str]] = {}
    for line in lines:
        for name, status in line.status.items():
            if status in statuses and name != TOTAL:
                why = f"{status}: {line.why[name]}" if line.why.get(name) else str(status)
                reasons.setdefault(name, Counter())[why[:LONGEST]] += 1
    return {name: dict(counted.most_common(REASONS)) for name, counted in reasons.items()}


# Samples that belong together: of one task, one source, or under one tag (a clause, a dimension, a skill).


BY = ("task", "source", "tag")


def groups_of(samples: Sequence[Sample]) -> dict[str, dict[str, Ints]]:
    """{"source": {"maths": numbers of its samples}, ...}; without a division that leaves all samples together.

    A sample has one task and one source, and any number of tags (`metadata["tags"]`).
    """
    names: dict[str, list[Sequence[str]]] = {
        "task": [(sample.task,) if sample.task else () for sample in samples],
        "source": [(sample.source,) for sample in samples],
        "tag": [tags_of(sample) for sample in samples],
    }
    found = {by: _gathered(column) for by, column in names.items()}
    return {by: groups for by, groups in found.items() if any(len(each) < len(samples) for each in groups.values())}


def tags_of(sample: Sample) -> list[str]:
    """What a sample is counted under, each once."""
    given = sample.metadata.get("tags", ())
    listed = [given] if isinstance(given, str) else given if isinstance(given, list | tuple) else []
    return list(dict.fromkeys(str(tag) for tag in listed))


def _gathered(column: Sequence[Sequence[str]]) -> dict[str, Ints]:
    members: dict[str, list[int]] = {}
    for number, names in enumerate(column):
        for name in names:
            members.setdefault(name, []).append(number)
    return {name: np.array(numbers) for name, numbers in sorted(members.items())}
