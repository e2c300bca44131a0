"""`shapeworld_stream`: the environment of clips that arrive one after another, an entry point of `mmrl.environments`.

The first observation is the first clip. After each clip the policy writes a note and gets the next one; after the last
clip it gets the question, and its next action is the answer. Samples that hold all clips and the question at once
(shapeworld:stream-whole-train) have one turn, in which the policy thinks and answers. What it writes after the question
is what a user waits for: `waiting` in the outcome.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import Observation, Step
from mmrl.errors import DataError
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.parsing.final_answer import answer_text
from mmrl_shapeworld.worlds.stream_clips import CLIPS, LETTERS, Stream, clip_of

MAX_CHARACTERS = 10_000
"""The number of characters above which an action is not read."""
LONGEST_WAIT = 100
"""The characters after the question from which `latency` is 1."""
_LETTER = re.compile(rf"\b([{''.join(LETTERS.values())}])\b[.!]?$")


class StreamedClips:
    """Watch clips that arrive one after another, note what happens, and answer; samples are shapeworld:stream-train."""

    name = "shapeworld_stream"
    max_turns = CLIPS + 1
    instructions = ""
    deadline_s: float | None = None

    def begin(self, sample: Sample, reader: MediaReader) -> StreamEpisode:
        """Begin with the clips of the sample; the others arrive later."""
        try:
            stream = Stream.from_dict(sample.answer if isinstance(sample.answer, Mapping) else {})
        except ValueError as err:
            raise DataError(f"sample {sample.id!r}: answer: {err}") from None
        count = len(sample.videos)
        whole = count == len(stream.movements)
        if not (whole or count == 1) or whole != (sample.prompt == stream.question):
            raise DataError(f"sample {sample.id!r}: it holds neither the first clip nor all clips with the question")
        return StreamEpisode(stream, arrived=count)


class StreamEpisode:
    """The notes and the answer of one row."""

    def __init__(self, stream: Stream, arrived: int = 1) -> None:
        self.stream, self._arrived = stream, arrived
        self.awaits_answer = arrived == len(stream.movements) > 1
        """The question has come, so the next action is the answer."""
        self._notes: list[str] = []
        self._answer: str | None = None
        self._waiting = 0
        self._ended: str | None = None

    @property
    def current(self) -> int:
        """The number of the last clip that has arrived."""
        return self._arrived - 1

    def step(self, action: str | None) -> Step:
        """Note what is seen, or answer."""
        if self._ended is not None:
            raise ValueError("the episode is over")
        if action is None or self.awaits_answer:
            self._ended = "cut_off" if action is None else "answer"
            self._answer = None if action is None else letter_in(action)
            self._waiting = len(action or "")
            return Step(None, {}, {"waiting": float(self._waiting)})
        self._notes.append(action)
        named = float(self.stream.movements[self.current].note in action)
        info = {"noted": named, "note_length": float(len(action))}
        if self._arrived == len(self.stream.movements):
            self.awaits_answer = True
            return Step(Observation(self.stream.question), {}, info)
        self._arrived += 1
        return Step(Observation(videos=(clip_of(self.stream.movements[self.current]),)), {}, info)

    def outcome(self) -> Mapping[str, Any]:
        """Return the answer, whether it is right, and how many characters came before and after the question.

        `latency` is `waiting` over `LONGEST_WAIT`, at most 1; it is 1 where a turn was cut off, so that no answer came.
        """
        return {
            "success": self._answer == self.stream.answer,
            "answer": self._answer,
            "waiting": self._waiting,
            "latency": 1.0 if self._ended == "cut_off" else min(self._waiting, LONGEST_WAIT) / LONGEST_WAIT,
            "noted": sum(map(len, self._notes)),
            "ended": self._ended,
        }


def letter_in(action: str) -> str | None:
    """Return the letter that an action ends with, in its final answer; None if there is none."""
    if len(action) > MAX_CHARACTERS:
        return None
    try:
        found = _LETTER.search(answer_text(action))
    except InvalidAnswer:
        return None
    return found[1] if found else None
