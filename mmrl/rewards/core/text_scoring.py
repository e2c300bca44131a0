"""The models of a run, as rewards see them: they answer prompts, and say how likely texts are after a prompt.

handle = context.models["teacher"]
handle.log_probs([TextQuery(item.sample, "7", prefix="<think>3+4=7;</think>"), TextQuery(item.sample, "7")])
handle.answers([item.sample], context.seed, draws=4)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mmrl.data.sample import Sample


@dataclass(frozen=True)
class TextQuery:
    """A text that is scored after the prompt of a sample, with its media, and after the beginning of an answer."""

    sample: Sample
    text: str
    prefix: str = ""
    """The beginning of the answer, such as its reasoning: it is read, and not scored."""


class TextModel(Protocol):
    """A model of the run that answers prompts and says how likely texts are."""

    def log_probs(self, texts: Sequence[TextQuery]) -> list[NDArray[np.float32]]:
        """Return [T] for each text: the log-probability of each of its tokens, and at last of the end of the answer.

        They are at the temperature of the run's sampling. Equal texts are computed once.
        """

    def entropies(self, texts: Sequence[TextQuery]) -> list[NDArray[np.float32]]:
        """Return [T] for each text, in nats: the entropy of the distribution that each of its tokens is drawn from, and
        at last the end of the answer.

        They are at the temperature of the run's sampling. Equal texts are computed once.
        """

    def answers(self, samples: Sequence[Sample], seed: int, draws: int = 1) -> list[list[str]]:
        """Return `draws` answers to each sample, sampled as the run's `sampling` says; equal seeds give equal ones."""
