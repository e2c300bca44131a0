"""Start rules that give hints: the beginning of a solution (GHPO), or as few points of knowledge as suffice (KnowRL).

A hint is part of what a row starts with, never a decision, and evaluations are without hints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rollout_request import RolloutRequest, RowStart
from mmrl.training.rollouts.collect import CollectedRollouts, ScoredRollouts
from mmrl.training.rollouts.demonstrations import demonstrations_of
from mmrl.training.rollouts.start_rules import StartContext, StartRule, rounds_of, rows_of_groups, selection

Place = Literal["prompt", "prefix"]


@dataclass(frozen=True)
class SolutionHints(StartRule):
    """Prompts whose answers are all wrong are answered again with the beginning of their solution (GHPO).

    GHPO (arXiv:2507.10628) reveals a share of the reference solution where a whole group fails, and a larger one where
    that fails as well; other prompts train as in GRPO. Each share is one more round, and the last round of a group is
    trained on, so an iteration trains on as many rows as without hints. The solution is the sample's demonstration;
    samples without one get no hints.
    """

    shares: tuple[float, ...] = (0.25, 0.5, 0.75)
    """The share of the solution's steps that each further round reveals, rounded up; never the last step."""
    success: float = 1.0
    """An answer is good if its total reward is at least this."""
    place: Place = "prompt"
    """`prompt`: the hint follows the prompt. `prefix`: the answer begins with it."""
    step_end: str = " "
    """The text that ends a step of a solution."""
    text: str = "{prompt}\n\nThe beginning of a solution:\n{hint}"
    """The prompt with a hint."""

    def __post_init__(self) -> None:
        if not self.shares or not all(0 < share <= 1 for share in self.shares) or not self.step_end:
            raise ValueError("shares of a solution are above 0 and at most 1, and step_end is some text")

    def more(self, scored: ScoredRollouts, context: StartContext) -> list[RolloutRequest]:
        """Return a request for each prompt that has failed so far, with a longer hint."""
        number = len(scored.round_sizes)
        if number > len(self.shares):
            return []
        share, found = self.shares[number - 1], []
        for group, rows in failed_groups(scored, self.success).items():
            sample = scored.samples[rows[0]]
            if hint := self.hint(sample, share):
                start = hinted(sample, hint, self.place, self.text, f"hint-{round(100 * share)}")
                count = sum(int(each) == 0 for each in rounds_of(scored)[rows])
                found.append(RolloutRequest(sample, count, group, start))
        return found

    def select(self, scored: ScoredRollouts, context: StartContext) -> CollectedRollouts:
        """Select the rows of each group's last round.

        Metrics: `hints/groups`, the share of groups that were answered with hints, and `hints/solved`, the share of
        those that came to have a good answer.
        """
        trained = last_rounds(scored)
        group_index, rounds = scored.group_index, rounds_of(scored)
        late = group_index[rounds > 0].unique().tolist()
        failed = failed_groups(scored, self.success)
        metrics = {"hints/groups": len(late) / len(group_index.unique())}
        if late:
            metrics["hints/solved"] = sum(group not in failed for group in late) / len(late)
        return replace(selection(scored, trained=trained), metrics=metrics)

    def hint(self, sample: Sample, share: float) -> str:
        """Return the beginning of a sample's solution; "" if it has none, or a single step."""
        solutions = demonstrations_of(sample)
        if not solutions:
            return ""
        parts = solutions[0].split(self.step_end)
        steps = [part + self.step_end for part in parts[:-1]] + parts[-1:]
        return "".join(steps[: min(math.ceil(share * len(steps)), len(steps) - 1)])


