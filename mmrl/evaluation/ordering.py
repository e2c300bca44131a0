"""Prompts by how far a reward moved on them: what rose most, what fell most, and how many went which way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmrl.evaluation.paired import paired_means
from mmrl.evaluation.results import Evaluation

MOST = 4
"""Prompts that are shown first, on either side."""


@dataclass(frozen=True)
class Ordered:
    """Prompts by number, each in one of the three."""

    rose: list[int]  # the highest change first; at most MOST
    fell: list[int]  # the lowest change first; at most MOST
    others: list[int]  # the highest change first; those whose change is not known at the end


def by_change(before: Evaluation, after: Evaluation, name: str, among: Sequence[int]) -> Ordered:
    """Some prompts by the change of one reward on their first draw, which is what a card shows of them."""
    moved = {n: float(after.by_prompt(name)[n, 0] - before.by_prompt(name)[n, 0]) for n in among}
    known = sorted((n for n in among if math.isfinite(moved[n])), key=lambda n: -moved[n])
    rose = [n for n in known if moved[n] > 0][:MOST]
    fell = [n for n in reversed(known) if moved[n] < 0][:MOST]
    others = [n for n in known if n not in (*rose, *fell)]
    return Ordered(rose, fell, others + [n for n in among if not math.isfinite(moved[n])])


def went(before: Evaluation, after: Evaluation, name: str) -> tuple[int, int, int]:
    """How many of all prompts rose, stayed and fell, by their mean over draws; those that could not be scored apart."""
    asked = before.asked(name) | after.asked(name)
    first, last, _ = paired_means(before.by_prompt(name)[asked], after.by_prompt(name)[asked])
    signs = np.sign(last - first)
    return int((signs > 0).sum()), int((signs == 0).sum()), int((signs < 0).sum())
