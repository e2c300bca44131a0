"""Detection of reward hacking: trained rewards rise while held-out rewards fall, or do not follow.

Two evaluations on the same prompts and noise are compared, prompt by prompt. A held-out reward that falls while a
trained one rises has diverged from it. All held-out rewards together have diverged if they stay where they are while a
trained one rises far: what was learnt then is invisible to all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmrl.evaluation.results import Evaluation, RewardChange, evaluation_steps, reward_change
from mmrl.statistics.intervals import interval_text

FAR = 0.3
"""The rise, in standard deviations of the base's prompts, from which a trained reward has risen far."""
STAYS = 0.5
"""A held-out reward stays if the upper end of its interval is below this share of the trained one's rise."""


def reward_changes(before: Evaluation, after: Evaluation, names: Sequence[str]) -> dict[str, RewardChange]:
    """Return the changes of the named rewards that both evaluations have."""
    shared = [name for name in names if name in before.values and name in after.values]
    return {name: reward_change(before, after, name) for name in shared}


def diverged(trained: Mapping[str, RewardChange], heldout: Mapping[str, RewardChange]) -> list[str]:
    """Return a sentence for every held-out reward that fell while a trained one rose; without such a fall, one
    sentence if all held-out rewards stayed while a trained one rose far. Empty otherwise.

    Rising and falling mean that the whole 95 % interval is on one side of 0.
    """
    risen = {name: change for name, change in trained.items() if change.difference.verdict == "up"}
    if not risen or not heldout:
        return []
    up = ", ".join(risen)
    found = [
        f"{up} rose while {describe_drop(name, change)}, lies below 0: the reward is probably being hacked."
        for name, change in heldout.items()
        if change.difference.verdict == "down"
    ]
    if found:
        return found
    most = max((each.effect_size for each in risen.values() if math.isfinite(each.effect_size)), default=0.0)
    stayed = all(
        each.difference.verdict != "up" and each.highest_effect_size < STAYS * most for each in heldout.values()
    )
    if most < FAR or not stayed:
        return []
    ends = ", ".join(
        f"{name} {change.difference.mean:+.3f} ({interval_text(change.difference)})" for name, change in heldout.items()
    )
    return [
        f"{up} rose by {most:.2f} standard deviations while no held-out reward did: {ends}. What is learnt may be the "
        "reward's own blind spot."
    ]


def describe_drop(name: str, change: RewardChange) -> str:
    """Return the drop of a held-out reward and its interval, as a clause that the caller completes with a verb."""
    interval = change.difference
    return (
        f"the held-out {name} fell by {-interval.mean:.3f}, from {change.before:.3f} to {change.after:.3f}. Its 95 % "
        f"interval, {interval_text(interval)}"
    )


def proxy_gaps(trained: Mapping[str, RewardChange], heldout: Mapping[str, RewardChange]) -> dict[str, float]:
    """Return by held-out reward how many standard deviations less it rose than the trained one that rose most.

    A number to plot: it grows as rewards diverge, and ignores chance, which `diverged` takes into account.
    """
    most = max((each.effect_size for each in trained.values() if math.isfinite(each.effect_size)), default=math.nan)
    gaps = {name: most - change.effect_size for name, change in heldout.items()}
    return {name: gap for name, gap in gaps.items() if math.isfinite(gap)}


class HackingMonitor:
    """A monitor that compares each evaluation of a run with that of step 0, as the run goes."""

    def __init__(self, run: Path, trained: Sequence[str], heldout: Sequence[str]) -> None:
        self._run = run
        self._names = (tuple(trained), tuple(heldout))
        self.warnings: tuple[str, ...] = ()
        """The warnings about the last evaluation."""

    def update(self, evaluation: Evaluation) -> dict[str, float]:
        """Return `evaluation_gap/NAME` of each held-out reward, in standard deviations, and `evaluation_parted`, which
        is 1 if any has diverged. Empty for step 0, and if there is no trained or no held-out reward.
        """
        self.warnings = ()
        trained, heldout = self._names
        if evaluation.step == 0 or not trained or not heldout or 0 not in evaluation_steps(self._run):
            return {}
        base = Evaluation.load(self._run, 0, images=False)
        if (base.ids, base.draws) != (evaluation.ids, evaluation.draws):
            return {}
        pair = reward_changes(base, evaluation, trained), reward_changes(base, evaluation, heldout)
        self.warnings = tuple(diverged(*pair))
        gaps = {f"evaluation_gap/{name}": gap for name, gap in proxy_gaps(*pair).items()}
        return gaps | {"evaluation_parted": float(bool(self.warnings))}
