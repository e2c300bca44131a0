"""`WordSwaps`: new captions by exchanging words of one kind, and by joining two captions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mmrl.data.proposers import Parent, Proposer
from mmrl.data.sample import Sample


class WordSwaps(Proposer):
    """A proposer that exchanges one word of a caption for another of its list, or adds a part to the caption.

        WordSwaps(lists=[["red", "blue"], ["cat", "dog"]], parts=["a red cat"], join=" and ")
        # "a red dog" -> "a blue dog", "a red cat", "a red dog and a red cat"

    Samples keep everything but their prompt, so it is for rewards that read the prompt alone, such as CLIPScore or a
    judge, and for samples without an `answer` that would then be wrong.
    """

    def __init__(
        self,
        lists: Sequence[Sequence[str]],
        parts: Sequence[str] = (),
        join: str = " and ",
        joined: float = 0.5,
        max_parts: int = 3,
    ) -> None:
        """
        Args:
            lists: words or phrases that may stand for one another; each list has two or more.
            parts: captions that may be added to another.
            join: the text between two of them.
            joined: how likely a part is added, in [0, 1], where there are parts.
            max_parts: the most parts of a caption.

        Raises:
            ValueError: a list has fewer than two words, or a probability lies outside of [0, 1].
        """
        if any(len(words) < 2 for words in lists):
            raise ValueError("lists: each needs two words or more that may stand for one another")
        if not 0 <= joined <= 1:
            raise ValueError(f"joined is {joined}; it is a probability, in [0, 1]")
        self._lists = [tuple(words) for words in lists]
        self._parts, self._join, self._joined, self._max_parts = tuple(parts), join, joined, max_parts

    def propose(self, parent: Parent, rng: np.random.Generator) -> Sample | None:
        """Return the sample with one word exchanged or one part more; None if neither is possible.

        Raises:
            ValueError: the sample has an answer, which another prompt would make wrong.
        """
        sample = parent.sample
        if sample.answer is not None:
            raise ValueError(
                f"sample {sample.id!r} has an answer, which would be wrong for another prompt: word_swaps is for "
                "samples without; write a proposer that changes both"
            )
        grows = self._parts and len(sample.prompt.split(self._join)) < self._max_parts
        if grows and rng.random() < self._joined:
            return replace(sample, prompt=sample.prompt + self._join + self._parts[int(rng.integers(len(self._parts)))])
        found = [
            (match.span(), words)
            for words in self._lists
            for word in words
            for match in re.finditer(rf"\b{re.escape(word)}\b", sample.prompt)
        ]
        if not found:
            return None
        (start, end), words = found[int(rng.integers(len(found)))]
        others = [word for word in words if word != sample.prompt[start:end]]
        other = others[int(rng.integers(len(others)))]
        return replace(sample, prompt=sample.prompt[:start] + other + sample.prompt[end:])
