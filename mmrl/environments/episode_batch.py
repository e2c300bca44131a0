"""`EpisodeBatch`: the episodes of all rows of a rollout, stepped at once in threads, so that none waits for another."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from mmrl.components import place_in_user_file
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments.environment import Environment, Episode, Step
from mmrl.errors import ConfigError, DataError, GenerationError, RunError
from mmrl.rewards.core.executor import DaemonPool

MAX_DETAIL = 500
"""The largest number of characters that an outcome keeps of an error message."""
_log = logging.getLogger(__name__)
Result = TypeVar("Result")


class EpisodeBatch:
    """The episodes of R rows.

        batch = EpisodeBatch(environment, samples, reader)
        while batch.live:
            steps = batch.step({row: action(row) for row in batch.live})
        batch.outcomes()   # [R]

    A row whose step raises, or takes longer than the environment's deadline, is over and void: its outcome has `void`
    ("error" or "timeout") and `detail`. Rows that have taken `max_turns` actions are over.
    """

    def __init__(
        self, environment: Environment, samples: Sequence[Sample], reader: MediaReader, max_turns: int | None = None
    ) -> None:
        """Begin an episode for each sample.

        Args:
            environment: the partner of all rows.
            samples: [R], one for each row.
            reader: opens the media of samples.
            max_turns: the most actions of an episode, beside the environment's own number; None: that alone counts.

        Raises:
            DataError: see `Environment.begin`; or it raised another exception, or returned something without `step`
                or `outcome`.
        """
        self._environment = environment
        most = environment.max_turns
        self._max_turns = most if max_turns is None else min(max_turns, most)
        self._episodes: list[Episode] = [_begin(environment, sample, reader) for sample in samples]
        self._live = dict.fromkeys(range(len(samples)))
        self._voids: dict[int, tuple[str, str]] = {}
        self.turns = [0] * len(samples)
        """The number of actions of each row."""

    @property
    def live(self) -> list[int]:
        """The rows whose episode is not over, in order."""
        return list(self._live)

    def is_void(self, row: int) -> bool:
        """Return whether the episode of a row broke down."""
        return row in self._voids

    def step(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Answer the actions of live rows, all at once.

        Raises:
            ValueError: the episode of a row is over.
        """
        if over := sorted(actions.keys() - self._live.keys()):
            raise ValueError(f"the episodes of rows {over} are over")
        found = self._at_once({row: partial(self._episodes[row].step, action) for row, action in actions.items()})
        steps: dict[int, Step] = {}
        for row in actions:
            self.turns[row] += 1
            step = found.get(row)
            if step is not None and not isinstance(step, Step):
                self._make_void(row, "error", f"step returned {type(step).__name__}, not a Step")
                step = None
            if step is None:
                step = Step(None)
            elif self.turns[row] >= self._max_turns and step.observation is not None:
                step = Step(None, step.rewards, step.info)
            if step.observation is None:
                del self._live[row]
            steps[row] = step
        return steps

    def outcomes(self) -> list[dict[str, Any]]:
        """Return the outcome of each row [R]. Rows that are still live get the outcome of the actions so far."""
        found = self._at_once({
            row: partial(_outcome_of, episode)
            for row, episode in enumerate(self._episodes)
            if row not in self._voids
        })  # fmt: skip
        for row, outcome in list(found.items()):
            try:
                turn_rewards_of(outcome, self.turns[row])
            except ValueError as err:
                self._make_void(row, *error_of(err))
                del found[row]
        return [
            found[row] if row in found else {"void": self._voids[row][0], "detail": self._voids[row][1]}
            for row in range(len(self._episodes))
        ]

    def _at_once(self, calls: Mapping[int, Callable[[], Result]]) -> dict[int, Result]:
        """Return the results of the calls by row; rows that fail are void and left out."""
        pool = DaemonPool(max(1, len(calls)), "episodes")
        futures: dict[int, Future[Result]] = {row: pool.submit(call) for row, call in calls.items()}
        deadline = self._environment.deadline_s
        end = None if deadline is None else time.monotonic() + deadline
        results: dict[int, Result] = {}
        for row, future in futures.items():
            try:
                results[row] = future.result(None if end is None else max(0.0, end - time.monotonic()))
            except TimeoutError as err:
                late = not future.done()
                self._make_void(row, *(("timeout", f"no answer within {deadline:g} s") if late else error_of(err)))
            except Exception as err:  # a border: an environment that breaks down says nothing about the policy
                self._make_void(row, *error_of(err))
            except BaseException as err:
                if not future.done():  # Ctrl-C in this thread
                    raise
                self._make_void(row, *error_of(err))
        pool.close()
        return results

    def _make_void(self, row: int, kind: str, detail: str) -> None:
        if kind not in {known for known, _ in self._voids.values()}:
            _log.warning("the episode of row %d is void (%s): %s", row, kind, detail)
        self._voids[row] = (kind, detail)


def turn_rewards_of(outcome: Mapping[str, Any], turns: int) -> dict[str, list[float]]:
    """Return the rewards of turns that an outcome brings, by name: at most one of each name for each of the turns.

    Raises:
        ValueError: `turn_rewards` is there, and is no such mapping.
    """
    rewards = outcome.get("turn_rewards", {})
    if not isinstance(rewards, Mapping):
        raise ValueError(f"the outcome's turn_rewards is {rewards!r:.60}, not a list of numbers for each name")
    for name, values in rewards.items():
        numbers = isinstance(values, list | tuple) and all(isinstance(each, int | float) for each in values)
        if not numbers or len(values) > turns or not all(map(math.isfinite, values)):
            raise ValueError(
                f"the outcome's turn_rewards.{name} is {values!r:.60}, not a number for each of {turns} turns"
            )
    return {str(name): [float(each) for each in values] for name, values in rewards.items()}


def error_of(error: BaseException) -> tuple[str, str]:
    """Return the kind of failure of an exception, and its text of at most `MAX_DETAIL` characters."""
    place = place_in_user_file(error)
    return "error", f"{type(error).__name__}: {error}"[:MAX_DETAIL] + (f" ({place})" if place else "")


def _begin(environment: Environment, sample: Sample, reader: MediaReader) -> Episode:
    try:
        episode = environment.begin(sample, reader)
    except (ConfigError, DataError, RunError, GenerationError):
        raise
    except Exception as err:  # a border: it may be code of the user
        raise DataError(
            f"sample {sample.id!r}: the environment {type(environment).__name__} could not begin: {error_of(err)[1]}"
        ) from err
    if missing := [name for name in ("step", "outcome") if not callable(getattr(episode, name, None))]:
        raise DataError(
            f"sample {sample.id!r}: begin of the environment {type(environment).__name__} returned "
            f"{type(episode).__name__}, which has no method {' and no method '.join(missing)}"
        )
    return episode


def _outcome_of(episode: Episode) -> dict[str, Any]:
    return {"void": None, **episode.outcome()}
