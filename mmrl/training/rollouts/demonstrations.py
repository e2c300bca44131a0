"""Demonstrations among the policy's own answers: offline and online at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.policy import Rollout, RolloutRequest, TargetText

_DRAWS = 1  # a stream of random numbers of its own


@dataclass(frozen=True)
class MixedDemonstrations:
    """One answer of a group is the demonstration of its sample, scored like the others and with the group's advantage.

    LUFFY (arXiv:2504.14945) and EasyVideoR1 (arXiv:2604.16893) mix so. What the writer's own probability was is
    unknown. Theirs is set to 1, so that the ratio is the policy's probability p itself, and LUFFY shapes it to
    p / (p + gamma). Here the ratio is taken against the policy at the start of the iteration, which read the text: it
    is 1 at first, as in any rollout, clipping keeps its meaning, and a demonstration is imitated with the weight of its
    advantage, which vanishes as the policy becomes as good. With `shaping` = gamma each token's credit is scaled by
    gamma p / (p + gamma)^2, the derivative of LUFFY's ratio by log p: the gradients of the first update are then equal
    to LUFFY's.
    """

    share: float  # of the groups whose samples have a demonstration, in [0, 1]
    shaping: float | None
    seed: int

    def among(
        self, requests: Sequence[RolloutRequest], begun: Collection[int], iteration: int
    ) -> tuple[list[RolloutRequest], list[TargetText]]:
        """Fewer requests, by one for each demonstration that takes a place. Groups that have `begun` get none."""
        asked: list[RolloutRequest] = []
        given: list[TargetText] = []
        had = set(begun)
        for request in requests:
            texts = () if request.group in had else demonstrations_of(request.sample)
            had.add(request.group)
            rng = np.random.default_rng([self.seed, iteration, request.group, _DRAWS])
            if texts and rng.random() < self.share:
                given.append(TargetText(request.sample, texts[int(rng.integers(len(texts)))], request.group))
                request = replace(request, n=request.n - 1)
            if request.n:
                asked.append(request)
        return asked, given

    def scale(self, rollout: Rollout) -> Tensor | float:
        """What the credit of a demonstration's decisions is multiplied with: [B, T] or 1."""
        if self.shaping is None:
            return 1.0
        probability = rollout.log_probs.exp()
        return self.shaping * probability / (probability + self.shaping) ** 2


def demonstrations_of(sample: Sample) -> tuple[str, ...]:
    """The texts that show how to answer a sample; empty if there are none.

    Raises:
        DataError: the sample's demonstration is something else than a text or a list of texts.
    """
    shown = sample.demonstration
    if shown is None:
        return ()
    texts = (shown,) if isinstance(shown, str) else tuple(shown) if isinstance(shown, list | tuple) else ()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise DataError(f"sample {sample.id!r}: its demonstration is a {type(shown).__name__}; a text or texts are due")
    return texts
