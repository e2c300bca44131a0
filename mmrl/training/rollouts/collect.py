"""The collector: it samples rollouts, has them scored, and asks a group sampler which requests come next.

    collected = RolloutCollector(policy, ...).collect(FixedGroupSampler(group_size=8), prompts)

Sampling and scoring overlap: the rewards of a call are computed in threads while the next call is sampled. This file
holds the plain group sampler, which requests the same number of answers to each prompt and trains on all of them;
`group_sampling` has the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from mmrl.data.prompts import PromptSource
from mmrl.data.sample import Sample
from mmrl.distributed import processes
from mmrl.errors import RunError
from mmrl.policy import AnnouncedRollouts, Policy, TeacherForcingPolicy
from mmrl.rewards.core.reward_io import (
    TOTAL,
    RewardContext,
    RewardInput,
    RewardOutput,
    append_rows,
    reward_input,
    without_void_rows,
)
from mmrl.rewards.core.suite import Scorer, TooFewScored
from mmrl.rollout import EpisodeRecord, Rollout
from mmrl.rollout_request import RolloutRequest, RowStart, TargetText, chunk_requests
from mmrl.seeds import fold_in
from mmrl.training.rollouts.answer_lengths import AnswerLengths
from mmrl.training.rollouts.demonstrations import InsertedTexts
from mmrl.training.rollouts.exchange import deal, own_rows, shared_answers, shared_rows
from mmrl.training.run.timers import Phases

REWARD_STREAM = 9
"""The number of the random stream of rewards, beside those of the calls of the policy."""


class Origin(StrEnum):
    """The writer of a rollout's rows."""

    POLICY = "policy"
    """The policy, in this iteration."""
    DEMONSTRATION = "demonstration"
    """The author of the data set."""
    REPLAY = "replay"
    """The policy, in an earlier iteration."""


@dataclass(frozen=True)
class ScoredRollouts:
    """Rollouts and the rewards of their rows, R rows in all."""

    rollouts: list[Rollout]
    origins: list[Origin]  # of each rollout
    output: RewardOutput  # of R rows
    round_sizes: tuple[int, ...] = ()  # rows that each round of sampling added; they sum to R before any replay

    @property
    def group_index(self) -> Tensor:
        """The group of each row, [R] int64 on the CPU."""
        return torch.cat([rollout.group_index.cpu() for rollout in self.rollouts])

    @property
    def total(self) -> Tensor:
        """The total reward of each row, [R] float32; NaN = could not be scored."""
        return torch.from_numpy(self.output.values[TOTAL])

    @property
    def samples(self) -> list[Sample]:
        """The sample that each of the R rows answers."""
        return [sample for rollout in self.rollouts for sample in rollout.samples]

    @property
    def starts(self) -> list[RowStart | None]:
        """The start of each of the R rows; None: its sample alone."""
        return [start for rollout in self.rollouts for start in rollout.starts or [None] * rollout.rows]

    @property
    def sizes(self) -> list[int]:
        """The number of rows of each rollout."""
        return [rollout.rows for rollout in self.rollouts]

    def places(self) -> list[tuple[int, int]]:
        """Return the number of the rollout and the row within it, for each of the R rows."""
        return [(number, row) for number, size in enumerate(self.sizes) for row in range(size)]

    def is_from(self, origin: Origin) -> Tensor:
        """Return [R] bool: True where the row has this origin."""
        return torch.tensor(
            [each is origin for each, size in zip(self.origins, self.sizes, strict=True) for _ in range(size)]
        )

    def with_rollout(self, rollout: Rollout, origin: Origin, values: Sequence[Mapping[str, float]]) -> ScoredRollouts:
        """Return these rollouts with one more at the end, whose rewards `values` (a row each) are known."""
        return replace(
            self,
            rollouts=[*self.rollouts, rollout],
            origins=[*self.origins, origin],
            output=append_rows(self.output, values),
        )


