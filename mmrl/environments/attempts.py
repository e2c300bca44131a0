"""`Attempts`: a policy answers, reads a request to try again, and answers again, without learning what was right.

The first turn reads the sample's prompt, later ones the same message each time. The rewards of a turn are `right`, what
a reward for single answers gives it, and `progress`, by how much that is above the turn before (0 in the first).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments.environment import Observation, Step
from mmrl.errors import ConfigError
from mmrl.rewards.core.registry import load
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_errors import RewardError, Status
from mmrl.rewards.core.reward_io import Scope, reward_input

MESSAGE = "There may be an error in your answer. Check it, correct it if needed, and answer again."


class Attempts:
    """Answer several times, without a sign whether an answer is right."""

    name = "attempts"
    instructions = ""
    deadline_s: float | None = None

    def __init__(
        self,
        reward: str = "maths",
        reward_args: Mapping[str, Any] | None = None,
        message: str = MESSAGE,
        max_turns: int = 2,
    ) -> None:
        """
        Args:
            reward: the reward of a single answer, with values in [0, 1].
            reward_args: its arguments.
            message: what the policy reads before it tries again.
            max_turns: answers of an episode.
        """
        if max_turns < 2:
            raise ConfigError(f"environment.max_turns: {max_turns} attempts; there are two or more")
        try:
            self.judge: Reward = load(reward, **(reward_args or {}))
        except RewardError as err:
            raise ConfigError(f"environment.args.reward: {err}") from err
        judge = self.judge
        if judge.scope is not Scope.SAMPLE or judge.direction != "higher" or judge.scheduled or judge.range != (0, 1):
            raise ConfigError(
                f"environment.args.reward: {reward} judges no single answer by a value from 0 to 1, as maths does"
            )
        self.message, self.max_turns = message, max_turns

    def begin(self, sample: Sample, reader: MediaReader) -> AttemptsEpisode:
        """Begin with the sample's prompt."""
        return AttemptsEpisode(partial(right, self.judge, sample), self.message)


class AttemptsEpisode:
    """The attempts of one row."""

    def __init__(self, judge: Callable[[str], float], message: str) -> None:
        self._judge, self._message = judge, message
        self._values: list[float] = []

    def step(self, action: str | None) -> Step:
        """Judge an answer; one that was cut off is worth 0 and ends the episode."""
        value = 0.0 if action is None else self._judge(action)
        progress = value - self._values[-1] if self._values else 0.0
        self._values.append(value)
        observation = None if action is None else Observation(self._message)
        return Step(observation, {"right": value, "progress": progress})

    def outcome(self) -> Mapping[str, Any]:
        """Return what the first and the last answer are worth, and all of them as `attempts`."""
        values = self._values or [0.0]
        return {"success": values[-1], "first": values[0], "attempts": tuple(values)}


def right(judge: Reward, sample: Sample, text: str) -> float:
    """Return what a reward gives an answer to a sample: 0 for one that cannot be read.

    Raises:
        RewardError: the answer could not be scored, which says nothing about it.
    """
    scored = judge.score([reward_input(sample, text, 0, sample.id)])
    status = scored.status[judge.name][0]
    if status in (Status.ERROR, Status.TIMEOUT):
        raise RewardError(f"{judge.name} could not score an attempt at sample {sample.id!r} ({status})")
    return 0.0 if status is Status.INVALID else float(scored.values[judge.name][0])
