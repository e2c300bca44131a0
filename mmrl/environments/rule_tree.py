"""`RuledProgress`: the environment `ruled`, which rewards each turn by a decision tree over what is measured of it.

    tree: {if: effect, then: {if: found, then: 1.0, else: 0.2}, else: -0.5}

An inner node asks whether something that the environment that is played measures of a turn (`turns/info/NAME`) is above
0, or above the number `over`; a leaf is the reward. Rules cost nothing and read no answer, so that such a tree stands
beside a judge of the outcome, whose verdict comes late (the hybrid reward of OpAgent, arXiv:2602.13559).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments.environment import Environment, Episode, Step
from mmrl.environments.wrapped import WrappedEnvironment
from mmrl.errors import ConfigError

PROGRESS = "progress"
"""The name of the turn reward."""


class Rule(BaseModel):
    """An inner node of a decision tree."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    measured: str = Field(alias="if", min_length=1)
    """The name of a measured value of a turn."""
    over: float = 0.0
    """The number that it has to exceed."""
    yes: Rule | float = Field(alias="then")
    """The rule or the reward that follows if it does."""
    no: Rule | float = Field(alias="else")
    """The rule or the reward that follows if it does not."""

    def reward(self, measured: Mapping[str, float]) -> float:
        """Return the reward of a turn.

        >>> rule = Rule.model_validate({"if": "hit", "then": {"if": "late", "then": 0.5, "else": 1}, "else": -1})
        >>> rule.reward({"hit": 1.0, "late": 0.0}), rule.reward({"hit": 1.0, "late": 1.0}), rule.reward({"hit": 0.0})
        (1.0, 0.5, -1.0)

        Raises:
            ConfigError: something that a rule asks for is not measured.
        """
        if self.measured not in measured:
            known = ", ".join(sorted(measured)) or "nothing"
            raise ConfigError(f"ruled: the tree asks for {self.measured!r}, and of a turn are measured: {known}")
        following = self.yes if measured[self.measured] > self.over else self.no
        return following.reward(measured) if isinstance(following, Rule) else following


class RuledProgress(WrappedEnvironment):
    """Play another environment, and reward each turn by a decision tree over what it measures (OpAgent)."""

    name = "ruled"

    def __init__(self, of: Environment, tree: Mapping[str, Any], max_turns: int | None = None) -> None:
        """
        Args:
            of: the environment that is played; in a recipe its name, or its section with `name` and `args`.
            tree: the rule at the root, as {if: NAME, over: 0, then: RULE OR NUMBER, else: RULE OR NUMBER}.
            max_turns: actions of an episode; None: as the environment that is played says.
        """
        super().__init__(of, max_turns)
        try:
            self.tree = Rule.model_validate(tree)
        except ValidationError as err:
            problem = err.errors()[0]
            where = ".".join(str(part) for part in problem["loc"] if part in ("if", "over", "then", "else"))
            raise ConfigError(f"ruled: tree.{where}: {problem['msg']}") from None
        if not all(map(math.isfinite, leaves_of(self.tree))):
            raise ConfigError("ruled: tree: every leaf is a finite number")

    def begin(self, sample: Sample, reader: MediaReader) -> RuledEpisode:
        """Begin an episode of the environment that is played."""
        return RuledEpisode(self.of.begin(sample, reader), self.tree)


class RuledEpisode:
    """The turns of one row, with the rewards of the tree."""

    def __init__(self, episode: Episode, tree: Rule) -> None:
        self._episode, self._tree = episode, tree

    def step(self, action: str | None) -> Step:
        """Carry out an action, and reward it."""
        step = self._episode.step(action)
        return Step(step.observation, {**step.rewards, PROGRESS: self._tree.reward(step.info)}, step.info)

    def outcome(self) -> Mapping[str, Any]:
        """Return the outcome of the environment that is played."""
        return self._episode.outcome()


def leaves_of(rule: Rule) -> list[float]:
    """Return the rewards of a tree, from the first branch to the last."""
    found: list[float] = []
    for each in (rule.yes, rule.no):
        found += leaves_of(each) if isinstance(each, Rule) else [each]
    return found
