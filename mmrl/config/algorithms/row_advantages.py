"""Advantages that read more about an answer than its reward: the task that it is of, the norm of its gradient, the
success of its group, or the order of the group by several rewards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat

from mmrl.components import load_reference
from mmrl.config.algorithms.advantage import AdvantageConfig, RowFact, equal_totals_errors
from mmrl.config.section import Section

if TYPE_CHECKING:
    from torch import Tensor

    from mmrl.config.train import TrainConfig


class DifficultyFactorConfig(Section):
    """Good answers to hard prompts count more, and bad answers to easy ones (GoLongRL)."""

    number = "gamma"

    gamma: NonNegativeFloat = 1.0
    """The factor is exp(gamma (0.5 - p)) for answers above their group's mean and its inverse for the others, where p
    is the share of the group that passes."""
    smoothing: Annotated[float, Field(ge=0, le=1)] = 0.8
    """An answer passes above `smoothing` times its group's mean reward plus the rest of the mean of its task."""


class TaskMeanAdvantage(AdvantageConfig):
    """Each reward minus its group's mean, over the spread that its task has in the iteration (TMN, arXiv:2605.19577).

    The task is the `source` of a sample.
    """

    name: Literal["task_mean"] = "task_mean"
    ddof: Literal[0, 1] = 1
    difficulty: DifficultyFactorConfig | None = None
    """Set: factors by how hard a prompt is now (TMN-Reweight)."""

    @property
    def row_facts(self) -> tuple[RowFact, ...]:
        return ("tasks",)

    def estimate_from(self, rewards: Tensor, group_index: Tensor, facts: Mapping[str, Tensor]) -> Tensor:
        home, tasks = "mmrl.algorithms.task_advantages", facts["tasks"]
        result: Tensor = load_reference(f"{home}:task_mean_advantages")(rewards, group_index, tasks, ddof=self.ddof)
        if self.difficulty is None:
            return result
        factors: Tensor = load_reference(f"{home}:difficulty_factors")(
            rewards, group_index, tasks, gamma=self.difficulty.gamma, smoothing=self.difficulty.smoothing
        )
        return result * factors

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        yield from super().validation_errors(config)
        if config.run.overlap.stream:
            yield (
                f"run.overlap.stream: {self.name} compares the groups of an iteration, which are learnt from one by "
                "one: leave it out, or choose grpo"
            )


class OptimalBaselineAdvantage(AdvantageConfig):
    """Each reward minus the baseline of least gradient variance of its group (OBLR-PO, arXiv:2511.23310)."""

    name: Literal["optimal_baseline"] = "optimal_baseline"
    norms: Literal["exact", "recorded"] = "exact"
    """The squared norm of an answer's gradient. exact: in all trained parameters, by a backward pass for each answer
    to prompts whose rewards vary. recorded: in the logit of each token drawn, which costs nothing."""
    leave_one_out: bool = True
    """An answer takes no part in its own baseline, so that the gradient has no bias."""

    @property
    def row_facts(self) -> tuple[RowFact, ...]:
        return ("squared_norms",) if self.norms == "exact" else ("recorded_norms",)

    def estimate_from(self, rewards: Tensor, group_index: Tensor, facts: Mapping[str, Tensor]) -> Tensor:
        (squared_norms,) = facts.values()
        estimated: Tensor = load_reference("mmrl.algorithms.optimal_baseline:optimal_baseline_advantages")(
            rewards, group_index, squared_norms, leave_one_out=self.leave_one_out
        )
        return estimated

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        yield from super().validation_errors(config)
        aggregate = getattr(config.algorithm, "aggregate", "constant")
        if aggregate != "constant":
            yield (
                f"algorithm.aggregate: {self.name} weighs gradients of whole answers, and {aggregate} divides them by "
                "lengths: set algorithm.aggregate constant"
            )
        if self.norms == "recorded" and config.sampling.kind == "denoising":
            yield (
                "algorithm.advantage.norms: recorded reads probabilities of tokens, and denoising steps have none: "
                "choose exact"
            )
        if self.norms == "exact" and config.run.overlap.is_on:
            yield (
                f"run.overlap: {self.name} differentiates the policy between its rollouts and its update, while a copy "
                "samples: leave it out, or set algorithm.advantage.norms recorded"
            )


class NegativeScalingAdvantage(AdvantageConfig):
    """GRPO's advantage, where failures count less the rarer success is in their group (GUI-Libra, arXiv:2602.22190).

    For rewards in [0, 1]. A negative advantage is multiplied by base + slope * the mean reward of its group, at most 1.
    """

    name: Literal["scaled_negatives"] = "scaled_negatives"
    function: ClassVar[str | None] = "mmrl.algorithms:grpo_advantages"
    base: Annotated[float, Field(ge=0, le=1)] = 0.5
    """The factor where nothing of a group has a reward; 1: GRPO's own advantage."""
    slope: NonNegativeFloat = 1.5
    """The growth of the factor with the mean reward of the group."""

    def arguments(self) -> Mapping[str, Any]:
        return {"std": self.std, "ddof": self.ddof}

    def estimate(self, rewards: Tensor, group_index: Tensor) -> Tensor:
        scaled = load_reference("mmrl.algorithms.advantages:scaled_negatives")
        plain = super().estimate(rewards, group_index)
        result: Tensor = scaled(plain, rewards, group_index, base=self.base, slope=self.slope)
        return result


class ChainAdvantage(AdvantageConfig):
    """Several rewards: ranks on the longest chain of answers that all of them order alike (arXiv:2601.03467).

    Of a reward's weight the sign counts alone: below 0, lower values are better.
    """

    name: Literal["chains"] = "chains"
    uses_total: ClassVar[bool] = False
    several_rewards: ClassVar[str] = "orders answers by several rewards"

    def estimate_several(self, rewards: Tensor, weights: list[float], group_index: Tensor) -> Tensor:
        used = [column for column, weight in enumerate(weights) if weight]
        signs = rewards.new_tensor([1.0 if weights[column] > 0 else -1.0 for column in used])
        estimate = load_reference("mmrl.algorithms.preference_chains:chain_advantages")
        advantages: Tensor = estimate(rewards[:, used] * signs, group_index)
        return advantages

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        yield from super().validation_errors(config)
        yield from equal_totals_errors(self.name, config)
