"""Runs whose rollouts and rewards wait for something else than this machine: for a benchmark and for studies.

A served rollout and a remote reward take time and none of the trainer's cores. Here the embedded model writes its
answers itself, each of its calls then waits until it has taken a given time, and each reward waits as well.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, cast

from safetensors.torch import load_file
from torch import Tensor, nn

from mmrl.build.policies import build_policy
from mmrl.config import load_config
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.seeds import stream_seed
from mmrl.training.run.checkpoints import Checkpoints
from mmrl.training.run.trackers import read_metrics
from mmrl.understanding.prompt_encoder import EncodedPrompt
from mmrl.understanding.rollout_engine import GeneratedTokens, RolloutEngine
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl.workflows.train import train

SIZES = (
    "data.validation=null",
    "evaluation={}",
    "run.display=quiet",
    "run.pictures=0",
    "sampling.max_new_tokens=24",
    "training.save_every=1000",
)
FILLING = 3
"""The first iterations, in which nothing is ahead yet; they are left out."""


class DelayedMatch(Reward):
    """1 if the reference is in the answer, else 0, after a wait; a share of the answers waits longer."""

    name, needs, range = "delayed_match", ("text", "references.answer"), (0.0, 1.0)
    concurrency, batch_size = 256, 1

    def __init__(self, seconds: float, slow_share: float = 0.0, slow_seconds: float = 0.0) -> None:
        self._seconds, self._slow_share, self._slow_seconds = seconds, slow_share, slow_seconds

    def score_one(self, item: RewardInput) -> float:
        """Return the score of an answer, which alone decides how long it takes."""
        is_slow = stream_seed(0, str(item.text)) / 2**63 < self._slow_share
        time.sleep(self._slow_seconds if is_slow else self._seconds)
        return float(str(item.references["answer"]) in str(item.text))


@dataclass(frozen=True)
class CallTimes:
    """The times at which calls began, of an engine and its copies."""

    seconds: list[float] = field(default_factory=list)

    def __deepcopy__(self, memo: Any) -> CallTimes:
        return self

    def period(self, calls: int, skipped: int) -> float:
        """Return the median time from the first call of an iteration to that of the next one."""
        first = self.seconds[skipped * calls :: calls]
        return median(later - earlier for earlier, later in pairwise(first))


@dataclass(frozen=True)
class DelayedEngine:
    """An engine each of whose calls takes `seconds`, for most of which this machine waits."""

    engine: RolloutEngine
    seconds: float
    times: CallTimes

    def load_weights(self, policy: nn.Module, version: int) -> None:
        """Load the parameters into the engine that writes."""
        self.engine.load_weights(policy, version)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the engine that writes."""
        return self.engine.metrics()

    def generate(
        self, prompts: Sequence[EncodedPrompt], counts: Sequence[int], sampling: TokenSamplingConfig, seed: int
    ) -> GeneratedTokens:
        """Generate, then wait."""
        started = time.perf_counter()
        self.times.seconds.append(started)
        made = self.engine.generate(prompts, counts, sampling, seed)
        time.sleep(max(0.0, self.seconds - (time.perf_counter() - started)))
        return made


@dataclass(frozen=True)
class DelayedRun:
    """A finished run."""

    parameters: Mapping[str, Tensor]
    metrics: Sequence[Mapping[str, Any]]  # of the iterations, without the first ones
    seconds: float  # of a clock, from one iteration to the next: the median
    rows: int  # of one iteration

    def phase(self, name: str) -> float:
        """Return the median time of a phase, of the thread that samples if there is one."""
        names = (f"seconds/thread_{name}", f"seconds/{name}")
        return median(float(next((row[each] for each in names if each in row), 0.0)) for row in self.metrics)

    def idle(self, phase: str) -> float:
        """Return the share of the time that is not spent in a phase, in [0, 1]."""
        return max(0.0, 1 - self.phase(phase) / self.seconds)

    def difference(self, other: DelayedRun) -> float:
        """Return the largest difference of a trained parameter."""
        pairs = [(values, other.parameters[name]) for name, values in self.parameters.items()]
        return max(float((one - two).abs().max()) for one, two in pairs)


