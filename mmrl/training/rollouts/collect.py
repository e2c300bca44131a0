"""Drawing what is asked for and scoring it, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from mmrl.data.sample import Sample
from mmrl.errors import RunError
from mmrl.policy import Policy, Rollout, RolloutRequest, TargetText, TeacherForcingPolicy, chunk_requests
from mmrl.rewards.core.reward_io import TOTAL, RewardContext, RewardInput, RewardOutput, append_rows, reward_input
from mmrl.rewards.core.routing import Scorer
from mmrl.rewards.core.suite import TooFewScored
from mmrl.seeds import fold_in
from mmrl.training.rollouts.demonstrations import MixedDemonstrations
from mmrl.training.run.timers import Phases


class Origin(StrEnum):
    """Who wrote the rows of a rollout."""

    POLICY = "policy"
    """The policy, just now."""
    DEMONSTRATION = "demonstration"
    """Somebody else: it stands in the data set."""
    REPLAY = "replay"
    """The policy, in an iteration before."""


@dataclass(frozen=True)
class ScoredRollouts:
    """Rollouts and the rewards of their rows, R in all, row after row."""

    rollouts: list[Rollout]
    origins: list[Origin]  # one a rollout
    output: RewardOutput  # of R rows

    @property
    def group_index(self) -> Tensor:
        """[R] int64, on the CPU."""
        return torch.cat([rollout.group_index.cpu() for rollout in self.rollouts])

    @property
    def total(self) -> Tensor:
        """[R] float32; NaN = could not be scored."""
        return torch.from_numpy(self.output.values[TOTAL])

    @property
    def samples(self) -> list[Sample]:
        """R of them, the sample that each row answers."""
        return [sample for rollout in self.rollouts for sample in rollout.samples]

    @property
    def sizes(self) -> list[int]:
        """Rows of each rollout."""
        return [rollout.rows for rollout in self.rollouts]

    def places(self) -> list[tuple[int, int]]:
        """R pairs: which rollout a row is in, and where."""
        return [(number, row) for number, size in enumerate(self.sizes) for row in range(size)]

    def is_from(self, origin: Origin) -> Tensor:
        """[R] bool."""
        return torch.tensor(
            [each is origin for each, size in zip(self.origins, self.sizes, strict=True) for _ in range(size)]
        )

    def with_rollout(self, rollout: Rollout, origin: Origin, values: Sequence[Mapping[str, float]]) -> ScoredRollouts:
        """One more rollout behind the others, whose rewards are known."""
        return ScoredRollouts([*self.rollouts, rollout], [*self.origins, origin], append_rows(self.output, values))


@dataclass
class RolloutCollector:
    """Draws and scores in one iteration. Calls are numbered; their seeds follow from the numbers."""

    policy: Policy
    sampling_weights: Callable[[], AbstractContextManager[Any]]  # open while sampling
    suite: Scorer
    micro_batch: int  # rows of one rollout
    seed: int
    iteration: int
    progress: float
    phases: Phases
    mixed: MixedDemonstrations | None = None
    keep_means: bool = False  # of decisions, where an objective looks at them
    _calls: int = field(default=0, init=False)
    _groups: set[int] = field(default_factory=set, init=False)
    _rollouts: list[Rollout] = field(default_factory=list, init=False)
    _origins: list[Origin] = field(default_factory=list, init=False)
    _scores: list[Any] = field(default_factory=list, init=False)

    def __call__(self, requests: Sequence[RolloutRequest]) -> ScoredRollouts:
        """What came of these requests alone. A group's first request may be answered by a demonstration, in part.

        Raises:
            RunError: too few of the answers could be scored.
        """
        first = len(self._rollouts)
        asked = [
            replace(
                request,
                shared_seed=fold_in(self.seed, self.iteration),
                iteration=self.iteration,
                keep_means=self.keep_means,
            )
            for request in requests
        ]
        sizes = Counter[int]()
        for request in asked:
            sizes[request.group] += request.n
        given: list[TargetText] = []
        if self.mixed is not None:
            asked, given = self.mixed.among(asked, self._groups, self.iteration)
        self._groups.update(sizes)
        scores = _Scoring(self.suite, RewardContext(progress=self.progress), sizes)
        for start in range(0, len(given), self.micro_batch):
            self._add(self._force(given[start : start + self.micro_batch]), Origin.DEMONSTRATION, scores)
        for call in chunk_requests(asked, self.micro_batch):
            self._add(self._roll_out(call), Origin.POLICY, scores)
        self._scores += scores.begun
        with self.phases("reward"):
            output = self.suite.join(scores.begun)
            self._refuse(self.suite.join(self._scores))
        return ScoredRollouts(self._rollouts[first:], self._origins[first:], output)

    def everything(self) -> ScoredRollouts:
        """What came of all requests so far."""
        return ScoredRollouts(list(self._rollouts), list(self._origins), self.suite.join(self._scores))

    def _roll_out(self, requests: Sequence[RolloutRequest]) -> Rollout:
        seed = fold_in(self.seed, self.iteration, self._calls)
        self._calls += 1
        with self.phases("rollout"), torch.no_grad(), self.sampling_weights():
            return self.policy.rollout(requests, seed=seed)

    def _force(self, given: Sequence[TargetText]) -> Rollout:
        policy: TeacherForcingPolicy = self.policy  # type: ignore[assignment]  # `MixedDemonstrations` has seen to it
        with self.phases("rollout"), torch.no_grad(), self.sampling_weights():
            return policy.score_targets(given)

    def _add(self, rollout: Rollout, origin: Origin, scores: _Scoring) -> None:
        self._rollouts.append(rollout)
        self._origins.append(origin)
        scores.take(reward_inputs(rollout))

    def _refuse(self, output: RewardOutput) -> None:
        """Of all that was drawn so far: a round may be small."""
        try:
            self.suite.check_valid_share(output)
        except TooFewScored as err:
            raise RunError(f"{err}; training.min_valid_share says how many must be") from err
        if any(output.events):
            raise RunError("a reward gave events at single decisions, for which this loop has no credit yet")


class _Scoring:
    """Answers on their way to a scorer: at once, or as soon as their groups are whole if it compares answers."""

    def __init__(self, suite: Scorer, context: RewardContext, sizes: Mapping[int, int]) -> None:
        self._suite, self._context, self._sizes = suite, context, sizes
        self._waiting: list[RewardInput] = []
        self.begun: list[Any] = []

    def take(self, inputs: Sequence[RewardInput]) -> None:
        """Scored while the next ones are drawn."""
        self._waiting += inputs
        whole = whole_groups(self._waiting, self._sizes) if self._suite.needs_full_groups else len(self._waiting)
        if whole:
            self.begun.append(self._suite.submit(self._waiting[:whole], self._context))
            self._waiting = self._waiting[whole:]


def whole_groups(drawn: Sequence[RewardInput], sizes: Mapping[int, int]) -> int:
    """How many rows, from the first, hold whole groups and nothing of any other. Sizes of groups are known."""
    missing = dict(sizes)
    begun: set[int] = set()
    whole = 0
    for row, item in enumerate(drawn, start=1):
        missing[item.group] -= 1
        if missing[item.group]:
            begun.add(item.group)
        else:
            begun.discard(item.group)
        if not begun:
            whole = row
    return whole


def reward_inputs(rollout: Rollout) -> list[RewardInput]:
    """One input for each row, in order."""
    tokens: Sequence[list[int] | None] = rollout.token_ids or [None] * rollout.rows
    rows = zip(rollout.samples, rollout.media, rollout.group_index.tolist(), tokens, strict=True)
    return [
        reward_input(sample, media, group=int(group), id=f"{sample.id}/{row}", tokens=ids)
        for row, (sample, media, group, ids) in enumerate(rows)
    ]
