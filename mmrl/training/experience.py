"""Where training data comes from: experience sources, and the micro-batches they give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from mmrl.algorithms import zero_variance_share
from mmrl.data.prompts import PromptSampler
from mmrl.policy import Policy, Rollout, plan_calls
from mmrl.rewards.base import RewardContext, RewardInput, RewardOutput
from mmrl.rewards.inputs import reward_input
from mmrl.rewards.suite import PendingScores, RewardSuite, TooFewScored
from mmrl.training.credit import Credit
from mmrl.training.errors import RunError
from mmrl.training.phases import Phases


@dataclass(frozen=True)
class MicroBatch:
    """One rollout and what each of its trajectories and decisions deserves."""

    rollout: Rollout
    advantages: Tensor  # [B] of whole trajectories; 0 where unscored
    scored: Tensor  # [B] bool; False = the scorer failed, leave the row out
    credit: Tensor  # [B, T] of single decisions: the advantages, broadcast, where a reward is for the whole

    @property
    def scored_rows(self) -> int:
        """How many trajectories could be scored."""
        return int(self.scored.sum())


@dataclass(frozen=True)
class Experience:
    """All that one iteration trains on."""

    micro_batches: list[MicroBatch]
    metrics: dict[str, float]


class ExperienceSource(Protocol):
    """Gives experience, iteration by iteration. Its state is saved in checkpoints."""

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """The experience of an iteration; `progress` is the share of training that is done."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """JSON-like state."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        ...


@dataclass
class OnlineRollouts:
    """Groups of fresh trajectories from the policy, scored by a reward suite."""

    policy: Policy
    acting: Callable[[], AbstractContextManager[Any]]  # open while sampling: the parameters an objective samples with
    prompts: PromptSampler
    suite: RewardSuite
    credit: Credit
    group_size: int
    micro_batch: int  # rows of one rollout
    seed: int

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Draw, score, and give credit.

        Raises:
            RunError: too few of the answers could be scored.
        """
        chosen = self.prompts.next()
        calls = plan_calls(chosen, self.group_size, self.micro_batch, fold_in(self.seed, iteration))
        rollouts: list[Rollout] = []
        drawn: list[RewardInput] = []
        scores: list[PendingScores] = []
        for number, requests in enumerate(calls):
            with phases("rollout"), torch.no_grad(), self.acting():
                rollouts.append(self.policy.rollout(requests, seed=fold_in(self.seed, iteration, number)))
            drawn += reward_inputs(rollouts[-1:])
            whole = len(drawn) if not self.suite.compares else whole_groups(drawn, self.group_size)
            if whole:  # scored while the next ones are drawn
                scores.append(self.suite.submit(drawn[:whole], RewardContext(progress=progress)))
                drawn = drawn[whole:]
        with phases("reward"):
            output = self.suite.join(scores)
            self._refuse(output)
        group_index = torch.cat([rollout.group_index.cpu() for rollout in rollouts])
        advantages = self.credit.advantages(output, group_index)
        scored = torch.from_numpy(np.isfinite(output.values["total"]))
        sizes = [rollout.rows for rollout in rollouts]
        batches = [
            MicroBatch(rollout, rows, valid, self.credit.decisions(rows, rollout.mask))
            for rollout, rows, valid in zip(rollouts, advantages.split(sizes), scored.split(sizes), strict=True)
        ]
        sources = [sample.source for rollout in rollouts for sample in rollout.samples]
        return Experience(batches, reward_metrics(output, self.suite, sources, group_index))

    def state_dict(self) -> dict[str, Any]:
        """The prompt sampler's and the rewards'; all else follows from the seed and the iteration."""
        rewards = self.suite.state_dict()
        return {"prompts": self.prompts.state_dict()} | ({"rewards": rewards} if rewards else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.prompts.load_state_dict(state["prompts"])
        self.suite.load_state_dict(state.get("rewards", {}))

    def _refuse(self, output: RewardOutput) -> None:
        try:
            self.suite.refuse_unscored(output)
        except TooFewScored as why:
            raise RunError(f"{why}; training.min_valid_share says how many must be") from why
        if any(output.events):
            raise RunError("a reward gave events at single decisions, for which this loop has no credit yet")


def whole_groups(drawn: Sequence[RewardInput], size: int) -> int:
    """How many rows there are before the first group that is not complete. Groups stand one after another."""
    count = Counter(item.group for item in drawn)
    return next((row for row, item in enumerate(drawn) if count[item.group] < size), len(drawn))


def reward_inputs(rollouts: Sequence[Rollout]) -> list[RewardInput]:
    """One input for each row of all rollouts, in order."""
    return [
        reward_input(sample, media, group=int(group), id=f"{sample.id}/{row}")
        for rollout in rollouts
        for row, (sample, media, group) in enumerate(
            zip(rollout.samples, rollout.media, rollout.group_index.tolist(), strict=True)
        )
    ]


def reward_metrics(
    output: RewardOutput, suite: RewardSuite, sources: Sequence[str], group_index: Tensor
) -> dict[str, float]:
    """Means by reward and by source, statuses other than ok, and the share of groups without variance."""
    metrics = {}
    named_source = np.array(sources)
    for name, values in output.values.items():
        metrics[f"reward/{name}"] = _mean(values)
        if name == "total":
            metrics["reward/total_std"] = float(np.nanstd(values)) if np.isfinite(values).any() else float("nan")
            for source in sorted(set(sources)):
                metrics[f"reward_by_source/{source}"] = _mean(values[named_source == source])
    for name, by_status in suite.counts(output).items():
        for status, count in by_status.items():
            if status != "ok":
                metrics[f"status/{name}/{status}"] = float(count)
    for name, by_kind in suite.failures(output).items():
        for kind, count in by_kind.items():
            metrics[f"failure/{name}/{kind}"] = float(count)
    metrics["zero_variance_share"] = zero_variance_share(torch.from_numpy(output.values["total"]), group_index)
    return metrics


def _mean(values: np.ndarray) -> float:
    scored = values[np.isfinite(values)]
    return float(scored.mean()) if scored.size else float("nan")


def fold_in(seed: int, *numbers: int) -> int:
    """A seed in [0, 2**63) that depends on all of its arguments; compare only seeds of equally many."""
    return int(np.random.SeedSequence((seed, *numbers)).generate_state(1, np.uint64)[0] >> np.uint64(1))
