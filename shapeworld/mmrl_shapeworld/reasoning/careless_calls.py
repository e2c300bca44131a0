"""A careless caller of a tool: guesses what needs it, calls it for what does not, repeats calls, and answers too soon.

An episode is written against the environment itself, so its observations are those of a rollout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl_shapeworld.reasoning.calculation_calls import (
    CalculationCalls,
    CalculationEpisode,
    call_of_text,
    wanted_texts,
)
from mmrl_shapeworld.reasoning.calculations import OPERATORS, Calculation

MISTAKES = (('"}}', '"}'), ('{"text"', '"text"'), ("</tool_call>", ""))
"""Parts of a call and what replaces them in one that cannot be read."""
_RESULT = re.compile(r"<tool_response>\n([0-9])\n</tool_response>")


@dataclass(frozen=True)
class Caller:
    """The habits of whoever writes the episodes; all are probabilities."""

    guesses: float = 0.0
    """A long calculation is answered at once."""
    unneeded: float = 0.0
    """The tool is called for a short calculation."""
    direct_error: float = 0.0
    """A short calculation that is answered at once is answered wrongly."""
    repeats: float = 0.0
    """A call is made again after its result."""
    stops: float = 0.0
    """The result of the first call is the answer."""
    slips: float = 0.0
    """An operator of a call is another one."""
    overlong: float = 0.0
    """The first call of a long calculation has all of it."""
    malformed: float = 0.0
    """A call cannot be read; the next turn writes it rightly, or guesses."""


RIGHT_CALLER = Caller()
CARELESS_CALLER = Caller(
    guesses=0.35,
    unneeded=0.5,
    direct_error=0.1,
    repeats=0.25,
    stops=0.15,
    slips=0.06,
    overlong=0.1,
    malformed=0.06,
)


@dataclass
class WrittenEpisode:
    """An episode while it is written."""

    episode: CalculationEpisode
    most: int
    """The largest number of turns before the answer."""
    turns: list[str]
    observations: list[str]

    def act(self, action: str) -> int | None:
        """Add a turn before the answer, and return the value in the observation; None: it has none."""
        observation = self.episode.step(action).observation
        if observation is None:
            raise ValueError(f"{action!r} ended the episode")
        self.turns.append(action)
        self.observations.append(observation.text)
        found = _RESULT.fullmatch(observation.text)
        return None if found is None else int(found[1])

    def is_full(self) -> bool:
        """Return whether the next turn has to be the answer."""
        return len(self.turns) == self.most


def written_episode(
    sample: Sample,
    calculation: Calculation,
    caller: Caller,
    environment: CalculationCalls,
    reader: MediaReader,
    rng: np.random.Generator,
) -> WrittenEpisode:
    """Return an episode of a caller, whose last turn is the answer."""
    written = WrittenEpisode(environment.begin(sample, reader), environment.max_turns - 1, [], [])
    whole, value = str(calculation)[:-1], None
    texts = wanted_texts(calculation)
    if not texts:
        if rng.random() < caller.unneeded:
            value = _called(written, whole, caller, rng)
        elif rng.random() >= caller.direct_error:
            value = calculation.answer
    elif rng.random() >= caller.guesses:
        if rng.random() < caller.overlong:
            _called(written, whole, caller, rng)
        value = _called(written, texts[0], caller, rng)
        if value is not None and rng.random() >= caller.stops and not written.is_full():
            value = _called(written, f"{value}{texts[1][1:]}", caller, rng)
    answer = int(rng.random() * calculation.modulus) if value is None else value
    written.turns.append(str(answer))
    return written


def _called(written: WrittenEpisode, text: str, caller: Caller, rng: np.random.Generator) -> int | None:
    """Call the tool, perhaps wrongly first and perhaps again, and return the value of the last result."""
    if rng.random() < caller.slips:
        text = _slipped(text, rng)
    action = call_of_text(text)
    value = None
    if rng.random() < caller.malformed and not written.is_full():
        old, new = MISTAKES[int(rng.random() * len(MISTAKES))]
        written.act(action.replace(old, new))
    again = True
    while again and not written.is_full():
        value = written.act(action)
        again = value is not None and rng.random() < caller.repeats
    return value


def _slipped(text: str, rng: np.random.Generator) -> str:
    """Return a calculation with another operator in one place."""
    places = [place for place, character in enumerate(text) if character in OPERATORS]
    place = places[int(rng.random() * len(places))]
    others = [each for each in OPERATORS if each != text[place]]
    return f"{text[:place]}{others[int(rng.random() * len(others))]}{text[place + 1 :]}"
