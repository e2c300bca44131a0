"""Where rewards that are trained part from those that are only watched: the sign of a reward that is being hacked.

Two evaluations on the same prompts and noise are compared, prompt by prompt. A watched reward that falls while a
trained one rises has parted from it. So have all watched rewards together where they stay while a trained one rises
far: what was learnt then is nothing that any of them can see.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mmrl.evaluation.results import Evaluation, evaluation_steps
from mmrl.statistics.intervals import Interval, paired_difference, paired_means

FAR = 0.3
"""A rise of so many standard deviations of the base's prompts is far."""
STAYS = 0.5
"""A watched reward stays where even the upper end of its interval is below this share of the trained one's rise."""


@dataclass(frozen=True)
class Move:
    """How far a reward moved, and how widely it was spread before."""

    before: float
    after: float
    difference: Interval
    spread: float  # standard deviation over prompts before; 0 where all were equal

    @property
    def far(self) -> float:
        """The mean difference in standard deviations; NaN without any."""
        return self.difference.mean / self.spread if self.spread > 0 else math.nan

    @property
    def farthest(self) -> float:
        """The upper end of the interval in standard deviations; NaN without any."""
        return self.difference.high / self.spread if self.spread > 0 else math.nan


def moves(before: Evaluation, after: Evaluation, names: Sequence[str]) -> dict[str, Move]:
    """Of the named rewards that both evaluations hold."""
    found = {}
    for name in names:
        if name not in before.values or name not in after.values:
            continue
        asked = before.asked(name) | after.asked(name)
        pair = before.by_prompt(name)[asked], after.by_prompt(name)[asked]
        first, last, _ = paired_means(*pair)
        spread = float(first.std()) if first.size > 1 and np.ptp(first) > 0 else 0.0
        start, end = (float(each.mean()) if each.size else math.nan for each in (first, last))
        found[name] = Move(start, end, paired_difference(*pair), spread)
    return found


def parted(trained: Mapping[str, Move], watched: Mapping[str, Move]) -> list[str]:
    """A sentence for every watched reward that fell while a trained one rose, or one for all that stayed where a
    trained one rose far; empty where they go together, and where nothing is watched.

    Rising and falling mean that the whole 95 % interval is on one side of 0.
    """
    risen = {name: move for name, move in trained.items() if move.difference.verdict == "up"}
    if not risen or not watched:
        return []
    up = ", ".join(risen)
    found = [
        f"{up} rose while {fell(name, move)}, lies below 0: the reward is probably being hacked."
        for name, move in watched.items()
        if move.difference.verdict == "down"
    ]
    if found:
        return found
    most = max((move.far for move in risen.values() if math.isfinite(move.far)), default=0.0)
    stayed = all(move.difference.verdict != "up" and move.farthest < STAYS * most for move in watched.values())
    if most < FAR or not stayed:
        return []
    ends = ", ".join(
        f"{name} {move.difference.mean:+.3f} ({move.difference.low:+.3f} to {move.difference.high:+.3f})"
        for name, move in watched.items()
    )
    return [
        f"{up} rose by {most:.2f} standard deviations while no held-out reward did: {ends}. What is learnt may be the "
        "reward's own blind spot."
    ]


def fell(name: str, move: Move) -> str:
    """A held-out reward's fall, as the end of a sentence that something is said about its interval."""
    interval = move.difference
    return (
        f"the held-out {name} fell by {-interval.mean:.3f}, from {move.before:.3f} to {move.after:.3f}. Its 95 % "
        f"interval, {interval.low:+.3f} to {interval.high:+.3f}"
    )


def gaps(trained: Mapping[str, Move], watched: Mapping[str, Move]) -> dict[str, float]:
    """By watched reward: how many standard deviations less it rose than the trained one that rose most.

    A number to plot: it grows where they part, and its size says nothing of chance, which `parted` weighs.
    """
    most = max((move.far for move in trained.values() if math.isfinite(move.far)), default=math.nan)
    return {name: most - move.far for name, move in watched.items() if math.isfinite(most - move.far)}


# Trained against watched rewards while a run goes: the base's evaluation against the last one.


class Watch:
    """Compares evaluations with that of step 0, in a run folder that holds it."""

    def __init__(self, run: Path, trained: Sequence[str], watched: Sequence[str]) -> None:
        self._run = run
        self._names = (tuple(trained), tuple(watched))
        self.said: tuple[str, ...] = ()
        """What the last evaluation was warned of."""

    def see(self, now: Evaluation) -> dict[str, float]:
        """`evaluation_gap/NAME` of each watched reward, in standard deviations; `evaluation_parted`, 1 where any has
        parted from what is trained. Nothing for the base itself, and where nothing is watched.
        """
        self.said = ()
        trained, watched = self._names
        if now.step == 0 or not trained or not watched or 0 not in evaluation_steps(self._run):
            return {}
        base = Evaluation.load(self._run, 0, images=False)
        if (base.ids, base.draws) != (now.ids, now.draws):
            return {}
        pair = moves(base, now, trained), moves(base, now, watched)
        self.said = tuple(parted(*pair))
        return {f"evaluation_gap/{name}": gap for name, gap in gaps(*pair).items()} | {
            "evaluation_parted": float(bool(self.said))
        }
