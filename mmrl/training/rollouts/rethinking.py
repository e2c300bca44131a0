"""Forced rethinking: some finished answers are continued after a word of doubt, and what follows is trained on.

VL-Rethinker, arXiv:2504.08837, which imitates the right ones; here they have an advantage within their group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from mmrl.rollout_request import RolloutRequest, RowStart
from mmrl.training.rollouts.collect import CollectedRollouts, ScoredRollouts
from mmrl.training.rollouts.start_rules import StartContext, StartRule, rounds_of, rows_of_groups, selection

LABEL = "rethought"


@dataclass(frozen=True)
class Rethinking(StartRule):
    """Continue a share of each group's answers after `trigger`.

    An answer is kept up to the last `before`, or whole, and the trigger and what the policy writes after it follow.
    Only what it writes is learnt from, and only where the new answer is right.
    """

    share: float = 0.25
    """The most answers that are continued, as a share of a group; the first ones that can be are chosen."""
    trigger: str = "\n\nWait, let me check that again."
    """The text that the continuation begins after."""
    before: str | None = None
    """Such as `</think>`: an answer without it is not continued. None: answers are continued at their end."""
    success: float = 1.0
    """The total from which on an answer is right."""
    train: bool = True
    """False: continuations are measured and not learnt from."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or not self.trigger:
            raise ValueError(f"share {self.share} and trigger {self.trigger!r}: a share in (0, 1], and a text")

    def more(self, scored: ScoredRollouts, context: StartContext) -> Sequence[RolloutRequest]:
        """Return a request for each answer that is continued, in a second round."""
        if len(scored.round_sizes) > 1:
            return ()
        texts, samples, groups = _texts(scored), scored.samples, scored.group_index.tolist()
        found = []
        for rows in rows_of_groups(scored).values():
            prefixes = [(row, prefix) for row in rows if (prefix := self._prefix(texts[row])) is not None]
            for row, prefix in prefixes[: math.ceil(self.share * len(rows))]:
                found.append(RolloutRequest(samples[row], 1, groups[row], RowStart(LABEL, prefix=prefix)))
        return found

    def select(self, scored: ScoredRollouts, context: StartContext) -> CollectedRollouts:
        """Train on all answers of the first round, and on the continued ones that are right.

        Metrics: `rethinking/corrected` and `rethinking/spoilt`, the shares of wrong answers that became right, and of
        right ones that became wrong.
        """
        again = rounds_of(scored) == 1
        right = scored.total >= self.success
        first = selection(scored, trained=~again)
        found = selection(scored, trained=~again | right, in_baseline=torch.ones_like(again)) if self.train else first
        return replace(found, metrics=found.metrics | self._metrics(scored, right.tolist(), again.tolist()))

    def _prefix(self, text: str) -> str | None:
        if self.before is None:
            return text + self.trigger
        kept, found, _ = text.rpartition(self.before)
        return kept + self.trigger if found else None

    def _metrics(self, scored: ScoredRollouts, right: Sequence[bool], again: Sequence[bool]) -> dict[str, float]:
        groups = scored.group_index.tolist()
        sources = {
            (groups[row], self._prefix(text)): right[row]
            for row, text in reversed(list(enumerate(_texts(scored))))
            if not again[row]
        }
        changes = [
            (sources[groups[row], start.prefix], right[row])
            for row, start in enumerate(scored.starts)
            if again[row] and start is not None
        ]
        shares = {
            "corrected": [after for was, after in changes if not was],
            "spoilt": [not after for was, after in changes if was],
        }
        return {f"rethinking/{name}": sum(each) / len(each) for name, each in shares.items() if each}


def _texts(scored: ScoredRollouts) -> list[str]:
    return [str(text) for rollout in scored.rollouts for text in rollout.media]
