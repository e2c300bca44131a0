"""Measure trajectories of several turns: what a slow tool adds to an iteration, and what a row a trajectory saves.

    python benchmarks/turns.py            # fails where a tool of 0.2 s costs more than 1.2 times one that costs nothing
    python benchmarks/turns.py --smoke    # seconds: does it still run, and do both sides compute the same?

An iteration is a rollout of 64 rows and the backward pass of all their decisions, with the shipped vision-language
model, all parts trained. Each row looks at a picture, calls the tool, reads another picture and answers. The tool waits
without computing, as a call of a server does; rows are written in one wave, and then in four. A slow tool and one that
costs nothing, in one wave, take turns in one process, and the median of their ratios of wall time counts; other
programs make it smaller, since they slow down the model and not the tool. The model's own turns have four tokens, with
which an iteration lasts no longer than the tool: that ratio is printed and has no bound. The bound is for turns of some
fifty tokens, a thought and a call, which it writes at a high temperature. Then the same trajectories are learnt from
with a row for each trajectory and with a row for each turn, whose log-probabilities must agree; these times are CPU
time. At last, rollouts and updates of the recipe `shapes-screens` keep what was computed of earlier turns and encode
equal pictures once, and do neither: both write the same tokens.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmrl.build.policies import build_policy
from mmrl.config import load_config
from mmrl.config.policy import ModelPartConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.media.reader import MediaReader
from mmrl.data.media.uris import data_uri
from mmrl.data.sample import Sample
from mmrl.environments import Observation, Step
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.continuation import Continuation, followed, with_positions
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl.understanding.vlm_replay import TokenRecording, packed_scores
from mmrl_shapeworld import splits
from mmrl_shapeworld.shipped_models import VLM
from mmrl_shapeworld.worlds.button_environment import ButtonScreens

BOUND = 1.2
SIDE = 56  # pixels of a picture
WAVES = 4
TOKENS = 256
"""The most tokens of a turn."""


@dataclass(frozen=True)
class TurnSizes:
    """The sizes of one iteration."""

    prompts: int
    answers: int  # to each prompt
    temperature: float  # the higher, the longer are the turns
    tool_s: float
    turns: int  # of the measurement


FULL = TurnSizes(prompts=8, answers=8, temperature=5.0, tool_s=0.2, turns=9)
SMOKE = TurnSizes(prompts=2, answers=4, temperature=2.0, tool_s=0.02, turns=1)


class Look:
    """Answers the first turn with a picture, after a while; the second turn is the answer."""

    max_turns = 2
    instructions = ""
    deadline_s = None

    def __init__(self, tool_s: float) -> None:
        self.tool_s = tool_s
        self.view = picture(99)

    def begin(self, sample: Sample, reader: MediaReader) -> LookEpisode:
        """Begin an episode."""
        return LookEpisode(self)


class LookEpisode:
    """An episode of `Look`."""

    def __init__(self, environment: Look) -> None:
        self._environment, self._turns = environment, 0

    def step(self, action: str | None) -> Step:
        """Wait as the tool does, and show the picture."""
        self._turns += 1
        if self._turns == self._environment.max_turns:
            return Step(None)
        time.sleep(self._environment.tool_s)
        return Step(Observation("Look again.", (self._environment.view,)))

    def outcome(self) -> Mapping[str, Any]:
        """Return nothing: the benchmark scores nothing."""
        return {}


def picture(seed: int) -> Image.Image:
    """Return a picture of noise."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))


