"""`TaggedSteps`: the environment `tagged`, whose turns say what they are for, with a rule for each tag (RLVMR).

A turn begins with a tag, and perhaps a thought: `<explore>open 4`, `<reflect>the shelf was empty</reflect>open 7`. What
follows is the action of the environment that is played. A rule rewards the tag if the turn was what it says
(arXiv:2507.22844):

plan     the episode is a success in the end
explore  the turn reached something new; where that is not measured, its action was not tried before and had an effect
reflect  the turn before had no effect, and this one is another and has one
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments.environment import Environment, Episode, Step
from mmrl.environments.wrapped import WrappedEnvironment
from mmrl.errors import ConfigError

PLAN, EXPLORE, REFLECT = "plan", "explore", "reflect"
TAGS = (PLAN, EXPLORE, REFLECT)
UNTAGGED = "untagged"
"""The turn reward of a turn without a tag: 1 for each, to be weighed below 0."""
KIND = "tag"
"""The name of a measured value of a turn: the number of its tag in `TAGS`, -1 without one."""
_TAGGED = re.compile(rf"\s*<({'|'.join(TAGS)})>(?:.*?</\1>)?(.*)", re.DOTALL)


def read_tag(text: str) -> tuple[str | None, str]:
    """Return the tag at the beginning of a turn, None without one, and the action behind it.

    >>> read_tag("<explore>open 4"), read_tag("<plan>first shelf 4</plan> open 4"), read_tag("open 4")
    (('explore', 'open 4'), ('plan', 'open 4'), (None, 'open 4'))
    """
    found = _TAGGED.fullmatch(text)
    return (None, text.strip()) if found is None else (found[1], found[2].strip())


class TaggedSteps(WrappedEnvironment):
    """Play another environment with turns that begin with <plan>, <explore> or <reflect>, each with a rule (RLVMR)."""

    name = "tagged"

    def __init__(
        self, of: Environment, effect: str = "effect", new: str | None = None, max_turns: int | None = None
    ) -> None:
        """
        Args:
            of: the environment that is played; in a recipe its name, or its section with `name` and `args`.
            effect: what is measured of a turn (`turns/info/NAME`) that is 0 if the action came to nothing.
            new: what is measured of a turn that is above 0 if it reached something new, such as another page; None: an
                action that was not tried before and had an effect did.
            max_turns: actions of an episode; None: as the environment that is played says.
        """
        super().__init__(of, max_turns)
        self.effect, self.new = effect, new

    def begin(self, sample: Sample, reader: MediaReader) -> TaggedEpisode:
        """Begin an episode of the environment that is played."""
        return TaggedEpisode(self.of.begin(sample, reader), self.effect, self.new)


class TaggedEpisode:
    """The turns of one row, with the rewards of their tags."""

    def __init__(self, episode: Episode, effect: str, new: str | None = None) -> None:
        self._episode, self._effect, self._new = episode, effect, new
        self._tags: list[str | None] = []
        self._tried: list[str] = []
        self._effects: list[bool] = []

    def step(self, action: str | None) -> Step:
        """Carry out what stands behind the tag.

        Raises:
            ConfigError: the environment that is played does not measure `effect` or `new`.
        """
        tag, rest = (None, None) if action is None else read_tag(action)
        step = self._episode.step(rest)
        effect = measured(step, "effect", self._effect)
        untried = effect and rest not in self._tried
        new = untried if self._new is None else measured(step, "new", self._new)
        rewards = {UNTAGGED: 1.0} if tag is None else {}
        if tag == EXPLORE:
            rewards[EXPLORE] = float(new)
        elif tag == REFLECT:
            rewards[REFLECT] = float(self._recovers(rest or "", effect))
        self._tags.append(tag)
        self._tried.append(rest or "")
        self._effects.append(effect)
        kind = float(TAGS.index(tag)) if tag is not None else -1.0
        return Step(step.observation, {**step.rewards, **rewards}, {**step.info, KIND: kind})

    def outcome(self) -> Mapping[str, Any]:
        """Return the outcome of the environment that is played, with the rewards of plans among `turn_rewards`.

        `repeated` is the share of turns whose action was tried before, unless the environment itself measures that.
        """
        found = self._episode.outcome()
        success = float(found.get("success", 0))
        plans = [success if tag == PLAN else 0.0 for tag in self._tags]
        repeated = 1 - len(set(self._tried)) / max(len(self._tried), 1)
        return {"repeated": repeated, **found, "turn_rewards": {**found.get("turn_rewards", {}), PLAN: plans}}

    def _recovers(self, action: str, effect: bool) -> bool:
        return bool(self._effects) and not self._effects[-1] and effect and action != self._tried[-1]


def measured(step: Step, key: str, name: str) -> bool:
    """Return whether a measured value of a turn is above 0; `key` of the environment `tagged` names it.

    Raises:
        ConfigError: it is not measured.
    """
    if name not in step.info:
        known = ", ".join(sorted(step.info)) or "nothing"
        raise ConfigError(f"tagged: {key} is {name!r}, and of a turn are measured: {known}")
    return step.info[name] > 0
