"""`shapeworld_shop`: the environment of the toy shop, an entry point of `mmrl.environments`.

    bread: 4 1 7 9             the thing that is wanted, and the shelves of the shop
    open 7                     none                 another thing lies there; `here` where it is the wanted one
    take                       got                  what lies on the shelf that was opened last
    put                        put                  back, if it was the wrong one
    pay                                             the end: a success with the wanted thing in the hand

Whoever holds something can open no shelf, and so must put it back first. An episode has two actions more than there are
shelves: who opens none twice always has enough. An action that cannot be carried out is answered by `no`.

`level`, how much of the task is done, is a turn reward on request: 1/3 once the wanted thing was found, 2/3 while it is
in the hand, and 1 when it is paid. It pays again at every turn that it lasts, unless it is taken as a potential.

A turn may begin with a tag, such as <explore>, which the shop does not read (`mmrl.environments.tagged_steps` does).

A sample with recorded actions and `start` is a single action after that many of them: whether it is the next one, or
does the same. With recorded actions alone it is an episode along them (`recorded_shopping`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import Observation, Step
from mmrl.environments.tagged_steps import read_tag
from mmrl.errors import ConfigError, DataError
from mmrl_shapeworld.shop.recorded_shopping import Mismatch, RecordedShopEpisode

SPARE_ACTIONS = 2
"""Actions of an episode beyond the number of shelves: to take and to pay."""
MOST_SHELVES = 6
REFLECTIONS = "reflections"
"""The key in `Sample.metadata` of the number of actions that a reflector sends back."""
START, RECORDED = "start", "recorded"
"""The keys of the number of recorded actions that an episode begins with, and of the recorded actions."""
REFUSED, AGAIN, GOT, HERE, ELSEWHERE = "no", "again", "got", "here", "none"
Match = Literal["exact", "equivalent"]
_ACTION = re.compile(r"open ([0-9])|take|put|pay")


@dataclass(frozen=True)
class ShopTask:
    """A shop and what is wanted of it."""

    wanted: str
    """A thing, such as `bread`."""
    shelves: tuple[int, ...]
    """The numbers of the shelves, single digits."""
    items: tuple[str, ...]
    """The things on them; one of them is wanted."""

    @property
    def prompt(self) -> str:
        """The wanted thing, and the shelves: `bread: 4 1 7 9`."""
        return f"{self.wanted}: {' '.join(map(str, self.shelves))}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for `Sample.answer`."""
        return {**asdict(self), "shelves": list(self.shelves), "items": list(self.items)}

    @classmethod
    def from_dict(cls, data: Any) -> ShopTask:
        """Return the task of `as_dict`.

        Raises:
            ValueError: the data are not those of a task.
        """
        try:
            task = cls(str(data["wanted"]), tuple(map(int, data["shelves"])), tuple(map(str, data["items"])))
        except (KeyError, TypeError, ValueError) as err:
            raise ValueError(f"no task of the shop: {err!r:.100}") from None
        if not 0 < len(task.shelves) == len(set(task.shelves)) == len(task.items) or task.wanted not in task.items:
            raise ValueError(f"no task of the shop: {data!r:.200}")
        return task


