"""`WrappedEnvironment`: an environment that plays another one and adds something to its turns."""

from __future__ import annotations

from typing import ClassVar

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments.environment import Environment, Episode
from mmrl.errors import ConfigError


class WrappedEnvironment:
    """An environment with the limits, tokens and first turns of the one that it plays, in `of`."""

    name: str
    played_argument: ClassVar[str] = "of"

    def __init__(self, of: Environment, max_turns: int | None = None) -> None:
        """
        Raises:
            ConfigError: `of` is no environment, such as a name outside a recipe.
        """
        if not hasattr(of, "begin"):
            raise ConfigError(
                f"{self.name}: of is {of!r:.80}; it is an environment, in a recipe by its name or section"
            )
        self.of = of
        self.max_turns = of.max_turns if max_turns is None else min(max_turns, of.max_turns)
        self.instructions, self.deadline_s = of.instructions, of.deadline_s
        self.special_tokens: tuple[str, ...] = tuple(getattr(of, "special_tokens", ()))
        self.space: str | None = getattr(of, "space", None)

    def begin(self, sample: Sample, reader: MediaReader) -> Episode:
        """Begin an episode of the environment that is played."""
        return self.of.begin(sample, reader)

    def first_turns(self, sample: Sample) -> tuple[str, ...]:
        """Return the turns that the episodes of a sample begin with."""
        first = getattr(self.of, "first_turns", None)
        return () if first is None else tuple(first(sample))