@dataclass(frozen=True)
class CollectedRollouts:
    """The rollouts of an iteration, R rows, and what each row is used for."""

    scored: ScoredRollouts
    in_baseline: Tensor  # [R] bool; the rows that advantages are relative to
    trained: Tensor  # [R] bool; those of them that are trained on
    on_policy: Tensor  # [R] bool; the policy's own, the same number for each prompt: reward metrics are means of these
    metrics: dict[str, float] = field(default_factory=dict)
    compared: Tensor | None = None  # [R] int64; rows with equal numbers are relative to one another. None: by group
    credit: Tensor | None = None  # [R] float, added to the advantages of rows in the baseline. None: nothing

    @property
    def groups(self) -> Tensor:
        """The number that a row shares with those its advantage is relative to, [R] int64."""
        return self.scored.group_index if self.compared is None else self.compared


class GroupSampler(Protocol):
    """A rule for how many answers to which prompts an iteration samples, and which of them are trained on."""

    def next_requests(self, prompts: PromptSource, scored: ScoredRollouts | None) -> list[RolloutRequest]:
        """Return the requests of the next round; none ends the sampling. Groups are numbered from 0.

        `scored` holds the answers of all rounds so far; None before the first round.
        """

    def select(self, scored: ScoredRollouts, iteration: int) -> CollectedRollouts:
        """Select the rows that count, after the last round."""


@dataclass(frozen=True)
class FixedGroupSampler:
    """`group_size` answers to each prompt in one round, all of which are trained on."""

    group_size: int

    def next_requests(self, prompts: PromptSource, scored: ScoredRollouts | None) -> list[RolloutRequest]:
        """Return a request for each prompt of the iteration, then none."""
        if scored is not None:
            return []
        return [RolloutRequest(sample, self.group_size, group) for group, sample in enumerate(prompts.next())]

    def select(self, scored: ScoredRollouts, iteration: int) -> CollectedRollouts:
        """Select every row."""
        everything = torch.ones(len(scored.samples), dtype=torch.bool)
        return CollectedRollouts(scored, everything, everything, scored.is_from(Origin.POLICY))


