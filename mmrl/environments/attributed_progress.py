"""`AttributedProgress`: the environment `attributed`, with a learnt share of the outcome for each turn (SPA-RL).

A turn has the reward `contribution`, its part of the estimated outcome (`mmrl.rewards.learned.progress_estimator`), and
`executed`, 1 if the action came to something in the environment (the grounding signal of arXiv:2505.20732). Their sum
with weights of 1 and 0.5 is the reward of a step in the paper's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments.environment import Environment, Episode, Step
from mmrl.environments.wrapped import WrappedEnvironment
from mmrl.errors import ConfigError

if TYPE_CHECKING:
    from mmrl.rewards.learned.progress_estimator import PlayedTurn, ProgressEstimator

CONTRIBUTION, EXECUTED = "contribution", "executed"
"""The names of the turn rewards."""


class AttributedProgress(WrappedEnvironment):
    """Play another environment, and reward each turn with its learnt contribution to the outcome (SPA-RL)."""

    name = "attributed"

    def __init__(self, of: Environment, model: str, executed: str = "effect", max_turns: int | None = None) -> None:
        """
        Args:
            of: the environment that is played; in a recipe its name, or its section with `name` and `args`.
            model: the folder of an estimator, as `mmrl data progress` writes it.
            executed: what is measured of a turn (`turns/info/NAME`) that is 0 if the action came to nothing.
            max_turns: actions of an episode; None: as the environment that is played says.
        """
        from mmrl.rewards.core.reward_errors import RewardError
        from mmrl.rewards.learned.progress_estimator import read_estimator  # with torch

        super().__init__(of, max_turns)
        self.executed = executed
        try:
            self.estimator = read_estimator(Path(model))
        except RewardError as err:
            raise ConfigError(f"attributed: model: {err}") from err

    def begin(self, sample: Sample, reader: MediaReader) -> AttributedEpisode:
        """Begin an episode of the environment that is played."""
        return AttributedEpisode(self.of.begin(sample, reader), sample.last_text, self.estimator, self.executed)


class AttributedEpisode:
    """The turns of one row, whose contributions are known once it is over."""

    def __init__(self, episode: Episode, prompt: str, estimator: ProgressEstimator, executed: str) -> None:
        self._episode, self._prompt, self._estimator, self._executed = episode, prompt, estimator, executed
        self._turns: list[PlayedTurn] = []

    def step(self, action: str | None) -> Step:
        """Carry out an action.

        Raises:
            ConfigError: the environment that is played does not measure `executed`.
        """
        from mmrl.rewards.learned.progress_estimator import PlayedTurn

        step = self._episode.step(action)
        if self._executed not in step.info:
            known = ", ".join(sorted(step.info)) or "nothing"
            raise ConfigError(f"attributed: executed is {self._executed!r}, and of a turn are measured: {known}")
        self._turns.append(PlayedTurn(action or "", "" if step.observation is None else step.observation.text))
        grounded = float(step.info[self._executed] > 0)
        return Step(step.observation, {**step.rewards, EXECUTED: grounded}, step.info)

    def outcome(self) -> Mapping[str, Any]:
        """Return the outcome of the environment that is played, with `contribution` among its `turn_rewards`."""
        from mmrl.rewards.learned.progress_estimator import PlayedEpisode

        found = self._episode.outcome()
        contributions = self._estimator.contributions(PlayedEpisode(self._prompt, tuple(self._turns)))
        return {**found, "turn_rewards": {**found.get("turn_rewards", {}), CONTRIBUTION: contributions}}
