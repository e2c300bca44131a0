"""Rollouts that call a slow tool in every turn but the last: how fast they are, by the way in which calls are made.

Turns are written by an engine that takes a stated time and none of this machine's cores, as a server does. Each turn
calls the tool `crop`, which waits as well, most calls briefly and one in ten long; what it returns is encoded for the
embedded model as in any environment of tools.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.environments import Observation, Step, ToolContext, load_tool
from mmrl.environments.tool_environment import ToolEnvironment, ToolEpisode
from mmrl.environments.tools.crop import Crop, CropArguments
from mmrl.rollout_request import RolloutRequest
from mmrl.seeds import stream_seed
from mmrl.understanding.encoded_prompt import EncodedPrompt
from mmrl.understanding.rollout_engine import GeneratedTokens
from mmrl.understanding.vlm import VLM
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl_shapeworld.shipped_models import VLM as VLM_FOLDER
from mmrl_shapeworld.vqa.canvas import PIXELS
from mmrl_shapeworld.vqa.question_splits import samples as question_samples

CALLS = 6
"""Calls of an episode; the turn after them is the answer."""
BRIEF, LONG, LONG_SHARE = 0.1, 2.0, 0.1
"""Seconds of most calls of the tool, and of a share of them."""
TURN_S, ROW_S = 0.1, 0.01
"""Seconds of a call of the engine, and further ones for each of its rows."""
ROWS = 32
"""The rows of a rollout."""


class SlowCrop(Crop):
    """Crop a box out of a picture, after a wait that follows from the box."""

    name = "crop"

    def __init__(self, at_once: bool) -> None:
        """
        Args:
            at_once: False: one call of all rows runs at a time.
        """
        super().__init__(side=PIXELS)
        self.concurrency = None if at_once else 1

    def run(self, context: ToolContext, arguments: CropArguments) -> Observation:
        """Wait, and return the crop."""
        number = stream_seed(0, f"{context.sample.id} {arguments.box}") / 2**63
        time.sleep(LONG if number < LONG_SHARE else BRIEF)
        return super().run(context, arguments)


class CropsOfBoxes:
    """Calls `crop` with the box of each turn but the last. The embedded model has no room for calls in full."""

    max_turns = CALLS + 1
    instructions = ""
    deadline_s: float | None = None

    def __init__(self, at_once: bool) -> None:
        crop = load_tool("mmrl_shapeworld.slow_tools:SlowCrop", at_once=at_once)
        self.tools = ToolEnvironment([crop], max_turns=self.max_turns, deadline_s=60.0)

    def begin(self, sample: Sample, reader: MediaReader) -> CropsOfBoxesEpisode:
        """Begin an episode."""
        return CropsOfBoxesEpisode(self.tools.begin(sample, reader))


class CropsOfBoxesEpisode:
    """An episode of `CropsOfBoxes`."""

    def __init__(self, episode: ToolEpisode) -> None:
        self._episode, self._calls = episode, 0

    def step(self, action: str | None) -> Step:
        """Crop, or take the last turn as the answer."""
        if action is None or self._calls == CALLS:
            return self._episode.step(action)
        self._calls += 1
        call = {"name": "crop", "arguments": {"box": [int(each) for each in action.split(", ")]}}
        step = self._episode.step(f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
        observation = None if step.observation is None else Observation(images=step.observation.images)
        return Step(observation, step.rewards, step.info)

    def outcome(self) -> Mapping[str, Any]:
        """Return the outcome of the tools."""
        return self._episode.outcome()


@dataclass(frozen=True)
class TimedEngine:
    """An engine that writes boxes of chance, in thousandths of a picture, and takes as long as a server might."""

    vlm: VLM

    def load_weights(self, policy: nn.Module, version: int) -> None:
        """Load nothing: the engine reads no weights."""

    def metrics(self) -> dict[str, float]:
        """Return no metrics."""
        return {}

    def generate(
        self, prompts: Sequence[EncodedPrompt], counts: Sequence[int], sampling: TokenSamplingConfig, seed: int
    ) -> GeneratedTokens:
        """Wait, and return a box for each row."""
        rows = sum(counts)
        time.sleep(TURN_S + ROW_S * rows)
        rng = np.random.default_rng(seed)
        boxes = [f"{x}, {y}, {x + 400}, {y + 400}" for x, y in rng.integers(0, 600, (rows, 2)).tolist()]
        token_ids = [[*self.vlm.encode(box), self.vlm.end] for box in boxes]
        return GeneratedTokens(token_ids, [[0.0] * len(ids) for ids in token_ids])


def cropped_rollouts(seed: int, at_once: bool = True, waves: int = 1) -> dict[str, list[float]]:
    """Write a rollout of 32 rows of seven turns, with the calls of all rows at once or one after another, in waves.

    Returns:
        `rows_per_second`: of a clock. `calls`: that were carried out, of a row.
    """
    sampling = TokenSamplingConfig(max_new_tokens=24)
    policy = VLMPolicy.from_config(VLMConfig(model=str(VLM_FOLDER), device="cpu"), sampling)
    policy.engine = TimedEngine(policy.vlm)
    policy.play_in(CropsOfBoxes(at_once), waves=waves)
    sample = question_samples("vlm-grounding-development")[seed]
    started = time.perf_counter()
    rollout = policy.rollout([RolloutRequest(sample, ROWS, 0)], seed=seed)
    seconds = time.perf_counter() - started
    calls = sum(sum(record.outcome["calls"].values()) for record in rollout.episodes or ())
    return {"rows_per_second": [rollout.rows / seconds], "calls": [calls / rollout.rows]}