def delayed_run(
    seed: int,
    *overrides: str,
    rollout: float = 0.5,  # seconds of all calls of an iteration
    reward: float = 0.5,  # seconds of a reward
    slow_share: float = 0.0,
    slow_seconds: float = 0.0,
    workers: int = 256,  # answers that are scored at once
    calls: int = 4,
    rows: int = 8,  # of a call
    iterations: int = 12,
) -> DelayedRun:
    """Train `shapes-reasoning` for some iterations with rollouts and rewards of a given duration."""
    arguments = f"seconds: {reward}, slow_share: {slow_share}, slow_seconds: {slow_seconds}"
    with TemporaryDirectory() as folder:
        config = load_config(
            "shapes-reasoning",
            [
                *SIZES,
                f"seed={seed}",
                f"rewards=[{{name: '{__file__}:DelayedMatch', args: {{{arguments}}}, concurrency: {workers}}}]",
                f"data.groups={calls * rows // 8}",
                f"data.micro_batch={rows}",
                f"training.iterations={iterations}",
                f"run.dir={folder}/run",
                *overrides,
            ],
        )
        policy = cast(VLMPolicy, build_policy(config.policy, config.sampling, config.media))
        times = CallTimes()
        policy.engine = DelayedEngine(policy.engine, rollout / calls, times)
        run = train(config, policy=policy)
        metrics = [row for row in read_metrics(run) if row["kind"] == "train"][FILLING:]
        parameters = load_file(Checkpoints(run).path() / "trainer" / "parameters.safetensors")
        return DelayedRun(parameters, metrics, times.period(calls, FILLING), calls * rows)


def streamed_iterations(seed: int, stream: bool = True) -> dict[str, list[float]]:
    """Train with a reference and rewards of 0.5 s, with or without streaming within an iteration, beside a run without.

    Returns:
        `speedup`: the time of an iteration without streaming over that of this run, in turns. `seconds`: of this run's.
        `difference`: the largest difference of a parameter from the run without streaming.
    """

    def run(stream: bool) -> DelayedRun:
        overrides = ("algorithm.kl.coef=0.01", f"run.overlap.stream={str(stream).lower()}")
        return delayed_run(seed, *overrides, rollout=0.6, reward=0.5, calls=6, rows=40, iterations=10)

    plain, found = run(False), run(stream)
    speedup, difference = plain.seconds / found.seconds, plain.difference(found)
    return {"speedup": [speedup], "seconds": [found.seconds], "difference": [difference]}


def handed_over(seed: int, stream: bool = True) -> dict[str, list[float]]:
    """Train one iteration behind, with rewards of 0.1 s, a tenth of which take 1 s.

    Returns:
        `rows_per_second`: answers that are learnt from. `sampler_idle` and `trainer_idle`: the share of the time in
        which nothing is sampled, and in which nothing is backpropagated.
    """
    overlap = f"run.overlap={{lag: 1, stream: {str(stream).lower()}}}"
    run = delayed_run(seed, overlap, rollout=0.6, reward=0.1, slow_share=0.1, slow_seconds=1.0, calls=4, rows=32)
    idle = {f"{name}_idle": [run.idle(phase)] for name, phase in (("sampler", "rollout"), ("trainer", "update"))}
    return {"rows_per_second": [run.rows / run.seconds]} | idle


def skewed_rewards(seed: int, stream: bool = True, workers: int = 32) -> dict[str, list[float]]:
    """Train two iterations behind, with a pool of workers for rewards of 0.05 s, a tenth of which take 1 s.

    Returns:
        `rows_per_second`: answers that are learnt from.
    """
    overlap = f"run.overlap={{lag: 2, stream: {str(stream).lower()}}}"
    run = delayed_run(
        seed,
        overlap,
        rollout=0.3,
        reward=0.05,
        slow_share=0.1,
        slow_seconds=1.0,
        workers=workers,
        calls=4,
        rows=32,
    )
    return {"rows_per_second": [run.rows / run.seconds]}
