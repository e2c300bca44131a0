"""Compute the result of a comparison from the rows of all subjects: metrics, differences, groups, diversity."""

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
from mmrl.evaluation.comparison.estimates import Answers, Bools, MeasuredMetric, difference, estimate, mean_estimate
from mmrl.evaluation.comparison.result import Against, Group, MetricInfo, Result, SubjectResult
from mmrl.evaluation.comparison.store import ComparisonRow, SubjectStore
from mmrl.rewards.core.reward_errors import Status
from mmrl.rewards.core.reward_io import TOTAL
from mmrl.statistics.distances import Distances
from mmrl.statistics.intervals import Ints

REASONS = 3  # most frequent reasons for unscored rows that are kept
LONGEST = 120  # characters of a reason


@dataclass(frozen=True)
class EvaluatedModel:
    """A subject that has answered every sample."""

    name: str
    file: str  # the name of its files in the folder
    model: str
    step: int
    checkpoint: str | None
    digest: str
    base: str | None  # the name of another subject, if that has answered too

    @property
    def trained(self) -> bool:
        """True for a checkpoint, False for a base model."""
        return self.checkpoint is not None


@dataclass(frozen=True)
class AggregationPlan:
    """The metrics and distances to compute."""

    metrics: Sequence[MetricConfig]  # of the protocol, the headline first; may be empty
    headline: str  # the first value, where the protocol has no metrics
    shows_total: bool  # False: the total repeats the only reward
    lower: frozenset[str]  # names of the rewards where less is better
    distances: Distances
    seed: int


@dataclass
class _Subject:
    model: EvaluatedModel
    store: SubjectStore
    draws: int
    measured: dict[str, MeasuredMetric] = field(default_factory=dict)

    @cached_property
    def lines(self) -> list[ComparisonRow]:
        return self.store.lines()

    @cached_property
    def answers(self) -> Answers:
        return self.store.answers(self.lines, self.draws)

    @cached_property
    def answer_media(self) -> list[list[Any]]:
        """[N][draws] texts or kept pictures; None where neither was kept."""
        answer_media = [
            self.store.picture(each.sample, each.draw) if each.answer is None else each.answer for each in self.lines
        ]
        return [answer_media[start : start + self.draws] for start in range(0, len(answer_media), self.draws)]

    def measure(self, config: MetricConfig) -> MeasuredMetric:
        if config.label not in self.measured:
            self.measured[config.label] = MeasuredMetric(config, self.answers)
        return self.measured[config.label]

    def requested(self, config: MetricConfig) -> Bools:
        """Return [N * draws]: True for the rows that should have been scored for a metric."""
        return np.array(
            [each.status.get(config.of or "", Status.OK) != Status.NOT_APPLICABLE for each in self.lines], bool
        )


def aggregate(
    folder: Path,
    models: Sequence[EvaluatedModel],
    draws: int,
    plan: AggregationPlan,
    settings: Mapping[str, Any],
    provenance: Mapping[str, Any],
    notes: Sequence[str] = (),
    failed: Mapping[str, str] | None = None,
) -> Result:
    """Return all metrics of all subjects that have answered.

    Raises:
        EvaluationError: a metric of the protocol reads a value that the rows do not have.
    """
    subjects = {each.name: _Subject(each, SubjectStore(folder, each.file), draws) for each in models}
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
        distance=plan.distances.description(texts),
        subjects=results,
        best=best,
        failed=failed or {},
    )


def metric_configs(plan: AggregationPlan, values: Sequence[str]) -> list[MetricConfig]:
    """Return the protocol's metrics, then the mean of every value that they do not cover."""
    names = [name for name in values if name != TOTAL or plan.shows_total]
    names.sort(key=lambda name: name != plan.headline)  # a stable sort: the others keep their order
    taken = {config.label for config in plan.metrics}
    covered = {config.of for config in plan.metrics if config.name == "mean" and "tag" not in config.args}
    means = [mean_of(name, plan.lower) for name in names if name not in covered and name not in taken]
    return [*plan.metrics, *means]


def mean_of(name: str, lower: frozenset[str]) -> MetricConfig:
    """Return the configuration of the mean of one value."""
    less = name in lower or name.partition("/")[0] in lower
    return MetricConfig(name="mean", of=name, label=name, args={"direction": "lower"} if less else {})


def _best(subjects: Mapping[str, _Subject], headline: MetricConfig) -> str | None:
    """Return the trained subject with the best headline value; None if none has one."""
    found: dict[str, float] = {}
    for name, each in subjects.items():
        if each.model.trained:
            measured = each.measure(headline)
            value = measured.sign * measured.of_samples(np.arange(len(each.answers)), measured.scored)
            found |= {name: value} if math.isfinite(value) else {}
    return max(found, key=lambda name: found[name]) if found else None


