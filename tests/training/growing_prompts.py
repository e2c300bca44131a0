"""A growing source of prompts on the token policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mmrl.data.growing_prompts import GrowingSampler
from mmrl.data.proposers import Parent, Proposer
from mmrl.data.sample import Sample


class AfterAnswer(Proposer):
    """A proposer of the same question after an answer, which the token policy does not look at."""

    reads_answers = True

    def propose(self, parent: Parent, rng: np.random.Generator) -> Sample:
        return replace(parent.sample, conditions={"after": str(parent.answer), "number": int(rng.integers(1 << 30))})


def growing(samples: Sequence[Sample], groups: int = 4) -> GrowingSampler:
    """Two more questions in every second iteration, of at most five."""
    return GrowingSampler(samples, groups, 0, AfterAnswer(), every=2, add=2, capacity=5, score="variance")