class ToyShop:
    """Find a thing on the shelves of a shop, take it and pay; samples are shapeworld:shop-train."""

    name = "shapeworld_shop"
    max_turns = MOST_SHELVES + SPARE_ACTIONS
    instructions = ""
    deadline_s: float | None = None

    def __init__(
        self,
        reflections: int = 0,
        level: bool = False,
        spare_actions: int = SPARE_ACTIONS,
        match: Match = "exact",
        mismatch: Mismatch = "end",
        max_patches: int = 1,
    ) -> None:
        """
        Args:
            reflections: the actions of an episode that a reflector sends back with the word `again` before they cost
                anything: those that cannot be carried out, and a shelf that was opened before. A sample's
                `metadata.reflections` takes its place.
            level: True gives a reward of each turn, how much of the task is done after it.
            spare_actions: actions of an episode beyond the number of shelves; two suffice.
            match: the single actions that count after recorded ones. "exact": the recorded one alone; "equivalent":
                also those that do the same, which is to open any new shelf where one was opened (PivotRL,
                arXiv:2603.21383).
            mismatch: what follows an action along recorded ones that is another. "end": nothing; the episode is over.
                "patch": what the shop answered to the recorded action, which is named (UI-S1, arXiv:2509.11543).
            max_patches: the mismatches of an episode after which it goes on with "patch".
        """
        if match not in ("exact", "equivalent"):
            raise ConfigError(f"{self.name}: match is {match!r}; it is exact or equivalent")
        if mismatch not in ("end", "patch") or max_patches < 1:
            raise ConfigError(
                f"{self.name}: mismatch is {mismatch!r} (end or patch), max_patches {max_patches} (1 or more)"
            )
        if reflections < 0:
            raise ConfigError(f"{self.name}: reflections is {reflections}; it is a number from 0")
        if spare_actions < SPARE_ACTIONS:
            raise ConfigError(
                f"{self.name}: spare_actions is {spare_actions}; it takes {SPARE_ACTIONS} to take and to pay"
            )
        self.reflections, self.level, self.spare_actions = reflections, level, spare_actions
        self.match: Match = match
        self.max_patches = max_patches if mismatch == "patch" else 0
        self.max_turns = MOST_SHELVES + spare_actions + max(reflections, SPARE_ACTIONS)

    def begin(self, sample: Sample, reader: MediaReader) -> ShopEpisode | RecordedShopEpisode:
        """Begin in front of the shelves."""
        try:
            task = ShopTask.from_dict(sample.answer)
        except ValueError as err:
            raise DataError(f"sample {sample.id!r}: answer: {err}: take shapeworld:shop-train") from None
        recorded = sample.metadata.get(RECORDED)
        if recorded is not None and START not in sample.metadata:
            return RecordedShopEpisode(ShopEpisode(task), recorded, self.max_patches)
        single = None if recorded is None else (int(sample.metadata[START]), str(recorded[sample.metadata[START]]))
        reflections = int(sample.metadata.get(REFLECTIONS, self.reflections))
        return ShopEpisode(task, reflections, single, self.level, self.spare_actions, self.match)

    def first_turns(self, sample: Sample) -> tuple[str, ...]:
        """Return the recorded actions that an episode begins with, `metadata.start` of `metadata.recorded`."""
        return tuple(sample.metadata.get(RECORDED, ())[: sample.metadata.get(START, 0)])


