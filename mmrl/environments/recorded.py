"""`RecordedTraces`: the environment `recorded`, which replays recorded traces on screens.

After any action the next screen is the one that was recorded, since nothing else is known. After an action that is not
the recorded one, the argument `mismatch` decides how the episode goes on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from mmrl.data.media.decode import image_size
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments.environment import Environment, Episode, Observation, Step
from mmrl.environments.recorded_steps import START, RecordedStep, has_steps, steps_of
from mmrl.environments.step_judge import ScreenSize, StepJudge, StepVerdict
from mmrl.errors import ConfigError
from mmrl.rewards.parsing.boxes import SPACES, Space

ACTION_PLACE = "{action}"
"""The part of `patch_text` that stands for the recorded action."""
PATCH_TEXT = "This is not what was recorded. The recorded action was carried out instead: {action}"
"""The text of an observation that repairs a mismatch."""


class RecordedTraces:
    """Replay recorded traces of actions on screens, from `metadata.steps` of the samples."""

    name = "recorded"
    played_argument = "live"
    instructions = ""

    def __init__(
        self,
        mismatch: Literal["end", "patch", "ignore"] = "end",
        max_patches: int = 1,
        match: Literal["equivalent", "exact"] = "equivalent",
        distance: float = 0.14,
        least_f1: float = 1.0,
        space: Space | None = None,
        patch_text: str = PATCH_TEXT,
        max_turns: int = 30,
        live: Environment | None = None,
    ) -> None:
        """
        Args:
            mismatch: what follows an action that is not the recorded one. "end": nothing; the episode is over. "patch":
                the recorded screen, with a text that names the recorded action, at most `max_patches` times (UI-S1,
                arXiv:2509.11543). "ignore": the recorded screen, always.
            max_patches: the mismatches of an episode after which it goes on with "patch".
            match: "equivalent": an action counts that does the same; "exact": the recorded text alone
                (`mmrl.environments.step_judge`).
            distance: of a point from the recorded one where a step has no boxes, in fractions of the screen.
            least_f1: of the words of a text and the recorded one.
            space: the coordinate space of actions (pixel, of the screen as the policy reads it, norm_1 or norm_1000);
                None: that of the sample.
            patch_text: the text after a mismatch; {action} stands for the recorded action.
            max_turns: actions of an episode.
            live: plays the samples that have no steps, so that one run trains on recorded traces and is evaluated live.
        """
        if mismatch not in ("end", "patch", "ignore") or match not in ("equivalent", "exact"):
            raise ConfigError(
                f"{self.name}: mismatch is {mismatch!r} (end, patch or ignore), match {match!r} (equivalent or exact)"
            )
        if space is not None and space not in SPACES:
            raise ConfigError(f"{self.name}: space is {space!r}; it is one of {', '.join(SPACES)}")
        if not (math.isfinite(distance) and distance >= 0 and 0 < least_f1 <= 1):
            raise ConfigError(f"{self.name}: distance is {distance}, least_f1 {least_f1}; expected >= 0, and (0, 1]")
        if max_patches < 1 or max_turns < 1:
            raise ConfigError(f"{self.name}: max_patches is {max_patches}, max_turns {max_turns}; expected 1 or more")
        self.mismatch, self.max_patches, self.space, self.patch_text = mismatch, max_patches, space, patch_text
        self.judge = StepJudge(match, distance, least_f1)
        self.live = live
        self.max_turns = max(max_turns, 0 if live is None else live.max_turns)
        self.recorded_turns = max_turns
        self.deadline_s = None if live is None else live.deadline_s

    def begin(self, sample: Sample, reader: MediaReader) -> Episode:
        """Begin at the first screen, the last image of the sample."""
        if self.live is not None and not has_steps(sample):
            return self.live.begin(sample, reader)
        return RecordedEpisode(self, sample, reader)

    def first_turns(self, sample: Sample) -> tuple[str, ...]:
        """Return the recorded actions that the episodes of a sample begin with: `metadata["start"]` of them.

        Raises:
            DataError: the sample is malformed.
        """
        if not has_steps(sample) or START not in sample.metadata:
            return ()
        trace = steps_of(sample)
        return tuple(step.action_text for step in trace.steps[: trace.start])


class RecordedEpisode:
    """The turns of one row along a recorded trace."""

    def __init__(
        self,
        environment: RecordedTraces,
        sample: Sample,
        reader: MediaReader,
    ) -> None:
        self._environment, self._sample, self._reader = environment, sample, reader
        self._trace = steps_of(sample)
        self._screen = sample.images[-1]
        self._turns = 0
        self._verdicts: list[StepVerdict] = []  # of the policy's own actions
        self._patched = 0
        self._ended: str | None = None

    def step(self, action: str | None) -> Step:
        """Compare an action with the recorded one, and show the recorded screen."""
        if self._ended is not None:
            raise ValueError("the episode is over")
        step = self._trace.steps[self._turns]
        self._turns += 1
        if self._turns <= self._trace.start:
            return Step(self._after(step))
        verdict = StepVerdict(False) if action is None else self._verdict(action, step)
        self._verdicts.append(verdict)
        rewards = {"match": float(verdict.match), "kind": float(verdict.kind), "valid": float(verdict.valid)}
        return Step(self._observation(action, step, verdict), rewards, {"hit": float(verdict.match)})

    def outcome(self) -> Mapping[str, Any]:
        """Return what the policy's own actions came to.

        `success` (every step matched), `progress` (the share of steps that matched) and `prefix` (that of the steps
        before the first mismatch), `matches`, `steps` that were its own to do, `patched`, and `ended` (steps, mismatch,
        turns or cut_off).
        """
        matched = [verdict.match for verdict in self._verdicts]
        first = matched.index(False) if False in matched else len(matched)
        steps = self._trace.end - self._trace.start
        return {
            "success": sum(matched) == steps,
            "progress": sum(matched) / steps,
            "prefix": first / steps,
            "matches": sum(matched),
            "steps": steps,
            "patched": self._patched,
            "ended": self._ended,
        }

    def _verdict(self, action: str, step: RecordedStep) -> StepVerdict:
        environment = self._environment
        answered = environment.space or self._trace.space
        return environment.judge.judge(action, step, self._trace.space, answered, self._size)

    def _size(self) -> ScreenSize:
        width, height = image_size(self._screen, self._sample.id)
        seen = self._reader.input_size(width, height)
        return ScreenSize((float(width), float(height)), (float(seen[0]), float(seen[1])))

    def _observation(self, action: str | None, step: RecordedStep, verdict: StepVerdict) -> Observation | None:
        """Return the recorded screen after a step; None if the episode is over."""
        environment = self._environment
        text = ""
        if action is None:
            self._ended = "cut_off"
        elif not verdict.match and environment.mismatch == "end":
            self._ended = "mismatch"
        elif not verdict.match and environment.mismatch == "patch":
            if self._patched == environment.max_patches:
                self._ended = "mismatch"
            elif self._turns < self._trace.end:
                self._patched += 1
                text = environment.patch_text.replace(ACTION_PLACE, step.action_text)
        if self._ended is None and self._turns == self._trace.end:
            self._ended = "steps"
        if self._ended is None and self._turns == environment.recorded_turns:
            self._ended = "turns"
        return None if self._ended is not None else self._after(step, text)

    def _after(self, step: RecordedStep, text: str = "") -> Observation:
        """Return the screen after a step, which is not the last one."""
        assert step.screen is not None  # `steps_of` has checked it
        self._screen = step.screen
        return Observation(text, (self._reader.image(step.screen, self._sample.id),))
