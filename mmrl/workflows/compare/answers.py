"""One subject after the other answers the samples of a comparison, batch by batch, each kept when it is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError

from mmrl.build.checkpoint_pool import CheckpointPool
from mmrl.build.reward_suites import Rewards, build_reward_suite
from mmrl.data.sample import Sample
from mmrl.evaluation.comparison import ComparisonRow, SubjectStore
from mmrl.evaluation.comparison.progress import ComparisonDisplay
from mmrl.evaluation.evaluate import evaluate
from mmrl.evaluation.results import Evaluation
from mmrl.policy import batch_requests
from mmrl.rewards import Reward
from mmrl.rewards.core.reward_io import TOTAL
from mmrl.rewards.core.routing import SharedLoader, distinct_choices
from mmrl.workflows.compare.entries import ComparedModel, Shared
from mmrl.workflows.compare.inputs import Chosen, Source, fit_material

if TYPE_CHECKING:
    from mmrl.build.policies import AnyPolicy

BROKEN = (OSError, ValueError, RuntimeError, SafetensorError)
"""What a model or a checkpoint raises that cannot be used, while others can."""


@dataclass(frozen=True)
class Job:
    """What is the same for every subject."""

    folder: Path
    source: Source
    samples: Sequence[Sample]
    shared: Shared
    chosen: Chosen
    draws: int
    batch: int  # rows
    seed: int
    load: SharedLoader
    display: ComparisonDisplay


@dataclass
class Scored:
    """What became known of the rewards while samples were fitted to the subjects."""

    rewards: list[Reward] = field(default_factory=list)
    weighed: list[str] = field(default_factory=list)  # names of those that are part of a total

    def see(self, chosen: Chosen, samples: Sequence[Sample], load: SharedLoader) -> None:
        """Take in what samples are scored by."""
        asked = [(each.name, each.args, each.weight) for choice in distinct_choices(samples) for each in choice]
        if not all(sample.rewards for sample in samples):
            asked = [*((each.name, each.args, each.weight) for each in chosen.rewards), *asked]
        for name, args, weight in asked:
            reward = load(name, **args)
            if reward not in self.rewards:
                self.rewards.append(reward)
            if weight and reward.name not in self.weighed:
                self.weighed.append(reward.name)

    @property
    def lower(self) -> frozenset[str]:
        """Of which less is better."""
        return frozenset(reward.name for reward in self.rewards if reward.direction == "lower")

    @property
    def headline(self) -> str:
        """The value that says most: the one reward that weighs something, or the total of several."""
        return self.weighed[0] if len(self.weighed) == 1 else TOTAL


def generate_answers(job: Job, contenders: Sequence[ComparedModel]) -> tuple[Scored, dict[str, str]]:
    """What the answers were scored by, and why subjects that could not answer could not."""
    scored, failed = Scored(), dict[str, str]()
    for group in _by_model(contenders):
        lineup = CheckpointPool(
            [each.subject for each in group], media=job.shared.media
        )  # one model in memory at a time
        for contender in group:
            try:
                _answer(job, contender, lineup, scored)
            except BROKEN as err:
                failed[contender.name] = str(err) or type(err).__name__
                job.display.log(f"{contender.name} failed: {failed[contender.name]}")
    return scored, failed


def _answer(job: Job, contender: ComparedModel, lineup: CheckpointPool, scored: Scored) -> None:
    """The rows of one subject, from the first batch that is not finished."""
    store = SubjectStore(job.folder, contender.file)
    batches = _batches(len(job.samples), job.draws, job.batch)
    lines = store.resume([len(batch) * job.draws for batch in batches])
    total = len(job.samples) * job.draws
    job.display.start(contender.name, len(lines), total)
    if len(lines) == total:
        scored.see(job.chosen, store.samples(), job.load)
        return
    with lineup.turn(contender.name) as policy:
        samples = fit_material(job.samples, job.source, contender.subject, policy, job.shared, job.chosen)
    store.save_samples(samples)
    scored.see(job.chosen, samples, job.load)
    with closing(build_reward_suite(job.chosen.rewards, samples, job.load)) as suite:
        call = 0
        for number, batch in enumerate(batches):
            part = [samples[n] for n in batch]
            if not lines or lines[-1].batch < number:
                with lineup.turn(contender.name) as policy:
                    found = _evaluated(job, policy, suite, part, call)
                fresh = list(_kept(store, found, number, batch, job.draws))
                store.append(fresh)
                lines += fresh
                job.display.advance(len(fresh), scored.headline, _mean(lines, scored.headline))
            call += len(batch_requests(part, job.draws, job.batch))


def _evaluated(job: Job, policy: AnyPolicy, suite: Rewards, part: Sequence[Sample], call: int) -> Evaluation:
    """A batch, drawn with the noise of its place among all: see `mmrl.evaluation.evaluate`."""
    return evaluate(
        policy,
        part,
        suite,
        draws=job.draws,
        batch=job.batch,
        seed=job.seed + call,
        sampling=job.shared.sampling,
        pictures=0,
    )


def _kept(store: SubjectStore, found: Evaluation, number: int, batch: range, draws: int) -> Iterator[ComparisonRow]:
    """The rows of a batch, whose pictures are kept first."""
    for row in range(len(found.ids) * draws):
        sample, draw = batch[row // draws], row % draws
        if (image := found.images[row]) is not None:
            store.save_picture(image, sample, draw)
        yield ComparisonRow(
            batch=number,
            sample=sample,
            draw=draw,
            id=found.ids[row // draws],
            scores=_at(found.values, row),
            status={name: str(column[row]) for name, column in found.status.items()},
            reasons=found.failure_reasons[row],
            answer=found.answers[row] if found.answers else None,
            tokens=found.tokens[row] if found.tokens else None,
        )


def _at(columns: Mapping[str, np.ndarray], row: int) -> dict[str, float]:
    return {name: float(column[row]) for name, column in columns.items()}


def _batches(count: int, draws: int, rows: int) -> list[range]:
    """Numbers of samples: whole groups of draws, about `rows` rows a batch."""
    each = max(1, rows // draws)
    return [range(start, min(start + each, count)) for start in range(0, count, each)]


def _mean(lines: Sequence[ComparisonRow], name: str) -> float:
    known = np.array([line.scores.get(name, np.nan) for line in lines])
    known = known[np.isfinite(known)]
    return float(known.mean()) if known.size else float("nan")


def _by_model(contenders: Sequence[ComparedModel]) -> list[list[ComparedModel]]:
    """Those that share a model in memory, together."""
    groups: dict[str, list[ComparedModel]] = {}
    for contender in contenders:
        groups.setdefault(contender.subject.policy.model_dump_json(), []).append(contender)
    return list(groups.values())
