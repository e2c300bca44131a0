"""Experience from answers of any quality in the data, scored by the run's rewards: A-LoL (arXiv:2305.14718).

    source = StoredAnswers(policy, samples, suite, rows=64, micro_batch=64, seed=0)

Before the first update, everything is measured once: the policy, which is the reference from then on, answers each
prompt a few times, and the mean reward is its value of the prompt; the stored answers are scored, and their
log-probabilities kept. Then nothing is sampled or scored any more, and no second model is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from mmrl.data.prompts import PromptSampler, PromptSource
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.policy import TeacherForcingPolicy
from mmrl.rewards.core.suite import Scorer
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, TargetText
from mmrl.seeds import fold_in
from mmrl.training.experience import Experience, MicroBatch
from mmrl.training.rollouts.collect import CollectedRollouts, Origin, RolloutCollector, ScoredRollouts
from mmrl.training.rollouts.offline import OfflineAnswer, TextAnswerReader, offline_experience
from mmrl.training.rollouts.start_rules import selection
from mmrl.training.run.timers import Phases

VALUE_STREAM, DRAW_STREAM = 11, 12
"""The numbers of the random streams of the reference's answers, and of the draws of stored ones."""


@dataclass(frozen=True)
class MeasuredAnswer:
    """A stored answer, as it was measured before the first update."""

    sample: str  # the sample's id
    place: int  # among the sample's demonstrations
    reward: float
    value: float  # the mean reward of the reference's own answers to the prompt
    log_probs: tuple[float, ...]  # of its tokens under the reference

    @property
    def advantage(self) -> float:
        """The reward less the reference's value of the prompt."""
        return self.reward - self.value


@dataclass
class StoredAnswers:
    """A source of stored answers, the demonstrations of samples, with advantages over the reference's value.

    Raises:
        DataError: as `collect` begins, no stored answer is better than the reference's own.
    """

    policy: TeacherForcingPolicy
    samples: Sequence[Sample]
    suite: Scorer
    rows: int  # answers of an iteration
    micro_batch: int  # rows of one rollout
    seed: int
    values: int = 4  # answers of the reference to each prompt
    negatives: bool = False  # whether answers that are no better than the value are learnt from, too
    draw: Literal["advantage", "uniform"] = "advantage"
    models: Mapping[str, Any] = field(default_factory=dict)  # of the run, for rewards that ask them

    def __post_init__(self) -> None:
        self._read = TextAnswerReader(self.policy)
        self._by_id = {sample.id: sample for sample in self.samples}
        self._answers: list[MeasuredAnswer] = []  # those that are learnt from
        self._measures: dict[str, float] = {}
        self._version = 0  # of the reference

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Return stored answers with their advantages, and with the reference's log-probabilities as old ones.

        Metrics: `stored/kept_share`, of the stored answers that could be scored; `stored/reward`, their mean;
        `stored/value`, that of the reference; `stored/advantage`, the mean of the answers that are returned; and those
        of demonstrations.

        Raises:
            DataError: no stored answer is better than the reference's own.
            RunError: too few of the answers could be scored.
        """
        if not self._answers:
            self._measure(progress, phases)
        chosen = [self._answers[number] for number in self._drawn(iteration)]
        answers: list[OfflineAnswer] = []
        for group, each in enumerate(chosen):
            sample = self._by_id[each.sample]
            answers.append((sample, self._read.demonstrations(sample)[each.place], group))
        advantages = [each.advantage for each in chosen]
        found = offline_experience(self._read, answers, advantages, self.micro_batch, phases)
        batches, first = [], 0
        for batch in found.micro_batches:
            batches.append(self._from_reference(batch, chosen[first : first + batch.rollout.rows]))
            first += batch.rollout.rows
        mean = {"stored/advantage": sum(advantages) / len(advantages)}
        return Experience(batches, found.metrics | self._measures | mean)

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured, log-probabilities included: the reference is gone once the policy has changed."""
        answers = [asdict(each) | {"log_probs": list(each.log_probs)} for each in self._answers]
        return {"answers": answers, "measures": dict(self._measures), "version": self._version}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._answers = [MeasuredAnswer(**{**each, "log_probs": tuple(each["log_probs"])}) for each in state["answers"]]
        self._measures, self._version = dict(state["measures"]), int(state["version"])

    def _measure(self, progress: float, phases: Phases) -> None:
        self._version = self.policy.version
        rewards, values = [], []
        for number, first in enumerate(range(0, len(self.samples), self.rows)):
            part = self.samples[first : first + self.rows]
            collector = RolloutCollector(
                policy=self.policy,
                sampling_weights=nullcontext,
                suite=self.suite,
                micro_batch=self.micro_batch,
                seed=fold_in(self.seed, VALUE_STREAM),
                iteration=number,
                progress=progress,
                phases=phases,
                demonstrations=_EveryStored(self._read),
                models=self.models,
            )
            prompts = PromptSampler(part, len(part), self.seed)
            scored = collector.collect(_ReferenceAndStored(part, self.values, self._read), prompts).scored
            for measured in _measured(scored, part):
                rewards.append(measured.reward)
                values.append(measured.value)
                if self.negatives or measured.advantage > 0:
                    self._answers.append(measured)
        if not self._answers:
            raise DataError(
                f"none of {len(rewards)} stored answers has a better reward than the reference's own to the same "
                f"prompt, {sum(values) / max(1, len(values)):.3g} on average: a_lol has nothing to learn"
            )
        self._measures = {
            "stored/kept_share": len(self._answers) / len(rewards),
            "stored/reward": sum(rewards) / len(rewards),
            "stored/value": sum(values) / len(values),
        }

    def _drawn(self, iteration: int) -> list[int]:
        """Return the numbers of an iteration's answers, drawn with replacement."""
        rng = np.random.default_rng([self.seed, DRAW_STREAM, iteration])
        sizes = np.abs([each.advantage for each in self._answers])
        alike = self.draw == "uniform" or not sizes.any()
        found: list[int] = rng.choice(len(sizes), size=self.rows, p=None if alike else sizes / sizes.sum()).tolist()
        return found

    def _from_reference(self, batch: MicroBatch, answers: Sequence[MeasuredAnswer]) -> MicroBatch:
        """Return the micro-batch with the reference's log-probabilities in place of the present policy's."""
        rollout = batch.rollout
        known = [value for each in answers for value in each.log_probs]
        log_probs = torch.zeros_like(rollout.log_probs)
        log_probs[rollout.mask] = log_probs.new_tensor(known)
        return replace(batch, rollout=replace(rollout, log_probs=log_probs, policy_version=self._version))


