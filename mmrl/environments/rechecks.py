"""`Rechecks`: a judge of pairs picks the few criteria that matter in its first turn, and rechecks these in its second.

The first turn names criteria, with what the judge suspects about each; the message after it names those again, and the
second turn ends with the verdict. A first turn that names none or too many, or a second one that names another, is out
of form: the episode is no success, even with the right verdict (BR-RM's format check).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments.environment import Observation, Step
from mmrl.errors import ConfigError, DataError
from mmrl.rewards.core.reward_errors import InvalidAnswer
from mmrl.rewards.rules.verdicts import VERDICTS, read_verdict

MESSAGE = "Recheck these alone, and then give your verdict, A or B: {picked}"


class Rechecks:
    """Pick the criteria that decide between two answers, recheck them, and give a verdict (BR-RM).

    Samples are those of the task `judging`, in one order or both. The outcome has `success`: the verdict is right and
    the turns are in form; `right`, the verdict alone; `form`; `picked`, how many criteria were; and for samples with
    `metadata.dimension` also `found`, whether that criterion is among them.
    """

    name = "rechecks"
    max_turns = 2
    instructions = ""
    deadline_s: float | None = None

    def __init__(self, criteria: Sequence[str] = (), most: int = 3, message: str = MESSAGE) -> None:
        """
        Args:
            criteria: the names that can be picked; unset: those of each sample, `metadata.criteria`.
            most: the largest number of criteria that may be picked.
            message: what the judge reads before its second turn; {picked} are the criteria.
        """
        if most < 1:
            raise ConfigError(f"environment.args.most: {most} criteria; at least one is picked")
        if message.count("{picked}") != 1:
            raise ConfigError(f"environment.args.message: {message!r} must have the slot {{picked}} once")
        self.criteria, self.most, self.message = tuple(criteria), most, message

    def begin(self, sample: Sample, reader: MediaReader) -> RechecksEpisode:
        """Begin with the sample's question.

        Raises:
            DataError: its answer is no verdict, or there are no criteria.
        """
        criteria = self.criteria or tuple(sample.metadata.get("criteria", ()))
        if sample.answer not in VERDICTS:
            raise DataError(f"sample {sample.id!r}: answer is {sample.answer!r:.40}; a judge's is A or B")
        if not criteria:
            raise DataError(f"sample {sample.id!r}: no metadata.criteria, and environment.args.criteria is unset")
        return RechecksEpisode(sample, criteria, self.most, self.message)


class RechecksEpisode:
    """The two turns of one row."""

    def __init__(self, sample: Sample, criteria: Sequence[str], most: int, message: str) -> None:
        self._sample, self._criteria, self._most, self._message = sample, criteria, most, message
        self._picked: tuple[str, ...] | None = None
        self._right = self._form = self._over = False

    def step(self, action: str | None) -> Step:
        """Read the picked criteria, or the verdict."""
        if self._over:
            raise ValueError("the episode is over")
        if self._picked is None:
            self._picked = () if action is None else self._named(action)
            self._form = action is not None and 1 <= len(self._picked) <= self._most
            self._over = action is None
            if self._over:
                return Step(None)
            return Step(Observation(self._message.replace("{picked}", ", ".join(self._picked))))
        self._over = True
        if action is None:
            self._form = False
            return Step(None)
        self._form = self._form and set(self._named(action)) <= set(self._picked)
        try:
            self._right = read_verdict(action) == self._sample.answer
        except InvalidAnswer:
            self._form = False
        return Step(None)

    def outcome(self) -> Mapping[str, Any]:
        """Return what the episode came to: see `Rechecks`."""
        picked = self._picked or ()
        found = {
            "success": self._right and self._form,
            "right": self._right,
            "form": self._form,
            "picked": len(picked),
        }
        wanted = self._sample.metadata.get("dimension")
        return found if wanted is None else found | {"found": wanted in picked}

    def _named(self, text: str) -> tuple[str, ...]:
        """Return the criteria that a text names, in its order."""
        places = {name: re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in self._criteria}
        return tuple(sorted((name for name in places if places[name]), key=lambda name: places[name].start()))  # type: ignore[union-attr]
