"""`AttemptStarts`: the policy's own answers become the starting points of new tasks (ExIt, arXiv:2509.04575)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from PIL import Image

from mmrl.data.media.uris import data_uri
from mmrl.data.proposers import Parent, Proposer
from mmrl.data.sample import Sample

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
        file = io.BytesIO()
        answer.save(file, "PNG")
        uri = data_uri(file.getvalue(), "image/png")
        return replace(sample, conditions={**sample.conditions, self._key: uri})