@dataclass(frozen=True)
class _EveryStored:
    """A rule by which all stored answers of a sample are scored beside the reference's own."""

    read: TextAnswerReader

    def insert(
        self, requests: Sequence[RolloutRequest], begun: Collection[int], iteration: int
    ) -> tuple[list[RolloutRequest], list[TargetText]]:
        """Return the requests without the places of stored answers, and these."""
        shortened, targets = [], []
        for request in requests:
            stored = self.read.demonstrations(request.sample)
            for each in stored:
                text, turns = (each, ()) if isinstance(each, str) else ("", each)
                targets.append(TargetText(request.sample, text, request.group, turns=turns))
            shortened.append(replace(request, n=request.n - len(stored)))
        return shortened, targets


@dataclass(frozen=True)
class _ReferenceAndStored:
    """A group for each sample: `values` answers of the reference, and all stored ones."""

    samples: Sequence[Sample]
    values: int
    read: TextAnswerReader

    def next_requests(self, prompts: PromptSource, scored: ScoredRollouts | None) -> list[RolloutRequest]:
        if scored is not None:
            return []
        return [
            RolloutRequest(sample, self.values + len(self.read.demonstrations(sample)), group)
            for group, sample in enumerate(self.samples)
        ]

    def select(self, scored: ScoredRollouts, iteration: int) -> CollectedRollouts:
        return selection(scored)


def _measured(scored: ScoredRollouts, samples: Sequence[Sample]) -> Iterator[MeasuredAnswer]:
    """Yield the stored answers that could be scored, of prompts whose value is known, in order."""
    totals, groups, stored = scored.total, scored.group_index, scored.is_from(Origin.DEMONSTRATION)
    rows: list[tuple[Rollout, int]] = [(rollout, row) for rollout in scored.rollouts for row in range(rollout.rows)]
    for group, sample in enumerate(samples):
        value = float(totals[(groups == group) & ~stored].nanmean())
        places = ((groups == group) & stored).nonzero()[:, 0].tolist()
        for place, number in enumerate(places):
            reward = float(totals[number])
            if math.isfinite(reward) and math.isfinite(value):
                rollout, row = rows[number]
                log_probs = rollout.log_probs[row][rollout.mask[row]].tolist()
                yield MeasuredAnswer(sample.id, place, reward, value, tuple(log_probs))