@dataclass(frozen=True)
class KnowledgePoints(StartRule):
    """Prompts are answered with points of knowledge: none of them, all, or the fewest that suffice (KnowRL).

    KnowRL splits hints into atomic points, `metadata.points`, and trains each prompt with the smallest subset that lets
    the policy solve it. There the subsets are found once, for the policy before training; here in each iteration, for
    the policy as it is: the first round is without points, the second probes subsets of prompts that failed, the third
    answers them with the smallest subset that had a good answer, or with all points if none had. Prompts without points
    are answered without.
    """

    use: Literal["minimal", "all"] = "minimal"
    sizes: tuple[int, ...] = (1, 2, 4)
    """The numbers of points of the subsets that are probed."""
    subsets: int = 2
    """Random subsets of each size."""
    order: Literal["any", "first"] = "any"
    """`first`: the subsets are the first points, one of each size, where each point needs those before it."""
    probes: int = 1
    """Answers to each subset."""
    success: float = 1.0
    """An answer is good if its total reward is at least this."""
    place: Place = "prompt"
    """`prompt`: the points follow the prompt. `prefix`: the answer begins with them."""
    join: str = "\n"
    """The text between points."""
    before: str = ""
    """The text before the first point."""
    after: str = ""
    """The text after the last."""
    text: str = "{prompt}\n\nWhat may help:\n{hint}"
    """The prompt with points."""

    def __post_init__(self) -> None:
        if not self.sizes or min(*self.sizes, self.subsets, self.probes) < 1:
            raise ValueError("sizes, subsets and probes are 1 or above")

    def first(self, requests: Sequence[RolloutRequest], context: StartContext) -> Sequence[RolloutRequest]:
        """Return the requests as they are, or with all points."""
        if self.use == "minimal":
            return requests
        return [replace(each, start=self.start(each.sample, points_of(each.sample), "points")) for each in requests]

    def more(self, scored: ScoredRollouts, context: StartContext) -> list[RolloutRequest]:
        """Return the probes of prompts that failed; then the answers to train on."""
        number = len(scored.round_sizes)
        if self.use == "all" or number > 2:
            return []
        is_first, found = rounds_of(scored) == 0, []
        for group, rows in failed_groups(scored, self.success, is_first).items():
            sample = scored.samples[rows[0]]
            if not (points := points_of(sample)):
                continue
            if number == 1:
                starts = [self.start(sample, some, "probe") for some in self.candidates(points, context.rng)]
                found += [RolloutRequest(sample, self.probes, group, start) for start in starts]
            else:
                found.append(RolloutRequest(sample, len(rows), group, self.sufficient(scored, group, points)))
        return found

    def select(self, scored: ScoredRollouts, context: StartContext) -> CollectedRollouts:
        """Select the rows of each group's last round; probes are never trained on.

        Metrics: `points/groups`, the share of groups that were answered with points.
        """
        pointed = torch.tensor([start is not None for start in scored.starts])
        share = len(scored.group_index[pointed].unique()) / len(scored.group_index.unique())
        return replace(selection(scored, trained=last_rounds(scored)), metrics={"points/groups": share})

    def candidates(self, points: Sequence[str], rng: np.random.Generator) -> list[list[str]]:
        """Return the subsets that are probed, each in the order of the points, smaller subsets first."""
        places = [
            tuple(range(size))
            if self.order == "first"
            else tuple(sorted(rng.choice(len(points), size, replace=False).tolist()))
            for size in sorted({min(size, len(points)) for size in self.sizes})
            for _ in range(self.subsets)
        ]
        return [[points[place] for place in some] for some in dict.fromkeys(places)]

    def sufficient(self, scored: ScoredRollouts, group: int, points: Sequence[str]) -> RowStart | None:
        """Return a start with the smallest subset that had a good answer, or with all points if none had."""
        rows = torch.nonzero((scored.group_index == group) & (rounds_of(scored) == 1))[:, 0].tolist()
        for row in rows:  # smaller subsets come first
            start = scored.starts[row]
            if start is not None and scored.total[row] >= self.success:
                return replace(start, label="points")
        return self.start(scored.samples[rows[0]], points, "points")

    def start(self, sample: Sample, points: Sequence[str], label: str) -> RowStart | None:
        """Return a start with these points; None if there are none."""
        hint = f"{self.before}{self.join.join(points)}{self.after}"
        return hinted(sample, hint, self.place, self.text, label) if points else None


def points_of(sample: Sample) -> tuple[str, ...]:
    """Return the points of knowledge of a sample, `metadata.points`; none where it has no such key.

    Raises:
        DataError: they are not a list of texts.
    """
    points = sample.metadata.get("points", ())
    if not isinstance(points, list | tuple) or not all(isinstance(each, str) and each for each in points):
        raise DataError(f"sample {sample.id!r}: expected metadata.points to be a list of texts, got {points!r:.60}")
    return tuple(points)


def hinted(sample: Sample, hint: str, place: Place, text: str, label: str) -> RowStart:
    """Return a start with a hint, in the prompt as `text` says or as the beginning of the answer."""
    if place == "prefix":
        return RowStart(label, prefix=hint)
    words = {"{prompt}": sample.last_text, "{hint}": hint}
    return RowStart(label, prompt=re.sub(r"\{prompt\}|\{hint\}", lambda match: words[match[0]], text))


def failed_groups(
    scored: ScoredRollouts,
    success: float,
    counted: Tensor | None = None,  # [R] bool; None: all rows
) -> dict[int, list[int]]:
    """Return the counted rows of each group in which none has a total of at least `success`."""
    groups = {
        group: [row for row in rows if counted is None or counted[row]]
        for group, rows in rows_of_groups(scored).items()
    }
    return {group: rows for group, rows in groups.items() if rows and not (scored.total[rows] >= success).any()}


def last_rounds(scored: ScoredRollouts) -> Tensor:
    """Return [R] bool: True where the row was sampled in the last round of its group."""
    rounds, last = rounds_of(scored), torch.zeros(len(scored.samples), dtype=torch.bool)
    for rows in rows_of_groups(scored).values():
        last[rows] = rounds[rows] == rounds[rows].max()
    return last
