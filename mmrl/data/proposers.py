"""`Proposer`, the base of everything that makes new samples from those that a run has trained on.

A proposer of your own is a class in a file, `data.prompts: {name: growing, proposer: {name: my_proposer.py:Longer}}`:

    class Longer(Proposer):
        def propose(self, parent, rng):
            return replace(parent.sample, prompt=f"{parent.sample.prompt}, in detail")

It keeps no state: what it returns follows from its arguments, which all processes know, so that several processes add
the samples of one, and a resumed run those of an uninterrupted one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mmrl.data.sample import Sample


@dataclass(frozen=True)
class Parent:
    """A sample that was trained on, and that another one is to be made from."""

    sample: Sample
    score: float  # of its answers, as `data.prompts.score` says; above 0 if the proposals follow scores
    answer: Any = None  # one of its answers, for proposers that read answers: a text, an image or frames
    depth: int = 0  # how many times it was itself proposed from another one


class Proposer(ABC):
    """A maker of new samples."""

    reads_answers: ClassVar[bool] = False
    """True: parents have an answer, of the iteration in which the samples are made."""

    def wanted_answer(
        self, sample: Sample, depth: int, totals: Sequence[float], rng: np.random.Generator
    ) -> int | None:
        """Return the place of the answer that the parent is to have, None if the sample is to be no parent now.

        Called for proposers that read answers alone. By default any of them, all alike.
        """
        return int(rng.integers(len(totals))) if len(totals) else None

    @abstractmethod
    def propose(self, parent: Parent, rng: np.random.Generator) -> Sample | None:
        """Return a new sample, whose id and `metadata["growth"]` are set afterwards; None: none from this parent."""