class ShopEpisode:
    """The actions of one row. With `single`, it ends after the action that follows that number of recorded ones."""

    def __init__(
        self,
        task: ShopTask,
        reflections: int = 0,
        single: tuple[int, str] | None = None,
        level: bool = False,
        spare_actions: int = SPARE_ACTIONS,
        match: Match = "exact",
    ) -> None:
        self.task, self.opened, self.in_hand = task, dict[int, int](), -1
        self.at = -1
        """The place of the shelf that was opened last; -1: none."""
        self.left = len(task.shelves) + spare_actions
        self._reflections, self._single, self._level, self._match = reflections, single, level, match
        self._actions = self._repeated = self._wasted = self._reflected = self._steps = 0
        self._found, self._ended, self._matched = False, "", False

    @property
    def right(self) -> int:
        """The place of the wanted thing."""
        return self.task.items.index(self.task.wanted)

    @property
    def level(self) -> float:
        """The share of the task that is done, in thirds."""
        if self.in_hand == self.right:
            return 1.0 if self._ended == "paid" else 2 / 3
        return 1 / 3 if self._found else 0.0

    def step(self, action: str | None) -> Step:
        """Carry out an action."""
        step = self._step(action)
        return replace(step, rewards={**step.rewards, "level": self.level}) if self._level else step

    def _step(self, action: str | None) -> Step:
        if self._ended:
            raise ValueError("the episode is over")
        self._steps += 1
        if action is None:
            self._ended = "cut_off"
            return Step(None, {}, _info())
        text = read_tag(action)[1]
        found = _ACTION.fullmatch(text)
        digit = None if found is None or found[1] is None else int(found[1])
        place = self.task.shelves.index(digit) if digit is not None and digit in self.task.shelves else None
        repeated = place is not None and place in self.opened
        if self._single is not None and self._steps == self._single[0] + 1:
            recorded = read_tag(self._single[1])[1]
            does_same = recorded.startswith("open") and place is not None and not repeated
            self._matched = text == recorded or (self._match == "equivalent" and does_same)
            self._ended = "step"
            return Step(None, {"match": float(self._matched)}, _info(effect=float(self._matched)))
        possible = found is not None and self._possible(text, place)
        if self._reflected < self._reflections and (repeated or not possible):
            self._reflected += 1
            return Step(Observation(AGAIN), {}, _info())
        self.left -= 1
        self._actions += 1
        self._repeated += repeated
        self._wasted += repeated or not possible
        if not possible:
            return self._after(REFUSED, _info(repeated=float(repeated)))
        return self._carried_out(text, place, repeated)

    def outcome(self) -> Mapping[str, Any]:
        """Return success, and the shares of actions that repeat an opened shelf, and that have no effect."""
        success = self._ended == "paid" and self.in_hand == self.right
        return {
            "success": self._matched if self._single is not None else success,
            "found": self._found,
            "repeated": self._repeated / max(self._actions, 1),
            "wasted": self._wasted / max(self._actions, 1),
            "actions": self._actions,
            "reflected": self._reflected,
            "ended": self._ended,
        }

    def _possible(self, text: str, place: int | None) -> bool:
        if text.startswith("open"):
            return place is not None and self.in_hand < 0
        if text == "take":
            return self.in_hand < 0 <= self.at
        return self.in_hand >= 0

    def _carried_out(self, text: str, place: int | None, repeated: bool) -> Step:
        if place is not None:
            self.at, self.opened[place] = place, 1
            first = place == self.right and not self._found
            self._found |= place == self.right
            return self._after(
                HERE if place == self.right else ELSEWHERE,
                _info(float(not repeated), float(repeated), new=float(not repeated), found=float(first), valid=1.0),
            )
        if text == "take":
            self.in_hand = self.at
            good = float(self.in_hand == self.right)
            return self._after(GOT, _info(1.0, taken=good, grabbed=1.0 - good, valid=1.0))
        if text == "put":
            wrong = float(self.in_hand != self.right)
            self.in_hand = -1
            return self._after("put", _info(wrong, valid=1.0))
        self._ended = "paid"
        good = float(self.in_hand == self.right)
        return Step(None, {}, _info(good, paid=good, valid=1.0))

    def _after(self, text: str, info: Mapping[str, float]) -> Step:
        if self.left == 0:
            self._ended = "actions"
            return Step(None, {}, info)
        return Step(Observation(text), {}, info)


def _info(
    effect: float = 0.0,
    repeated: float = 0.0,
    new: float = 0.0,
    found: float = 0.0,
    taken: float = 0.0,
    grabbed: float = 0.0,
    paid: float = 0.0,
    valid: float = 0.0,
) -> dict[str, float]:
    """Return what is measured of a turn: each 1 if so, else 0.

    effect: it brought the episode on; repeated: it opened a shelf again; new: it opened another one; found: the one
    with the wanted thing, for the first time; taken: the wanted thing; grabbed: another one; paid: the wanted thing;
    valid: it could be carried out.
    """
    return {
        "effect": effect,
        "repeated": repeated,
        "new": new,
        "found": found,
        "taken": taken,
        "grabbed": grabbed,
        "paid": paid,
        "valid": valid,
    }
