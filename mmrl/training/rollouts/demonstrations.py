"""Demonstrations mixed into the policy's own groups: offline and online training at once (LUFFY)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from torch import Tensor

from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, TargetText

DEMONSTRATION_STREAM = 1
"""The number of the random stream that picks demonstrations."""


class InsertedTexts(Protocol):
    """A rule that puts texts of the data set beside the policy's answers, to be scored like them."""

    def insert(
        self, requests: Sequence[RolloutRequest], begun: Collection[int], iteration: int
    ) -> tuple[list[RolloutRequest], list[TargetText]]:
        """Return the requests less the places that texts take, and the texts; groups in `begun` have theirs already."""


@dataclass(frozen=True)
class MixedDemonstrations:
    """A rule by which one answer of a group is the demonstration of its sample, scored like the other answers.

    LUFFY (arXiv:2504.14945) and EasyVideoR1 (arXiv:2604.16893) mix in this way. The probability of the text under its
    author is unknown. The papers set it to 1, so that the ratio is the policy's probability p itself, and LUFFY shapes
    it to p / (p + gamma). Here the ratio is taken against the policy at the start of the iteration, which scored the
    text: it is 1 at first, as in any rollout, clipping keeps its meaning, and a demonstration is imitated with the
    weight of its advantage, which vanishes as the policy becomes as good. With `shaping` = gamma the advantage of each
    token is scaled by gamma p / (p + gamma)^2, the derivative of LUFFY's ratio by log p: the gradients of the first
    update are then equal to LUFFY's.
    """

    share: float  # share of the groups whose samples have a demonstration that get one, in [0, 1]
    shaping: float | None  # gamma; None: no shaping
    seed: int

    def insert(
        self, requests: Sequence[RolloutRequest], begun: Collection[int], iteration: int
    ) -> tuple[list[RolloutRequest], list[TargetText]]:
        """Return the requests, each shorter by one where a demonstration takes a place, and those demonstrations.

        Groups in `begun`, which were requested in an earlier round, get none.
        """
        shortened: list[RolloutRequest] = []
        targets: list[TargetText] = []
        had = set(begun)
        for request in requests:
            texts = () if request.group in had else demonstrations_of(request.sample)
            had.add(request.group)
            rng = np.random.default_rng([self.seed, iteration, request.group, DEMONSTRATION_STREAM])
            if texts and rng.random() < self.share:
                targets.append(TargetText(request.sample, texts[int(rng.integers(len(texts)))], request.group))
                request = replace(request, n=request.n - 1)
            if request.n:
                shortened.append(request)
        return shortened, targets

    def scale(self, rollout: Rollout) -> Tensor | float:
        """Return the factor on the advantages of a demonstration's decisions: [B, T], or 1 without shaping."""
        if self.shaping is None:
            return 1.0
        probability = rollout.log_probs.exp()
        return self.shaping * probability / (probability + self.shaping) ** 2


def demonstrated_turns(sample: Sample) -> tuple[tuple[str, ...], ...]:
    """Return the demonstrations of a sample that are episodes, `{"turns": [text, ...]}`: the texts of their turns.

    Raises:
        DataError: one has no turns, or a turn is no text.
    """
    value = sample.demonstration
    found = (value,) if isinstance(value, Mapping) else tuple(value) if isinstance(value, list | tuple) else ()
    if not found or not all(isinstance(each, Mapping) for each in found):
        return ()
    episodes = tuple(each.get("turns") for each in found)
    for turns in episodes:
        if not isinstance(turns, list | tuple) or not turns or not all(isinstance(text, str) for text in turns):
            raise DataError(
                f"sample {sample.id!r}: expected its demonstration to be {{turns: [text, ...]}}, got {turns!r:.60}"
            )
    return tuple(tuple(turns) for turns in episodes if turns is not None)


def demonstrations_of(sample: Sample) -> tuple[str, ...]:
    """Return the texts that show how to answer a sample; empty if there are none.

    Raises:
        DataError: the sample's demonstration is neither a text nor a list of texts.
    """
    value = sample.demonstration
    if value is None:
        return ()
    texts = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else ()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise DataError(
            f"sample {sample.id!r}: expected its demonstration to be a text or a list of texts, got a "
            f"{type(value).__name__}"
        )
    return texts
