"""Several rewards as one."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from mmrl.rewards.base import Reward, RewardContext, RewardError, RewardInput, RewardOutput, Status

TOTAL = "total"
_severity = (Status.OK, Status.INVALID, Status.TIMEOUT, Status.ERROR)


class RewardSuite:
    """Scores a batch with every reward and adds them up.

        suite = RewardSuite([(load("shapeworld"), 1.0), (load("compressibility"), 0.0)])
        suite.score(batch).values  # {"shapeworld": ..., "compressibility": ..., "total": ...}

    `total` is the weighted sum, NaN where any of its parts is NaN. A reward of weight 0 is watched, and no part of it.
    """

    def __init__(self, parts: Sequence[tuple[Reward, float]]) -> None:
        self._rewards = [reward for reward, _ in parts]
        self.names = tuple(reward.name for reward in self._rewards)
        """In the order given, without the further scores that a reward may give besides its own."""
        if repeated := [name for name, n in Counter(self.names).items() if n > 1]:
            raise RewardError(f"the suite has two rewards called {', '.join(repeated)}: each name may stand once")
        if TOTAL in self.names:
            raise RewardError(f"no reward may be called {TOTAL!r}: that is the name of their weighted sum")
        self.weights = {reward.name: float(weight) for reward, weight in parts}
        if wrong := {name: weight for name, weight in self.weights.items() if not math.isfinite(weight)}:
            raise RewardError(f"weights must be finite numbers, not {wrong}")
        if not any(self.weights.values()):
            raise RewardError("no reward of the suite has a weight other than 0: the total would always be 0")

    def score(self, batch: Sequence[RewardInput], context: RewardContext | None = None) -> RewardOutput:
        """Every reward's values and statuses, and their `total`. Never raises because of an answer or a scorer."""
        started = time.perf_counter()
        merged = RewardOutput(values={}, status={}, detail=[{} for _ in batch], events=[[] for _ in batch])
        for reward in self._rewards:
            self._merge(merged, reward, _score(reward, batch, context))
        parts = [name for name, weight in self.weights.items() if weight]
        total = sum(np.float64(self.weights[name]) * merged.values[name] for name in parts)
        worst = [max(row, key=_severity.index) for row in zip(*(merged.status[n] for n in parts), strict=True)]
        return RewardOutput(
            values=merged.values | {TOTAL: np.asarray(total, np.float32)},
            status=merged.status | {TOTAL: worst},
            detail=merged.detail,
            events=merged.events,
            seconds=time.perf_counter() - started,
        )

    def counts(self, output: RewardOutput) -> dict[str, dict[str, int]]:
        """How many answers had which status: {reward: {"ok": 10, "error": 2}}, statuses that occur alone."""
        return {name: dict(Counter(status.value for status in output.status[name])) for name in self.names}

    def valid_share(self, output: RewardOutput) -> float:
        """Share of answers whose total is known, in [0, 1]; 1 for an empty batch."""
        total = output.values[TOTAL]
        return float(np.isfinite(total).mean()) if len(total) else 1.0

    def _merge(self, into: RewardOutput, reward: Reward, output: RewardOutput) -> None:
        for name in output.values:
            if name in into.values or name == TOTAL or (name in self.names and name != reward.name):
                raise RewardError(f"{reward.name} gives scores called {name!r}, a name that is already taken")
        into.values.update(output.values)
        into.status.update(output.status)
        for row, detail in enumerate(output.detail):
            into.detail[row].update(detail)
        if weight := self.weights[reward.name]:  # events are parts of the total, as values are
            for row, events in enumerate(output.events):
                into.events[row].extend((decision, weight * value) for decision, value in events)


def _score(reward: Reward, batch: Sequence[RewardInput], context: RewardContext | None) -> RewardOutput:
    """The reward's scores; NaN and a status of failure always go together."""
    size = len(batch)
    try:
        output = reward.score(batch, context)
    except Exception as why:  # a border: a scorer that breaks down is recorded, never a score
        return RewardOutput(
            values={reward.name: np.full(size, math.nan, np.float32)},
            status={reward.name: [Status.ERROR] * size},
            detail=[{reward.name: f"{type(why).__name__}: {why}"} for _ in batch],
        )
    _check(reward, output, size)
    values, status = {}, {}
    for name, scores in output.values.items():
        failed = [s in (Status.ERROR, Status.TIMEOUT) for s in output.status[name]]
        values[name] = np.where(np.isfinite(scores) & ~np.array(failed, bool), scores, math.nan).astype(np.float32)
        status[name] = [
            s if f or math.isfinite(v) else Status.ERROR
            for s, f, v in zip(output.status[name], failed, values[name], strict=True)
        ]
    return RewardOutput(values, status, output.detail, output.events, output.seconds)


def _check(reward: Reward, output: RewardOutput, size: int) -> None:
    if reward.name not in output.values:
        raise RewardError(f"{reward.name}.score gave {', '.join(output.values) or 'nothing'}, but not its own name")
    if output.values.keys() != output.status.keys():
        raise RewardError(
            f"{reward.name}.score gave values of {list(output.values)}, statuses of {list(output.status)}"
        )
    columns: dict[str, Any] = {f"values[{n}]": v for n, v in output.values.items()}
    columns |= {f"status[{n}]": s for n, s in output.status.items()} | {"detail": output.detail}
    columns |= {"events": output.events} if output.events else {}
    for what, column in columns.items():
        if len(column) != size:
            raise RewardError(f"{reward.name}.score gave {len(column)} rows of {what} for a batch of {size}")