def as_uri(image: Image.Image) -> str:
    """Return a picture as a data URI."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return data_uri(file.getvalue(), "image/png")


def learn(policy: VLMPolicy, rollout: Rollout) -> None:
    """Replay all decisions and backpropagate their sum."""
    for parameter in policy.parameters_to_train().values():
        parameter.grad = None
    columns = range(rollout.log_probs.shape[1])
    policy.replay(rollout, columns, lambda now: now.log_probs[rollout.mask].sum().backward())


def iterate(policy: VLMPolicy, requests: list[RolloutRequest], tool_s: float, waves: int) -> tuple[float, float]:
    """Return the seconds of wall time of a rollout, and of the rollout with its update."""
    policy.play_in(Look(tool_s), waves=waves)
    started = time.perf_counter()
    rollout = policy.rollout(requests, seed=0)
    written = time.perf_counter()
    learn(policy, rollout)
    return written - started, time.perf_counter() - started


def compare_tools(policy: VLMPolicy, requests: list[RolloutRequest], work: TurnSizes, waves: int) -> float:
    """Print and return the median ratio of iterations with a slow tool, in waves, and with one that costs nothing."""
    found: dict[float, list[tuple[float, float]]] = {0.0: [], work.tool_s: []}
    for turn in range(work.turns):
        for tool_s in (0.0, work.tool_s) if turn % 2 == 0 else (work.tool_s, 0.0):
            found[tool_s].append(iterate(policy, requests, tool_s, waves if tool_s else 1))
    pairs = list(zip(found[work.tool_s], found[0.0], strict=True))
    rollouts, ratios = ([slow[part] / free[part] for slow, free in pairs] for part in (0, 1))
    low, _, high = quantiles(ratios, n=4) if work.turns > 1 else (ratios[0],) * 3
    free, slow = (median(each[1] for each in found[tool_s]) for tool_s in (0.0, work.tool_s))
    print(
        f"waves {waves} with a tool of {work.tool_s:g} s: {median(ratios):.2f} times ({low:.2f} to {high:.2f}, "
        f"{work.turns} turns), {slow:.2f} s an iteration instead of {free:.2f} s; "
        f"the rollout alone {median(rollouts):.2f} times"
    )
    return median(ratios)


def as_turn_rows(policy: VLMPolicy, recording: TokenRecording) -> TokenRecording:
    """Return the same trajectories with a row for each turn, whose prompt is all that came before."""
    prompts, tokens = [], []
    for row, number in enumerate(recording.prompt_of):
        whole = recording.continuation(row)
        prompt = with_positions(policy.vlm.model, policy.vlm.family, recording.prompts[number])
        starts = [0, *(each.after for each in whole.observed)]
        for turn, (start, end) in enumerate(zip(starts, [*starts[1:], len(whole.tokens)], strict=True)):
            before = Continuation(whole.tokens[:start], whole.observed[:turn])
            prompts.append(followed(prompt, before, policy.vlm.family))
            tokens.append(whole.tokens[start:end])
    padded = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)
    return TokenRecording(prompts, list(range(len(prompts))), padded, [*map(len, tokens)], recording.temperature)


def compare_rows(policy: VLMPolicy, rollout: Rollout, work: TurnSizes) -> None:
    """Print the CPU time of an update with a row for each trajectory, and with one for each turn."""
    whole = rollout.recording
    apart = as_turn_rows(policy, whole)
    with torch.no_grad():
        one, other = (packed_scores(policy.vlm, each, fused=False)[0] for each in (whole, apart))
    flat = torch.cat([row[:length] for row, length in zip(one, whole.lengths, strict=True)])
    split = torch.cat([row[:length] for row, length in zip(other, apart.lengths, strict=True)])
    gap = float((flat - split).abs().max())
    if gap > 1e-5:
        raise SystemExit(f"the log-probabilities of trajectories and of their turns differ by {gap:.1e}")
    print(f"log-probabilities of {len(flat)} tokens differ by {gap:.1e}")
    times: dict[str, list[float]] = {"trajectory": [], "turn": []}

    def update(recording: TokenRecording) -> None:
        for parameter in policy.parameters_to_train().values():
            parameter.grad = None
        packed_scores(policy.vlm, recording, fused=False)[0].sum().backward()

    sides: list[tuple[str, Callable[[], None]]] = [
        ("trajectory", partial(update, whole)),
        ("turn", partial(update, apart)),
    ]
    for turn in range(work.turns):
        for side, run in sides if turn % 2 == 0 else reversed(sides):
            started = time.process_time()
            run()
            times[side].append(time.process_time() - started)
    cost = {side: median(seconds) for side, seconds in times.items()}
    print(
        f"an update with a row for each trajectory: {cost['trajectory']:.2f} CPU s, "
        f"for each turn: {cost['turn']:.2f} CPU s, {cost['turn'] / cost['trajectory']:.2f} times"
    )


def compare_reading(work: TurnSizes) -> None:
    """Print the CPU time of rollouts and updates that read all turns again, over that of those that read new ones."""
    recipe = load_config("shapes-screens")
    policy = build_policy(recipe.policy, recipe.sampling, recipe.media)
    assert isinstance(policy, VLMPolicy)
    policy.play_in(ButtonScreens())
    samples = splits.samples("screens-development")[: work.answers]
    requests = [RolloutRequest(sample, 2 * work.answers, group) for group, sample in enumerate(samples)]
    measured = policy.vlm.measured

    def run() -> tuple[Rollout, float, float]:
        started = time.process_time()
        rollout = policy.rollout(requests, seed=0)
        written = time.process_time()
        learn(policy, rollout)
        return rollout, written - started, time.process_time() - written

    run()  # the shorter ways are measured
    shorter, longer = dict(measured), dict.fromkeys(measured, False)
    if not all(shorter.values()) or len(shorter) != 2:
        raise SystemExit(f"the model of screens does not read new turns alone: {shorter}")
    ratios = []
    for _ in range(max(1, work.turns // 3)):
        measured.update(longer)
        old, *slow = run()
        measured.update(shorter)
        new, *fast = run()
        if old.token_ids != new.token_ids:
            raise SystemExit("rollouts that read new turns alone write other tokens")
        gap = float((old.log_probs - new.log_probs).abs().max())
        ratios.append([before / after for before, after in zip(slow, fast, strict=True)])
    rollout, update = (median(each[part] for each in ratios) for part in (0, 1))
    print(
        f"{new.rows} rows of screens, read anew at every turn: a rollout costs {rollout:.2f} times the CPU "
        f"time, an update {update:.2f} times; equal tokens, log-probabilities differ by {gap:.1e}"
    )


def first_iteration(work: TurnSizes, temperature: float) -> tuple[VLMPolicy, list[RolloutRequest], Rollout]:
    """Return the model, its requests and their rollout, learnt from once, since the first of everything is slow."""
    part = ModelPartConfig(train=True)
    config = VLMConfig(model=str(VLM), device="cpu", train="full", vision=part, connector=part)
    policy = VLMPolicy.from_config(config, TokenSamplingConfig(max_new_tokens=TOKENS, temperature=temperature))
    samples = [
        Sample(f"{seed}", prompt="Locate the red square.", images=(as_uri(picture(seed)),))
        for seed in range(work.prompts)
    ]
    requests = [RolloutRequest(sample, work.answers, group) for group, sample in enumerate(samples)]
    policy.play_in(Look(0.0))
    rollout = policy.rollout(requests, seed=0)
    learn(policy, rollout)
    turns = sum(len(each.texts) for each in rollout.episodes or ()) / rollout.rows
    own = sum(rollout.recording.lengths) / rollout.rows
    seen = sum(rollout.recording.continuation(row).length for row in range(rollout.rows)) / rollout.rows - own
    print(
        f"{rollout.rows} rows of {turns:.1f} turns, {own:.1f} own and {seen:.1f} observed tokens after prompts of "
        f"{rollout.recording.prompts[0].length}; replay gap {policy.replay_gap(rollout):.1e}"
    )
    return policy, requests, rollout


def main() -> None:
    """Measure, and fail above the bound."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="8 rows, one turn, no bound")
    smoke = parser.parse_args().smoke
    work = SMOKE if smoke else FULL
    torch.set_num_threads(1)
    compare_tools(*first_iteration(work, temperature=1.0)[:2], work, waves=WAVES)
    policy, requests, rollout = first_iteration(work, work.temperature)
    compare_tools(policy, requests, work, waves=1)
    found = compare_tools(policy, requests, work, waves=WAVES)
    compare_rows(policy, rollout, work)
    compare_reading(work)
    if not smoke and found > BOUND:
        raise SystemExit(f"a tool of {work.tool_s:g} s costs {found:.2f} times; expected at most {BOUND}")


if __name__ == "__main__":
    main()