def _summed(
    subject: _Subject,
    subjects: Mapping[str, _Subject],
    configs: Sequence[MetricConfig],
    plan: AggregationPlan,
    best: str | None,
) -> SubjectResult:
    model = subject.model
    base = subjects.get(model.base or "")
    numbers = {c.label: estimate(subject.measure(c), subject.requested(c), plan.seed) for c in configs}
    rival = subjects[best] if best is not None and best != model.name and model.trained else None
    known = [line.tokens for line in subject.lines if line.tokens is not None]
    drift = plan.distances.drift(base.answer_media, subject.answer_media) if base else None
    return SubjectResult(
        file=model.file,
        model=model.model,
        step=model.step,
        checkpoint=model.checkpoint,
        digest=model.digest,
        base=base.model.name if base else None,
        samples=len(subject.answers),
        draws=subject.draws,
        numbers=numbers,
        against_base=_against(base, subject, configs, plan) if base else None,
        against_best=_against(rival, subject, configs, plan) if rival else None,
        groups=_groups(base, subject, configs, plan),
        diversity=mean_estimate(plan.distances.diversity(subject.answer_media), plan.seed)
        if subject.draws > 1
        else None,
        drift=mean_estimate(drift, plan.seed) if drift is not None else None,
        tokens=sum(known) / len(known) if known else None,
        unscored=_reasons(subject.lines, (Status.ERROR, Status.TIMEOUT)),
        invalid=_reasons(subject.lines, (Status.INVALID,)),
    )


def _against(other: _Subject, subject: _Subject, configs: Sequence[MetricConfig], plan: AggregationPlan) -> Against:
    numbers = {c.label: difference(other.measure(c), subject.measure(c), plan.seed) for c in configs}
    return Against(other.model.name, numbers)


def _groups(
    base: _Subject | None, subject: _Subject, configs: Sequence[MetricConfig], plan: AggregationPlan
) -> dict[str, dict[str, Group]]:
    """Return the numbers of each group, of the metrics that any of its samples should be scored for."""
    requested = {c.label: subject.requested(c)[:: subject.draws] for c in configs}  # equal for all draws of a sample
    samples = [row.sample for row in subject.answers.rows[:: subject.draws]]
    found: dict[str, dict[str, Group]] = {}
    for by, groups in groups_of(samples).items():
        found[by] = {}
        for name, among in groups.items():
            mine = [c for c in configs if requested[c.label][among].any()]
            numbers = {c.label: estimate(subject.measure(c), subject.requested(c), plan.seed, among) for c in mine}
            changes = {
                c.label: difference(base.measure(c), subject.measure(c), plan.seed, among)
                for c in mine
                if base is not None
            }
            found[by][name] = Group(len(among), numbers, changes)
    return found


def _reasons(lines: Sequence[ComparisonRow], statuses: Sequence[Status]) -> dict[str, dict[str, int]]:
    """Return the most frequent reasons of rows with these statuses: {reward: {reason: rows}}."""
    reasons: dict[str, Counter[str]] = {}
    for line in lines:
        for name, status in line.status.items():
            if status in statuses and name != TOTAL:
                reason = f"{status}: {line.reasons[name]}" if line.reasons.get(name) else str(status)
                reasons.setdefault(name, Counter())[reason[:LONGEST]] += 1
    return {name: dict(counted.most_common(REASONS)) for name, counted in reasons.items()}


def groups_of(samples: Sequence[Sample]) -> dict[str, dict[str, Ints]]:
    """Return the sample numbers of each group, {"source": {"maths": [n]}, ...}, by task, source and tag.

    A sample has one task and one source, and any number of tags. A
    division with all samples in one group is left out.
    """
    names: dict[str, list[Sequence[str]]] = {
        "task": [(sample.task,) if sample.task else () for sample in samples],
        "source": [(sample.source,) for sample in samples],
        "tag": [sample.tags for sample in samples],
    }
    found = {by: _gathered(column) for by, column in names.items()}
    return {by: groups for by, groups in found.items() if any(len(each) < len(samples) for each in groups.values())}


def _gathered(column: Sequence[Sequence[str]]) -> dict[str, Ints]:
    members: dict[str, list[int]] = {}
    for number, names in enumerate(column):
        for name in names:
            members.setdefault(name, []).append(number)
    return {name: np.array(numbers) for name, numbers in sorted(members.items())}
