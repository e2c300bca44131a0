"""Rollouts that are learnt from group by group, while the other groups of their iteration are still being sampled.

    source = StreamedRollouts(online, sampler, schedule, iterations=100, cancellation)
    for batch in source.batches(0, 0.0, phases):  # micro-batches in the order of an iteration without it
        ...  # backpropagate
    experience = source.finish()  # the metrics of the whole iteration

With a lag of 0 the answers are of the parameters at the iteration's start, and one update follows after the last of
them: this is on-policy (Periodic Asynchrony, arXiv:2511.18871). With a lag the thread begins the next iteration while
the last rewards of this one are computed (AsyncFlow, arXiv:2507.01663).

A thread samples; rewards are computed in theirs; prompts are chosen, and advantages computed, by the trainer, so that
the order of all state is that of the iterations. A checkpoint lists the prompts of the iterations in flight.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from mmrl.data.sample import Sample
from mmrl.distributed.position import Position
from mmrl.policy import Policy
from mmrl.rewards.core.executor import DaemonPool
from mmrl.rewards.core.reward_io import RewardContext
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, chunk_requests
from mmrl.seeds import fold_in
from mmrl.training.experience import Experience, MicroBatch
from mmrl.training.rollouts.behaviour import Behaviour, BehaviourSchedule, Cancellation, check_generators
from mmrl.training.rollouts.collect import (
    REWARD_STREAM,
    CollectedRollouts,
    FixedGroupSampler,
    Origin,
    ScoredRollouts,
    ScoringQueue,
    check_scored,
    iteration_requests,
    reward_inputs,
)
from mmrl.training.rollouts.importance_correction import ImportanceCorrection, corrected
from mmrl.training.rollouts.lagged_rollouts import CLOSING_S, thread_seconds
from mmrl.training.rollouts.online import OnlineRollouts, live_share
from mmrl.training.run.timers import Phases

Call = list[RolloutRequest]


@dataclass(frozen=True)
class _Block:
    """Rollouts that have all answers of their groups, and their scores to come."""

    rollouts: list[Rollout]
    scores: list[Any]


@dataclass
class _Plan:
    """An iteration that was handed to the thread."""

    samples: list[Sample]
    blocks: list[list[tuple[Call, int]]]  # calls with their seeds
    context: RewardContext
    ready: SimpleQueue[_Block | BaseException] = field(default_factory=SimpleQueue)
    made: list[_Block] = field(default_factory=list)  # so far
    sampling: Future[None] | None = None
    version: int = 0
    gap: float | None = None  # of the first rollout, if its parameters are older than the trainer's
    seconds: dict[str, float] = field(default_factory=dict)

    def next(self) -> _Block:
        """Wait for the next block.

        Raises:
            Exception: the thread raised it.
        """
        found = self.ready.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def put(self, block: _Block) -> None:
        """Pass a block on to the trainer."""
        self.made.append(block)
        self.ready.put(block)


@dataclass
class StreamedRollouts:
    """A source whose micro-batches come one by one."""

    online: OnlineRollouts  # its prompts, rewards and advantages
    sampler: Policy  # a copy of the policy
    schedule: BehaviourSchedule
    iterations: int  # of the run; none beyond is sampled
    cancellation: Cancellation
    correction: ImportanceCorrection | None = None
    _thread: DaemonPool = field(init=False)
    _plans: dict[int, _Plan] = field(default_factory=dict, init=False)  # of the iterations ahead
    _planned: dict[int, list[str]] = field(default_factory=dict, init=False)  # ids of a checkpoint, by iteration
    _now: _Plan | None = field(default=None, init=False)  # of the iteration that is learnt from
    _ended: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._thread = DaemonPool(1, "rollouts")

    def batches(self, iteration: int, progress: float, phases: Phases) -> Iterator[MicroBatch]:
        """Yield the micro-batches of an iteration, each once its groups are scored."""
        with phases("wait"):
            self._hand_over(iteration)
        self._now = plan = self._plans.pop(iteration)
        for _ in plan.blocks:
            with phases("wait"):
                block = plan.next()
            with phases("reward"):
                scored = self._scored([block])
            with phases("update"):  # advantages, and log-probabilities of a correction
                found = self.online.group_batches(self._collected(scored))
                if self.correction is not None:
                    found = [corrected(batch, self.correction) for batch in found]
            yield from found

    def rows(self) -> int:
        """Return the number of rows of the iteration that is learnt from."""
        assert self._now is not None
        return sum(request.n for block in self._now.blocks for call, _ in block for request in call)

    def finish(self) -> Experience:
        """Return the metrics of the iteration, without its batches, and the replay gap of older parameters.

        Adds the metrics of `LaggedRollouts`.

        Raises:
            RunError: too few of the answers could be scored.
        """
        plan, self._now = self._now, None
        assert plan is not None and plan.sampling is not None
        plan.sampling.result()
        scored = self._scored(plan.made)
        check_scored(self.online.suite, scored.output)
        collected = self._collected(scored)
        metrics = self.online.learn(collected)
        metrics["live_share"] = live_share(self.online.group_batches(collected), int(collected.trained.sum()))
        if self.correction is not None:
            metrics |= self.correction.metrics()
        metrics["lag/updates"] = float(self.schedule.policy.version - plan.version)
        return Experience([], metrics | plan.seconds, plan.gap)

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Return the experience of an iteration at once."""
        batches = list(self.batches(iteration, progress, phases))
        return replace(self.finish(), micro_batches=batches)

    def wait_idle(self) -> None:
        """Wait until everything that was handed over is sampled and scored."""
        plans = list(self._plans.values())
        wait([plan.sampling for plan in plans if plan.sampling is not None])
        self.online.suite.join([scores for plan in plans for block in plan.made for scores in block.scores])

    def close(self) -> None:
        """End the thread after its current call of the model; its rollouts are lost."""
        self.cancellation.requested = True
        self._thread.close()
        plans = [*self._plans.values(), *([] if self._now is None else [self._now])]
        sampling = [plan.sampling for plan in plans if plan.sampling is not None]
        wait([each for each in sampling if not each.cancelled()], CLOSING_S)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of prompts and rewards, and the prompts of the iterations ahead."""
        ahead = {str(number): [sample.id for sample in plan.samples] for number, plan in self._plans.items()}
        return self.online.state_dict() | ({"ahead": ahead} if ahead else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.online.load_state_dict(state)
        self._planned = {int(number): ids for number, ids in state.get("ahead", {}).items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return the parameters that the iterations ahead are sampled with."""
        return self.schedule.tensors()

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue exactly where `tensors` was taken."""
        self.schedule.load_tensors(tensors)

    def _collected(self, scored: ScoredRollouts) -> CollectedRollouts:
        return FixedGroupSampler(self.online.group_size).select(scored, 0)

    def _scored(self, blocks: Sequence[_Block]) -> ScoredRollouts:
        rollouts = [rollout for block in blocks for rollout in block.rollouts]
        output = self.online.suite.join([scores for block in blocks for scores in block.scores])
        return ScoredRollouts(rollouts, [Origin.POLICY] * len(rollouts), output, (sum(each.rows for each in rollouts),))

    def _hand_over(self, iteration: int) -> None:
        for plan in self._plans.values():
            if plan.sampling is not None and plan.sampling.done() and (error := plan.sampling.exception()) is not None:
                raise error
        self.schedule.note(iteration)
        for later in range(iteration, min(iteration + self.schedule.lag, self.iterations - 1) + 1):
            if later not in self._plans:
                self._plans[later] = plan = self._plan(later)
                plan.sampling = self._thread.submit(partial(self._sample, plan, self.schedule.of(later)))
        self.schedule.forget(iteration)

    def _plan(self, iteration: int) -> _Plan:
        """Choose the prompts of an iteration, and divide its calls into blocks of whole groups."""
        online, ids = self.online, self._planned.pop(iteration, None)
        samples = online.prompts.next() if ids is None else [online.prompts.sample(id) for id in ids]
        requests = [RolloutRequest(sample, online.group_size, group) for group, sample in enumerate(samples)]
        most = online.max_turns(iteration / self.iterations)
        requests = iteration_requests(requests, online.seed, iteration, online.keep_means, most)
        calls = chunk_requests(requests, online.micro_batch)
        seeds = [fold_in(online.seed, iteration, number) for number in range(len(calls))]
        missing = Counter({request.group: request.n for request in requests})
        blocks: list[list[tuple[Call, int]]] = [[]]
        begun: set[int] = set()
        for call, seed in zip(calls, seeds, strict=True):
            blocks[-1].append((call, seed))
            for request in call:
                missing[request.group] -= request.n
                begun = begun | {request.group} if missing[request.group] else begun - {request.group}
            if not begun:
                blocks.append([])
        reward_seed = fold_in(online.seed, iteration, REWARD_STREAM)
        return _Plan(samples, blocks[:-1], RewardContext(iteration / self.iterations, seed=reward_seed))

    def _sample(self, plan: _Plan, behaviour: Behaviour) -> None:
        """Sample an iteration and have it scored, in the thread."""
        plan.version, phases = behaviour.version, Phases(Position())
        idle = time.perf_counter() - (self._ended or time.perf_counter())
        try:
            behaviour.load_into(self.sampler)
            for number, calls in enumerate(plan.blocks):
                sizes = Counter[int]()
                for call, _ in calls:
                    for request in call:
                        sizes[request.group] += request.n
                queue = ScoringQueue(self.online.suite, plan.context, sizes)
                rollouts = []
                for call, seed in calls:
                    with self.cancellation.checked(), phases("rollout"), torch.no_grad():
                        rollouts.append(self.sampler.rollout(call, seed))
                    queue.add(reward_inputs(rollouts[-1]))
                if not number:
                    self._check(plan, rollouts[0], phases)
                if number + 1 == len(plan.blocks):
                    plan.seconds = thread_seconds(phases, idle)
                    self._ended = time.perf_counter()
                plan.put(_Block(rollouts, queue.submitted))
        except BaseException as err:
            self.cancellation.requested = True
            plan.ready.put(err)
            raise

    def _check(self, plan: _Plan, rollout: Rollout, phases: Phases) -> None:
        """Check the first rollout of an iteration, before the trainer learns of it."""
        if self._ended is None:
            check_generators(self.sampler)
        if self.schedule.lag:
            with phases("replay_check"):
                plan.gap = self.sampler.replay_gap(rollout)
