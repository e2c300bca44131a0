"""Proposers, which make new samples from those that a run has trained on: by other words, or from answers to them.

A proposer of your own is a class in a file, `data.prompts: {name: growing, proposer: {name: my_proposer.py:Longer}}`:

    class Longer(Proposer):
        def propose(self, parent, rng):
            return replace(parent.sample, prompt=f"{parent.sample.prompt}, in detail")

It keeps no state: what it returns follows from its arguments, which all processes know, so that several processes add
the samples of one, and a resumed run those of an uninterrupted one.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from PIL import Image

from mmrl.data.media.uris import png_uri
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


MESSAGE = "There may be an error in your answer. Check it, correct it if needed, and answer again."


class AttemptStarts(Proposer):
    """A proposer of tasks that ask for one more step from an answer that the policy gave.

    A picture takes the place of the sample's condition `key`: the instruction stays, and is to be followed from there.
    A text becomes a turn of a conversation, after which `message` asks for another answer; of several attempts `keep`
    says which are left. References stay, so the
    reward says how good the answer is after this step. As a policy is trained on one step at a time from ever later
    starting points, it learns to go on for more steps than an episode has.
    """

    reads_answers: ClassVar[bool] = True

    def __init__(
        self,
        key: str = "image",
        message: str = MESSAGE,
        keep: Literal["all", "last"] = "all",
        below: float | None = None,
        max_depth: int = 8,
    ) -> None:
        """
        Args:
            key: the condition that a picture is put in.
            message: the request for another answer, for texts.
            keep: the attempts that a conversation shows, for texts: all of them, or the last one after the prompt.
            below: answers with at least this total are complete, and no starting points; None: all may be.
            max_depth: the most steps before a task; `max_depth: 1` begins from answers to the data set alone.

        Raises:
            ValueError: `max_depth` is below 1, or `keep` is neither.
        """
        if keep not in ("all", "last"):
            raise ValueError(f"keep is {keep!r}; it is all or last")
        if max_depth < 1:
            raise ValueError(f"max_depth is {max_depth}; it is 1 or more")
        self._key, self._message, self._below, self._max_depth = key, message, below, max_depth
        self._keeps_last = keep == "last"

    def wanted_answer(
        self, sample: Sample, depth: int, totals: Sequence[float], rng: np.random.Generator
    ) -> int | None:
        """Return the place of a random answer that is not complete."""
        places = [place for place, total in enumerate(totals) if self._below is None or total < self._below]
        if not places or depth >= self._max_depth:
            return None
        return places[int(rng.integers(len(places)))]

    def propose(self, parent: Parent, rng: np.random.Generator) -> Sample | None:
        """Return the sample that begins with the parent's answer.

        Raises:
            ValueError: the answer is a video, or the sample lacks the condition that a picture is put in.
        """
        sample, answer = parent.sample, parent.answer
        if isinstance(answer, str):
            before = sample.messages or ({"role": "user", "content": sample.prompt},)
            if self._keeps_last and parent.depth:
                before = before[:-2]  # the attempt and the request that this sample was itself made of
            more = ({"role": "assistant", "content": answer}, {"role": "user", "content": self._message})
            return replace(sample, prompt="", messages=(*before, *more))
        if not isinstance(answer, Image.Image):
            raise ValueError(
                f"an answer to sample {sample.id!r} is a {type(answer).__name__}; starting points are texts or pictures"
            )
        if self._key not in sample.conditions:
            raise ValueError(
                f"sample {sample.id!r} has no condition {self._key!r} that its answer could take the place of: it has "
                f"{', '.join(sample.conditions) or 'none'}; set data.prompts.proposer.args.key"
            )
        return replace(sample, conditions={**sample.conditions, self._key: png_uri(answer)})
