"""Expected lengths of answers, from those of earlier iterations: several processes are dealt calls that last equally.

    lengths = AnswerLengths()
    lengths.learn(rollouts)          # of all processes, so that every one expects the same
    costs = [lengths.cost(call) for call in calls]

A call of a policy that writes lasts as long as its longest answer while it samples, and as all its tokens while it
learns. Both differ more between tasks, such as a choice and a list of boxes, than between the prompts of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest

DECAY = 0.9
"""The weight of what was known before, when the answers to one more prompt of a source come."""


class AnswerLengths:
    """Running means over the prompts of each source: of the longest answer and of the mean answer, in tokens."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}

    def cost(self, call: Sequence[RolloutRequest]) -> float:
        """Return the expected longest answer of a call plus its expected mean answer, in tokens.

        A source without answers yet is expected to be as the mean of the others; all costs are 0 before the first.
        """
        if not self._known:
            return 0.0
        others = tuple(np.mean(list(self._known.values()), axis=0))
        expected = [self._known.get(request.sample.source, others) for request in call]
        weights = [request.n for request in call]
        return float(
            max(longest for longest, _ in expected) + np.average([mean for _, mean in expected], weights=weights)
        )

    def learn(self, rollouts: Sequence[Rollout]) -> None:
        """Learn from the rollouts of all processes, those without tokens aside."""
        groups: dict[int, tuple[str, list[int]]] = {}
        for rollout in rollouts:
            rows = zip(rollout.samples, rollout.group_index.tolist(), rollout.token_ids or (), strict=False)
            for sample, group, ids in rows:
                groups.setdefault(group, (sample.source, []))[1].append(len(ids))
        for source, lengths in groups.values():
            found = float(max(lengths)), float(np.mean(lengths))
            known = self._known.get(source, found)
            self._known[source] = DECAY * known[0] + (1 - DECAY) * found[0], DECAY * known[1] + (1 - DECAY) * found[1]

    def state_dict(self) -> dict[str, Any]:
        """Return the means by source, fit for JSON: whose calls a process makes decides the order of additions."""
        return {source: list(means) for source, means in self._known.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._known = {source: (longest, mean) for source, (longest, mean) in state.items()}
