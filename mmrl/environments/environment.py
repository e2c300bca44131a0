"""The interface of environments: an episode for each row, which answers each action with an observation.

    episode = environment.begin(sample, reader)
    step = episode.step("12, 34")        # Step(observation, rewards, info)
    while step.observation is not None:  # None: the episode is over
        step = episode.step(answer(step.observation))
    episode.outcome()                    # for the rewards, such as {"success": True, "void": None, ...}

`EpisodeBatch` steps the episodes of all rows of a rollout at once. To add an environment: write a class with the
members of `Environment` and a `name`, and register it with `register`, as an entry point of the group
`mmrl.environments`, or use it as `path/to/file.py:Class`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from PIL import Image

from mmrl.data.media.reader import MediaReader
from mmrl.data.media.video import VideoFrames
from mmrl.data.sample import Sample


@dataclass(frozen=True)
class Observation:
    """A message of an environment to the policy: a text, and pictures or clips, which come before the text.

    The text is untrusted: a policy encodes it so that no special token arises from it.
    """

    text: str = ""
    images: tuple[Image.Image, ...] = ()
    videos: tuple[VideoFrames, ...] = ()
    found: tuple[str, ...] = ()
    """The ids of what a search found, the best first: for measuring it, and not shown."""


@dataclass(frozen=True)
class Step:
    """The answer of an environment to one action."""

    observation: Observation | None
    """None: the episode is over."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """The rewards of this turn by name."""
    info: Mapping[str, float] = field(default_factory=dict)
    """Measured and logged, never rewarded."""


class Episode(Protocol):
    """The conversation of one row with an environment, which is the same for the same actions."""

    def step(self, action: str | None) -> Step:
        """Answer an action, the text of one turn; None: the turn was cut off before its end token."""

    def outcome(self) -> Mapping[str, Any]:
        """Return what the rewards of the whole episode read, once it is over.

        `void` is None, or the kind of failure (`timeout`, `error`) after which the outcome says nothing about the
        policy; an outcome without the key is not void. `turn_rewards`, which may be left out, are the rewards of
        turns that are known at the end alone: by name, a number for each turn from the first on.
        """


class Environment(Protocol):
    """A partner of several turns that answers an action with an observation. Its members may be class attributes.

    It may have two more: `special_tokens`, those that an action is read with, and `space`, the coordinate space of the
    points and boxes in actions (pixel, norm_1 or norm_1000), in which reports draw them on what the policy saw.
    """

    max_turns: int
    """The largest number of actions of an episode."""
    instructions: str
    """The text that a policy reads before any prompt, such as the tools that it may call; may be empty."""
    deadline_s: float | None
    """Seconds after which a step of one row is abandoned and its episode void; None: every step ends by itself."""

    def begin(self, sample: Sample, reader: MediaReader) -> Episode:
        """Begin an episode; its first observation is the sample's prompt with its media.

        Raises:
            DataError: the sample has not what the environment needs. The message names the sample and the key.
        """
