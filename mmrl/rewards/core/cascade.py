"""Cascades of scorers: a later one scores only the answers that earlier ones let through.

    RewardSuite([
        WeightedReward(load("format"), 0.1),
        WeightedReward(load("judge", ...), 0.9, after={"format": 1.0}),  # scores well-formed answers alone
    ])

An answer that an earlier scorer stops gets the worst value of the later one's range (the highest, if the weight is
negative), with the status "stopped" and without a call: it is never better off than an answer that was scored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias

import numpy as np

from mmrl.rewards.core.executor import DaemonPool, RewardWorker, WeightedReward
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import Failure, RewardError, Status
from mmrl.rewards.core.reward_io import RewardContext, RewardInput, RewardOutput, Scope, merge_outputs

Earlier: TypeAlias = Mapping[str, tuple[Reward, float, Future[RewardOutput]]]
"""{name: (reward, threshold, scores of the same batch)} of the scorers that a later one waits for."""
EARLIER_FAILED = "earlier_failed"
"""The kind of failure of an answer that is not scored because an earlier scorer failed on it."""


def let_through(reward: Reward, output: RewardOutput, at_least: float) -> list[bool | None]:  # [B]
    """Return for each answer whether a scorer lets it through: its status is "ok", and its value reaches a threshold.

    For a reward whose direction is "lower": its value is at most the threshold. None where the scorer failed.
    """
    sign = reward.spec.sign
    least = float(np.float32(at_least)) * sign  # rounded as values are
    values = output.values[reward.name].astype(np.float64) * sign
    return [
        None if status in (Status.ERROR, Status.TIMEOUT) else status is Status.OK and bool(value >= least)
        for value, status in zip(values, output.status[reward.name], strict=True)
    ]


def stopped_value(reward: Reward | type[Reward], weight: float) -> float:
    """Return the value of an answer that is stopped before a reward: the worst one, given the sign of its weight."""
    low, high = reward.range
    return low if (reward.direction == "higher") == (weight >= 0) else high


def submit_parts(
    parts: Sequence[WeightedReward],
    workers: Sequence[RewardWorker],
    batch: Sequence[RewardInput],
    context: RewardContext,
    threads: DaemonPool,
) -> list[Future[RewardOutput]]:
    """Start all scorers of a batch, each in a thread; those with `after` wait for the earlier ones that it names.

    Earlier scorers are submitted first, and threads take calls in order. So the oldest unfinished call never waits, and
    no cascade can block itself, however few the threads are.
    """
    found: dict[str, Future[RewardOutput]] = {}
    rewards = {part.reward.name: part.reward for part in parts}
    for part, worker in zip(parts, workers, strict=True):
        earlier = {name: (rewards[name], least, found[name]) for name, least in part.after.items()}
        call = partial(_score_after, worker, batch, context, earlier) if earlier else None
        found[part.reward.name] = threads.submit(call or partial(worker.score, batch, context))
    return list(found.values())


def check_cascade(parts: Sequence[WeightedReward]) -> None:
    """Raise `RewardError` unless each `after` names earlier rewards of the suite, and stopped answers have a value."""
    names: list[str] = []
    for part in parts:
        reward = part.reward
        if strange := [each for each in part.after if each not in names]:
            raise RewardError(
                f"{reward.name}: after names {', '.join(strange)}, which must stand before it in the suite "
                f"({', '.join(names) or 'nothing does'})"
            )
        if part.after and reward.scope is not Scope.SAMPLE:
            raise RewardError(
                f"{reward.name} compares the answers to a prompt, and after would hide some of them: leave after out"
            )
        if part.after and not math.isfinite(stopped_value(reward, part.weight)):
            raise RewardError(
                f"{reward.name} has no worst value, which after gives to stopped answers: leave after out, or "
                "choose a reward with a range"
            )
        names.append(reward.name)


def _score_after(
    worker: RewardWorker, batch: Sequence[RewardInput], context: RewardContext, earlier: Earlier
) -> RewardOutput:
    """Wait for the earlier scorers, and score the answers that all of them let through."""
    verdicts = {name: let_through(reward, scores.result(), least) for name, (reward, least, scores) in earlier.items()}
    passed, stopped, unknown = [], {}, {}
    for row in range(len(batch)):
        by_name = {name: column[row] for name, column in verdicts.items()}
        if all(by_name.values()):
            passed.append(row)
        elif stopping := next((name for name, verdict in by_name.items() if verdict is False), None):
            stopped[row] = f"stopped by {stopping}"
        else:
            unknown[row] = f"not scored, as {next(n for n, verdict in by_name.items() if verdict is None)} failed"
    name, worst = worker.reward.name, stopped_value(worker.reward, worker.part.weight)
    parts = [(passed, worker.score([batch[row] for row in passed], context))] if passed else []
    if stopped:
        parts.append(([*stopped], _unscored(name, worst, Status.STOPPED, [*stopped.values()], {})))
    if unknown:
        failure = {name: Failure(EARLIER_FAILED)}
        parts.append(([*unknown], _unscored(name, math.nan, Status.ERROR, [*unknown.values()], failure)))
    return merge_outputs(parts, len(batch), name)


def _unscored(
    name: str, value: float, status: Status, texts: Sequence[str], failure: Mapping[str, Failure]
) -> RewardOutput:
    size = len(texts)
    return RewardOutput(
        values={name: np.full(size, value, np.float32)},
        status={name: [status] * size},
        detail=[{name: text} for text in texts],
        failures=[dict(failure) for _ in texts],
    )