@dataclass
class RolloutCollector:
    """Samples and scores the rollouts of one iteration. The seed of a call follows from its number in the iteration."""

    policy: Policy
    sampling_weights: Callable[[], AbstractContextManager[Any]]  # open while sampling
    suite: Scorer
    micro_batch: int  # rows of one rollout
    seed: int
    iteration: int
    progress: float  # share of training that is done, in [0, 1]
    phases: Phases
    demonstrations: InsertedTexts | None = None  # that take places of the policy's answers
    keep_means: bool = False  # of decisions, for objectives that read them
    keep_clean: bool = False  # in rollouts of other processes, whose rows may be put into new micro-batches
    max_turns: int | None = None  # of an episode; None: as the environment says
    models: Mapping[str, Any] = field(default_factory=dict)  # of the run, for rewards that ask them
    lengths: AnswerLengths | None = None  # by which calls are dealt to several processes; None: in turn
    _calls: int = field(default=0, init=False)
    _groups: set[int] = field(default_factory=set, init=False)
    _rollouts: list[Rollout] = field(default_factory=list, init=False)
    _origins: list[Origin] = field(default_factory=list, init=False)
    _pending: list[Any] = field(default_factory=list, init=False)  # scores that were submitted
    _round_sizes: list[int] = field(default_factory=list, init=False)

    def collect(self, sampler: GroupSampler, prompts: PromptSource) -> CollectedRollouts:
        """Sample and score round after round until the sampler requests no more, then select the rows that count.

        Raises:
            RunError: too few of the answers could be scored.
        """
        scored: ScoredRollouts | None = None
        while requests := sampler.next_requests(prompts, scored):
            scored = self._sample_and_score(requests)
        if scored is None:
            raise ValueError(f"{type(sampler).__name__} requested no answers: a group sampler needs a first round")
        return sampler.select(scored, self.iteration)

    def _sample_and_score(self, requests: Sequence[RolloutRequest]) -> ScoredRollouts:
        """Return the rollouts of all rounds so far, these requests included."""
        requests = iteration_requests(requests, self.seed, self.iteration, self.keep_means, self.max_turns)
        group_sizes = Counter[int]()
        for request in requests:
            group_sizes[request.group] += request.n
        targets: list[TargetText] = []
        if self.demonstrations is not None:
            requests, targets = self.demonstrations.insert(requests, self._groups, self.iteration)
        if self.suite.needs_full_groups and any(group in self._groups for group in group_sizes):
            raise RunError(
                "a reward compares the answers of a group, and the group is sampled in several rounds: leave one of "
                "the two out (rewards, data.group_sampling, data.starts)"
            )
        self._groups.update(group_sizes)
        seed = fold_in(self.seed, self.iteration, REWARD_STREAM)
        queue = ScoringQueue(self.suite, RewardContext(self.progress, self.models, seed), group_sizes)
        texts = [targets[start : start + self.micro_batch] for start in range(0, len(targets), self.micro_batch)]
        calls = chunk_requests(requests, self.micro_batch)
        groups = [{each.group for each in text} for text in texts] + [{each.group for each in call} for call in calls]
        costs = None if texts or self.lengths is None else [self.lengths.cost(call) for call in calls]
        ranks = deal(groups, self.suite.needs_full_groups, len(self._rollouts), costs)
        first, self._calls = self._calls, self._calls + len(calls)
        seeds = [fold_in(self.seed, self.iteration, number) for number in range(first, self._calls)]
        work: list[Callable[[], Rollout]] = [partial(self._score_targets, text) for text in texts]
        work += [partial(self._sample, call, seed) for call, seed in zip(calls, seeds, strict=True)]
        self._announce([pair for pair, rank in zip(zip(calls, seeds, strict=True), ranks[len(texts) :], strict=True)
                        if rank == processes.rank()])  # fmt: skip
        own: dict[int, Rollout] = {}
        for number, (rank, make) in enumerate(zip(ranks, work, strict=True)):
            if rank == processes.rank():
                own[number] = make()
                queue.add(reward_inputs(own[number]))
        queue.finish()
        samples = [each.sample for each in targets] + [each.sample for each in requests]
        self._pending += queue.submitted
        with self.phases("reward"):
            scores = self.suite.join(self._pending)
        rollouts, output = shared_answers(own, scores, samples, self.keep_clean, self._rollouts)
        self._rollouts += rollouts
        self._origins += [Origin.DEMONSTRATION] * len(texts) + [Origin.POLICY] * len(calls)
        self._round_sizes.append(group_sizes.total())
        if self.lengths is not None:
            self.lengths.learn(rollouts[len(texts) :])
        output = without_void_rows(output, [each for rollout in self._rollouts for each in void_kinds(rollout)])
        with self.phases("reward"):
            check_scored(self.suite, output)
        return ScoredRollouts(list(self._rollouts), list(self._origins), output, tuple(self._round_sizes))

    def _announce(self, calls: Sequence[tuple[Sequence[RolloutRequest], int]]) -> None:
        if isinstance(self.policy, AnnouncedRollouts):
            with self.phases("rollout"), torch.no_grad(), self.sampling_weights():
                self.policy.announce(calls)

    def _sample(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        with self.phases("rollout"), torch.no_grad(), self.sampling_weights():
            return self.policy.rollout(requests, seed=seed)

    def _score_targets(self, targets: Sequence[TargetText]) -> Rollout:
        policy: TeacherForcingPolicy = self.policy  # type: ignore[assignment]  # `OnlineRollouts` checks the capability
        with self.phases("rollout"), torch.no_grad(), self.sampling_weights():
            return policy.score_targets(targets)


def iteration_requests(
    requests: Sequence[RolloutRequest], seed: int, iteration: int, keep_means: bool, max_turns: int | None
) -> list[RolloutRequest]:
    """Return the requests with what all calls of an iteration share."""
    shared = fold_in(seed, iteration)
    return [
        replace(each, shared_seed=shared, iteration=iteration, keep_means=keep_means, max_turns=max_turns)
        for each in requests
    ]


class ScoringQueue:
    """Answers on their way to a scorer: at once, or once their groups are complete if a reward compares answers.

    Rewards that compute with models of the run wait for the last rollout: the policy cannot sample meanwhile.
    """

    def __init__(self, suite: Scorer, context: RewardContext, group_sizes: Mapping[int, int]) -> None:
        self._suite, self._context, self._group_sizes = suite, context, group_sizes
        self._waiting: list[RewardInput] = []
        self.submitted: list[Any] = []

    def add(self, inputs: Sequence[RewardInput]) -> None:
        """Submit what can be scored; it is scored while the next rollouts are sampled."""
        self._waiting += inputs
        if self._suite.models:
            return
        ready = (
            complete_groups(self._waiting, self._group_sizes) if self._suite.needs_full_groups else len(self._waiting)
        )
        if ready:
            self.submitted.append(self._suite.submit(self._waiting[:ready], self._context))
            self._waiting = self._waiting[ready:]

    def finish(self) -> None:
        """Submit what waits for the end of sampling."""
        if self._waiting:
            self.submitted.append(self._suite.submit(self._waiting, self._context))
            self._waiting = []


def check_scored(suite: Scorer, output: RewardOutput) -> None:
    """Raise unless enough of an iteration's answers so far could be scored: a single round may be small."""
    try:
        suite.check_valid_share(output)
    except TooFewScored as err:
        raise RunError(f"{err}; training.min_valid_share is the least share that must be scored") from err
    if any(output.events):
        raise RunError(
            "a reward returned events at single decisions, which training cannot use: return one value an answer"
        )


def complete_groups(inputs: Sequence[RewardInput], group_sizes: Mapping[int, int]) -> int:
    """Return the largest number of leading rows that consist of complete groups."""
    missing = dict(group_sizes)
    begun: set[int] = set()
    complete = 0
    for row, item in enumerate(inputs, start=1):
        missing[item.group] -= 1
        if missing[item.group]:
            begun.add(item.group)
        else:
            begun.discard(item.group)
        if not begun:
            complete = row
    return complete


def reward_inputs(rollout: Rollout) -> list[RewardInput]:
    """Return one reward input for each row, in order."""
    tokens: Sequence[list[int] | None] = rollout.token_ids or [None] * rollout.rows
    episodes: Sequence[EpisodeRecord | None] = rollout.episodes or [None] * rollout.rows
    starts: Sequence[RowStart | None] = rollout.starts or [None] * rollout.rows
    rows = zip(rollout.samples, rollout.media, rollout.group_index.tolist(), tokens, episodes, starts, strict=True)
    return [
        reward_input(
            sample,
            media,
            group=int(group),
            id=f"{sample.id}/{row}",
            tokens=ids,
            outcome=None if episode is None else episode.outcome,
            turns=() if episode is None else episode.texts,
            start=None if start is None else start.as_dict(),
        )
        for row, (sample, media, group, ids, episode, start) in enumerate(rows)
    ]


def shared_inputs(rollouts: Sequence[Rollout]) -> list[RewardInput]:
    """Return one reward input for each row, in order, with its whole media, also of rows that other processes made."""
    own = [item for rollout in rollouts if not rollout.remote for item in reward_inputs(rollout)]
    return shared_rows(own, own_rows([(rollout.rows, not rollout.remote) for rollout in rollouts]))


def void_kinds(rollout: Rollout) -> list[str | None]:
    """Return [B]: the kind of failure of each row's episode; None where it is valid, or there is none."""
    return [None] * rollout.rows if rollout.episodes is None else [episode.void for episode in rollout.episodes]
