"""Generate and score the answers of every model, batch by batch. A finished batch is saved and not repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError

from mmrl.build.checkpoint_pool import CheckpointPool
from mmrl.build.reward_suites import build_reward_suite
from mmrl.data.sample import Sample
from mmrl.evaluation.comparison import ComparisonRow, SubjectStore
from mmrl.evaluation.comparison.progress import ComparisonDisplay
from mmrl.evaluation.evaluate import evaluate
from mmrl.evaluation.results import Evaluation
from mmrl.rewards import Reward
from mmrl.rewards.core.reward_io import TOTAL
from mmrl.rewards.core.routing import SharedLoader, distinct_choices
from mmrl.rollout_request import batch_requests
from mmrl.workflows.compare.entries import ComparedModel, SharedSettings
from mmrl.workflows.compare.inputs import SampleSource, SelectedRewards, fit_samples

if TYPE_CHECKING:
    pass

MODEL_ERRORS = (OSError, ValueError, RuntimeError, SafetensorError)
"""Errors of one unusable model or checkpoint, after which the others still answer."""


@dataclass(frozen=True)
class CompareJob:
    """The parts of a comparison that are the same for every model."""

    folder: Path
    source: SampleSource
    samples: Sequence[Sample]
    shared: SharedSettings
    selected: SelectedRewards
    draws: int
    """Answers to each sample."""
    batch: int
    """Answers that are generated together."""
    seed: int
    load: SharedLoader
    display: ComparisonDisplay


@dataclass
class ScoredBy:
    """The rewards that scored the answers, collected while samples are prepared for the models."""

    rewards: list[Reward] = field(default_factory=list)
    weighted: list[str] = field(default_factory=list)
    """Names of the rewards that are part of a total."""

    def update(self, selected: SelectedRewards, samples: Sequence[Sample], load: SharedLoader) -> None:
        """Add the rewards of these samples."""
        choices = [(each.name, each.args, each.weight) for choice in distinct_choices(samples) for each in choice]
        if not all(sample.rewards for sample in samples):
            choices = [*((each.name, each.args, each.weight) for each in selected.rewards), *choices]
        for name, args, weight in choices:
            reward = load(name, **args)
            if reward not in self.rewards:
                self.rewards.append(reward)
            if weight and reward.name not in self.weighted:
                self.weighted.append(reward.name)

    @property
    def lower(self) -> frozenset[str]:
        """The names of the rewards of which a lower value is better."""
        return frozenset(reward.name for reward in self.rewards if reward.direction == "lower")

    @property
    def headline(self) -> str:
        """The name of the main value: the one reward that has a weight, or the total of several."""
        return self.weighted[0] if len(self.weighted) == 1 else TOTAL


def generate_answers(job: CompareJob, entries: Sequence[ComparedModel]) -> tuple[ScoredBy, dict[str, str]]:
    """Generate and score all missing answers.

    Returns the rewards that scored them, and for each model that failed, by name, the error.
    """
    scored_by, failed = ScoredBy(), dict[str, str]()
    for group in _by_base_model(entries):  # one model in memory at a time
        pool = CheckpointPool([entry.model for entry in group], media=job.shared.media, in_environments=True)
        for entry in group:
            try:
                _answer(job, entry, pool, scored_by)
            except MODEL_ERRORS as err:
                failed[entry.name] = str(err) or type(err).__name__
                job.display.log(f"{entry.name} failed: {failed[entry.name]}")
    return scored_by, failed


def _answer(job: CompareJob, entry: ComparedModel, pool: CheckpointPool, scored_by: ScoredBy) -> None:
    """Generate one model's answers, from the first unfinished batch on."""
    store = SubjectStore(job.folder, entry.file)
    batches = _batches(len(job.samples), job.draws, job.batch)
    lines = store.resume([len(batch) * job.draws for batch in batches])
    total = len(job.samples) * job.draws
    job.display.start(entry.name, len(lines), total)
    if len(lines) == total:
        scored_by.update(job.selected, store.samples(), job.load)
        return
    with pool.activate(entry.name) as policy:
        samples = fit_samples(job.samples, job.source, entry.model, policy, job.shared, job.selected)
    store.save_samples(samples)
    scored_by.update(job.selected, samples, job.load)
    with closing(build_reward_suite(job.selected.rewards, samples, job.load)) as suite:
        call = 0  # of the model: a batch has the noise of its place among all batches
        for number, batch in enumerate(batches):
            part = [samples[n] for n in batch]
            if not lines or lines[-1].batch < number:
                with pool.answering(entry.name) as chain:
                    evaluation = evaluate(
                        chain,
                        part,
                        suite,
                        draws=job.draws,
                        batch=job.batch,
                        seed=job.seed + call,
                        sampling=job.shared.sampling,
                        pictures=0,
                    )
                fresh = list(_rows(store, evaluation, number, batch, job.draws))
                store.append(fresh)
                lines += fresh
                job.display.advance(len(fresh), scored_by.headline, _mean(lines, scored_by.headline))
            call += len(batch_requests(part, job.draws, job.batch))


def _rows(
    store: SubjectStore, evaluation: Evaluation, number: int, batch: range, draws: int
) -> Iterator[ComparisonRow]:
    """Yield the rows of a batch; a row's picture is saved before."""
    for row in range(len(evaluation.ids) * draws):
        sample, draw = batch[row // draws], row % draws
        if (image := evaluation.images[row]) is not None:
            store.save_picture(image, sample, draw)
        yield ComparisonRow(
            batch=number,
            sample=sample,
            draw=draw,
            id=evaluation.ids[row // draws],
            scores={name: float(column[row]) for name, column in evaluation.values.items()},
            status={name: str(column[row]) for name, column in evaluation.status.items()},
            reasons=evaluation.failure_reasons[row],
            answer=evaluation.answers[row] if evaluation.answers else None,
            tokens=evaluation.tokens[row] if evaluation.tokens else None,
        )


def _batches(count: int, draws: int, rows: int) -> list[range]:
    """Split sample indices into batches of about `rows` answers, with all draws of a sample in one batch."""
    each = max(1, rows // draws)
    return [range(start, min(start + each, count)) for start in range(0, count, each)]


def _mean(lines: Sequence[ComparisonRow], name: str) -> float:
    scores = np.array([line.scores.get(name, np.nan) for line in lines])
    scores = scores[np.isfinite(scores)]
    return float(scores.mean()) if scores.size else float("nan")


def _by_base_model(entries: Sequence[ComparedModel]) -> list[list[ComparedModel]]:
    """Group the entries that share a model in memory."""
    groups: dict[str, list[ComparedModel]] = {}
    for entry in entries:
        groups.setdefault(entry.model.policy.model_dump_json(), []).append(entry)
    return list(groups.values())
