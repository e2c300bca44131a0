"""Pairs whose two answers are written by named models: chosen by one, rejected by another (Temporal Self-Rewarding).

    ModelPairs(policy, prompts, suite, ModelWriters(models["future"], models["past"]), ...)

The policy learns from what others wrote, so each pair is read by teacher forcing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmrl.data.prompts import Outcome, PromptSource
from mmrl.distributed import processes
from mmrl.errors import ConfigError
from mmrl.policy import TeacherForcingPolicy
from mmrl.rewards.core.reward_io import TOTAL, RewardContext, RewardOutput
from mmrl.rewards.core.suite import Scorer
from mmrl.rewards.core.text_scoring import TextModel
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, TargetText, chunk_requests
from mmrl.seeds import fold_in
from mmrl.training.experience import Experience, MicroBatch
from mmrl.training.named_model import NamedModel
from mmrl.training.rollouts.collect import (
    REWARD_STREAM,
    ScoringQueue,
    check_scored,
    iteration_requests,
    reward_inputs,
)
from mmrl.training.rollouts.exchange import deal, own_rows, shared_rollouts, shared_scores
from mmrl.training.rollouts.rollout_metrics import reward_metrics
from mmrl.training.rollouts.row_selection import pack_units
from mmrl.training.run.timers import Phases


@dataclass(frozen=True)
class ModelWriters:
    """The models that write the answers which may be chosen, and those which may be rejected; one may write both."""

    chosen: NamedModel
    rejected: NamedModel

    @property
    def same(self) -> bool:
        """True if one model writes all answers."""
        return self.chosen == self.rejected


@dataclass
class ModelPairs:
    """A source of pairs of the best answer of one model and the worst of another, where these differ in reward.

    A group has `group_size` answers to a prompt: half of each model, or all of one that writes both. Where the best is
    no more than `margin` better, the prompt gives no pair. Rows 2i and 2i + 1 of a micro-batch are a pair, chosen first
    (advantage 1), then rejected (advantage -1); an iteration without a pair has one that is not scored.

    Raises:
        ConfigError: an odd group size for two models, or a reward that learns.
    """

    policy: TeacherForcingPolicy
    prompts: PromptSource
    suite: Scorer
    writers: ModelWriters
    group_size: int
    micro_batch: int  # rows of one rollout
    seed: int
    margin: float = 0.0
    updates: int = 1  # of an iteration; there are at least as many micro-batches, if possible
    models: Mapping[str, TextModel] = field(default_factory=dict)  # of the run, for rewards that ask them

    def __post_init__(self) -> None:
        if not self.writers.same and self.group_size % 2:
            raise ConfigError(f"data.group_size: {self.group_size} answers, of which each of two models writes half")
        if self.suite.learns:
            raise ConfigError("rewards: one of them learns from the policy's answers, and other models write the pairs")

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Return the pairs of an iteration.

        Metrics: those of the rewards of all answers; `pairs/share`, the share of prompts with a pair; `pairs/NAME`, the
        mean difference of a reward in a pair, with `pairs/total`; and `pairs/spread`, that of the total over all
        prompts, in which those without a pair count as 0.

        Raises:
            RunError: too few of the answers could be scored.
        """
        rollouts, sides = self._written(iteration, phases)
        with phases("reward"):
            output = self._scores(rollouts, iteration, progress)
        groups = torch.cat([rollout.group_index.cpu() for rollout in rollouts])
        total = torch.from_numpy(output.values[TOTAL])
        pairs = best_and_worst(total, groups, sides, self.margin)
        samples = [sample for rollout in rollouts for sample in rollout.samples]
        lengths = [len(ids) for rollout in rollouts for ids in rollout.token_ids or ()]
        metrics = reward_metrics(output, self.suite, [each.source for each in samples], groups, lengths)
        metrics |= _pair_metrics(output, pairs, len(groups.unique()))
        self._learn_prompts(samples, groups, total)
        with phases("rollout"), torch.no_grad():
            batches = self._read(rollouts, pairs)
        return Experience(batches, metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the prompts and of the rewards; the rest follows from the seed."""
        return {"prompts": self.prompts.state_dict(), "rewards": self.suite.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.prompts.load_state_dict(state["prompts"])
        self.suite.load_state_dict(state.get("rewards", {}))

    def _written(self, iteration: int, phases: Phases) -> tuple[list[Rollout], Tensor]:
        """Return the rollouts of all answers, and [R, 2] bool: whether a row may be chosen, and may be rejected."""
        prompts, writers = self.prompts.next(), self.writers
        parts = [(writers.chosen, self.group_size, (True, True))]
        if not writers.same:
            half = self.group_size // 2
            parts = [(writers.chosen, half, (True, False)), (writers.rejected, half, (False, True))]
        calls: list[tuple[NamedModel, Sequence[RolloutRequest]]] = []
        sides: list[tuple[bool, bool]] = []
        for model, draws, side in parts:
            requests = [RolloutRequest(sample, draws, group) for group, sample in enumerate(prompts)]
            chunks = chunk_requests(iteration_requests(requests, self.seed, iteration, False, None), self.micro_batch)
            calls += [(model, call) for call in chunks]
            sides += [side] * sum(request.n for call in chunks for request in call)
        ranks = deal([{request.group for request in call} for _, call in calls], self.suite.needs_full_groups)
        own: dict[int, Rollout] = {}
        for number, (rank, (model, call)) in enumerate(zip(ranks, calls, strict=True)):
            if rank == processes.rank():
                with phases("rollout"), torch.no_grad():
                    own[number] = model.answers(call, fold_in(self.seed, iteration, number))
        return shared_rollouts(own, prompts), torch.tensor(sides)

    def _scores(self, rollouts: Sequence[Rollout], iteration: int, progress: float) -> RewardOutput:
        seed = fold_in(self.seed, iteration, REWARD_STREAM)
        inputs = [item for rollout in rollouts if not rollout.remote for item in reward_inputs(rollout)]
        sizes = Counter(item.group for item in inputs)
        queue = ScoringQueue(self.suite, RewardContext(progress, self.models, seed), sizes)
        queue.add(inputs)
        queue.finish()
        rows = own_rows([(rollout.rows, not rollout.remote) for rollout in rollouts])
        output = shared_scores(self.suite.join(queue.submitted), rows, sum(rollout.rows for rollout in rollouts))
        check_scored(self.suite, output)
        return output

    def _read(self, rollouts: Sequence[Rollout], pairs: Sequence[tuple[int, int]]) -> list[MicroBatch]:
        """Return micro-batches of the pairs, read by the policy; one pair that is not scored if there is none."""
        places = [(rollout, row) for rollout in rollouts for row in range(rollout.rows)]
        units = [list(pair) for pair in pairs] or [[0, 0]]
        samples = [rollout.samples[row] for rollout, row in places]
        packs = pack_units(units, samples, self.micro_batch, self.updates)
        own = {
            number: self.policy.score_targets([_target(*places[row]) for row in rows])
            for number, rows in enumerate(packs)
            if processes.owns(number)
        }
        batches = []
        for rows, rollout in zip(packs, shared_rollouts(own, samples), strict=True):
            advantages = torch.tensor([1.0, -1.0] * (len(rows) // 2))
            batch = MicroBatch.of_rows(rollout, advantages)
            if not pairs:
                batch = MicroBatch(
                    rollout, 0 * advantages, torch.zeros(len(rows), dtype=torch.bool), 0 * batch.step_advantages
                )
            batches.append(batch)
        return batches

    def _learn_prompts(self, samples: Sequence[Any], groups: Tensor, total: Tensor) -> None:
        outcomes = []
        for group in groups.unique().tolist():
            rows = (groups == group).nonzero()[:, 0].tolist()
            known = [row for row in rows if total[row].isfinite()]
            outcomes.append(Outcome(samples[rows[0]], total[known].tolist(), []))
        self.prompts.learn(outcomes)


def best_and_worst(
    total: Tensor,  # [R]; NaN = could not be scored
    groups: Tensor,  # [R] int
    sides: Tensor,  # [R, 2] bool: may be chosen, may be rejected
    margin: float,
) -> list[tuple[int, int]]:
    """Return the best row that may be chosen and the worst that may be rejected, for each group in which they differ.

    >>> best_and_worst(torch.tensor([0.2, 0.9, 0.1, 1.0]), torch.zeros(4), torch.tensor([[True, False]] * 2
    ...     + [[False, True]] * 2), 0.0)
    [(1, 2)]
    """
    pairs = []
    for group in groups.unique().tolist():
        rows = (groups == group) & total.isfinite()
        chosen, rejected = ((rows & sides[:, side]).nonzero()[:, 0].tolist() for side in (0, 1))
        if not chosen or not rejected:
            continue
        best = max(chosen, key=lambda row: total[row].item())
        worst = min(rejected, key=lambda row: total[row].item())
        if total[best] - total[worst] > margin:
            pairs.append((best, worst))
    return pairs


def _target(rollout: Rollout, row: int) -> TargetText:
    """Return an answer as a text that the policy reads, with its exact tokens."""
    tokens = None if rollout.token_ids is None else tuple(rollout.token_ids[row])
    return TargetText(rollout.samples[row], str(rollout.media[row]), int(rollout.group_index[row]), tokens)


def _pair_metrics(output: RewardOutput, pairs: Sequence[tuple[int, int]], prompts: int) -> dict[str, float]:
    """Return the share of prompts with a pair, and the mean difference of each reward in a pair."""
    metrics = {"pairs/share": len(pairs) / prompts, "pairs/spread": 0.0}
    if pairs:
        chosen, rejected = (np.array(side) for side in zip(*pairs, strict=True))
        for name, values in output.values.items():
            gaps = values[chosen] - values[rejected]
            if np.isfinite(gaps).any():
                metrics[f"pairs/{name}"] = float(np.nanmean(gaps))
        metrics["pairs/spread"] = metrics[f"pairs/{TOTAL}"] * len(pairs) / prompts
    return metrics
