"""Advantages: the key `algorithm.advantage`, and the registry of estimators.

`AdvantageConfig` is what policy gradients and regressions on noised samples learn from; those of
`mmrl.config.algorithms.answer_weights` weigh the answers that are imitated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from mmrl.components import Registry, load_reference
from mmrl.config.algorithms.answer_weights import BestOfConfig, ExponentialConfig
from mmrl.config.algorithms.reward_channels import ChannelConfig, channel_errors
from mmrl.config.algorithms.turn_credit import TurnCreditConfig
from mmrl.config.rewards import constrained, summed
from mmrl.config.section import ComponentSection, Section, named_sections

if TYPE_CHECKING:
    from torch import Tensor

    from mmrl.config.train import TrainConfig

_HOME = "mmrl.config.algorithms.advantage"
Baseline = Literal["group", "batch", "history", "branch", "tree"]
RowFact = Literal["tasks", "squared_norms", "recorded_norms"]
"""A fact that an estimator may read about each answer beside its reward: the number of its task, [B] int64; the squared
norm of the gradient of its log-probability, [B] float32; or the part of that which its recorded probabilities tell."""
ADVANTAGES: Registry[Any] = Registry(
    "mmrl.advantages",
    "advantage",
    named_sections(lambda: AdvantageConfig, _HOME, "mmrl.config.algorithms.row_advantages"),
    base=f"{_HOME}:AdvantageConfig",
)
"""The advantage estimators by name; packages add theirs in the entry-point group `mmrl.advantages`."""


class HistoryConfig(Section):
    """The rewards that a prompt's answers have had so far."""

    buffer: PositiveInt = 32
    """The number of a prompt's last rewards that are kept."""
    min_count: PositiveInt = 16
    """A prompt with fewer rewards than this is compared with the batch."""


class TrustConfig(Section):
    """A factor on the advantage of each answer that falls with the error which its reward may have.

    The factor is exp(offset - rate * bound) (PrefPaint, arXiv:2410.21966).
    """

    score: str = "learned_bound"
    """The further score of a reward that is the bound, or any other that says how doubtful an answer's reward is."""
    rate: NonNegativeFloat = 1.0
    """0: all answers count alike."""
    offset: float = 0.0
    """Raises all factors alike, as a larger learning rate does."""


class DurationConfig(Section):
    """A factor on the advantage of each episode: how long it took, over the mean (arXiv:2509.01684).

    Where workers play one episode after another, fast actions end, and are learnt from, more often than the policy
    takes them.
    """

    key: str = "seconds"
    """The duration in the outcome of an episode, a number above 0."""


class AdvantageConfig(ComponentSection):
    """The advantage of a trajectory, computed from rewards.

    An estimator of your own derives from this class, adds its settings as fields and defines `estimate`.
    """

    registry: ClassVar[Registry[Any]] = ADVANTAGES
    default_name: ClassVar[str] = "grpo"
    function: ClassVar[str | None] = None
    """The reference of the function of (rewards [B], groups [B]); None: the method `estimate` does it."""
    baseline: ClassVar[Baseline] = "group"
    """The rewards that a reward is compared with: its group's, the batch's, the last ones of its prompt, those of the
    steps of the same depth, or those of the rows of the same tree."""
    uses_total: ClassVar[bool] = True
    """False: several rewards are taken one by one, without their sum."""
    takes_constraints: ClassVar[bool] = False
    """True: the advantages of a constrained reward (`rewards.N.at_least`) can be added."""
    several_rewards: ClassVar[str] = ""
    """The use of several rewards, as a clause for messages, where `uses_total` is False."""

    name: str = "grpo"
    """`grpo`, `dr_grpo`, `rloo`, ... (docs/algorithms.md), an installed estimator, or `path/to/file.py:Name`."""
    std: Literal["group", "batch"] = "group"
    """grpo, siblings: the spread that divides: of each group, or of the whole batch (Flow-GRPO)."""
    ddof: Literal[0, 1] = 0
    """0: population spread (flow_grpo); 1: sample spread (DanceGRPO, verl-omni, trl)."""
    clip: PositiveFloat | None = None
    """Advantages are limited to [-clip, clip]."""
    extremes_threshold: PositiveFloat | None = None
    """Only the best and the worst of each group, or of each branch of it (`sampling.branch`), are learnt from, and only
    where their advantages are beyond ±extremes_threshold (B2-DiffuRL)."""
    history: HistoryConfig = HistoryConfig()
    """running: the rewards that are kept."""
    turns: TurnCreditConfig | None = None
    """Set: each turn of an episode (`environment`) has another advantage, relative to the same turn of other answers of
    the group. Unset: every token has the advantage of its whole trajectory."""
    channels: tuple[ChannelConfig, ...] = ()
    """Set: the advantages of several channels are added, each estimated from its own rewards, in place of the advantage
    of the total (HDPO)."""
    trust: TrustConfig | None = None
    """Set: answers whose reward may be far off are learnt less from."""
    duration: DurationConfig | None = None
    """Set: episodes are weighted by how long they took."""

    def estimate(self, rewards: Tensor, group_index: Tensor) -> Tensor:
        """Return advantages [B] float from rewards [B] float and groups [B] int64; NaN rewards are unscored: 0.

        `rewards` is the total, or one constrained reward.
        """
        if self.function is None:
            raise NotImplementedError(f"{type(self).__name__} defines no estimate")
        estimated: Tensor = load_reference(self.function)(rewards, group_index, **self.arguments())
        return estimated

    def estimate_from(self, rewards: Tensor, group_index: Tensor, facts: Mapping[str, Tensor]) -> Tensor:
        """Return advantages [B] as `estimate` does, from `row_facts` [B] by name besides."""
        return self.estimate(rewards, group_index)

    def estimate_several(self, rewards: Tensor, weights: list[float], group_index: Tensor) -> Tensor:
        """Return advantages [B] from R rewards [B, R] and their weights; for estimators without `uses_total`."""
        raise NotImplementedError(f"{type(self).__name__} takes the total of all rewards")

    def arguments(self) -> Mapping[str, Any]:
        """Return further arguments of `function`."""
        return {}

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each setting of `config` that cannot work with this estimator."""
        name, draws = self.name, config.data.group_sampling.name
        if not self.has_choice_of_spread and self.std != "group":
            yield f"algorithm.advantage.std: only grpo and siblings have a choice of spread; {name} would ignore it"
        if self.baseline != "history" and self.history != HistoryConfig():
            yield f"algorithm.advantage.history: only running looks back, and {name} is chosen"
        if self.baseline == "branch" and self.extremes_threshold is not None:
            yield f"algorithm.advantage.extremes_threshold: {name} gives each step its own credit: leave one out"
        if self.baseline in ("history", "branch") and constrained(config.rewards):
            yield (
                f"rewards: at_least adds advantages relative to groups or trees, and {name} has none: choose "
                "algorithm.advantage.name grpo or siblings"
            )
        if self.baseline == "batch" and draws == "dynamic":
            yield (
                "data.group_sampling: dynamic drops groups of equal rewards, but advantages relative to the whole "
                f"batch ({name}) learn from those too: choose an advantage relative to groups, or leave it out"
            )
        if self.turns is not None and (self.baseline not in ("group", "batch") or not self.uses_total):
            yield (
                f"algorithm.advantage.turns: turns are compared within groups by one estimator of totals, and {name} "
                "is none: choose grpo, dr_grpo or rloo"
            )
        if self.trust is not None and (self.turns is not None or self.baseline in ("history", "branch")):
            other = name if self.turns is None else "algorithm.advantage.turns"
            yield f"algorithm.advantage.trust: it weighs whole answers, and {other} gives other ones: leave one out"
        if self.duration is not None and config.environment is None:
            yield "algorithm.advantage.duration: only an environment reports durations: set one, or leave it out"
        if self.duration is not None and (self.turns is not None or self.baseline == "branch"):
            other = name if self.turns is None else "algorithm.advantage.turns"
            yield f"algorithm.advantage.duration: it weighs whole episodes, and {other} parts of them: leave one out"
        if self.duration is not None and config.run.overlap.stream:
            yield (
                "run.overlap.stream: algorithm.advantage.duration compares the durations of all episodes of an "
                "iteration, which are learnt from group by group: leave one of the two out"
            )
        if self.row_facts and self.turns is not None:
            yield (
                f"algorithm.advantage.turns: {self.name} compares whole answers by more than their rewards: leave one "
                "of the two out, or choose grpo"
            )
        if not self.uses_total:
            yield from self._several_rewards_errors(config)
        if self.channels:
            yield from channel_errors(self, config)

    @property
    def has_choice_of_spread(self) -> bool:
        """True if `std` has an effect."""
        return "std" in self.arguments()

    @property
    def row_facts(self) -> tuple[RowFact, ...]:
        """The facts that `estimate_from` reads about each answer; (): its reward alone."""
        return ()

    def _several_rewards_errors(self, config: TrainConfig) -> Iterator[str]:
        name = self.name
        if len(summed(config.rewards)) < 2:
            yield f"algorithm.advantage.name: {name} {self.several_rewards}, and there is one: choose grpo"
        if any(reward.gate is not None for reward in config.rewards):
            yield f"rewards: a gate decides on the total, which {name} does not look at: leave it out, or choose grpo"
        if any(reward.counts_if is not None for reward in config.rewards):
            yield (
                f"rewards: counts_if decides on a part of the total, which {name} does not look at: leave it out, "
                "or choose grpo"
            )
        if config.scoring.renormalise:
            yield f"scoring.renormalise: {name} takes the rewards one by one, so there is no sum to scale: leave it out"


class GroupAdvantage(AdvantageConfig):
    """Each reward minus its group's mean, over the spread (GRPO, arXiv:2402.03300)."""

    name: Literal["grpo"] = "grpo"
    function: ClassVar[str | None] = "mmrl.algorithms:grpo_advantages"
    takes_constraints: ClassVar[bool] = True

    def arguments(self) -> Mapping[str, Any]:
        return {"std": self.std, "ddof": self.ddof}


class CentredAdvantage(AdvantageConfig):
    """Each reward minus its group's mean (Dr. GRPO, arXiv:2503.20783)."""

    name: Literal["dr_grpo"] = "dr_grpo"
    function: ClassVar[str | None] = "mmrl.algorithms:dr_grpo_advantages"
    takes_constraints: ClassVar[bool] = True


class LeaveOneOutAdvantage(AdvantageConfig):
    """Each reward minus the mean of the others in its group (RLOO, arXiv:2402.14740)."""

    name: Literal["rloo"] = "rloo"
    function: ClassVar[str | None] = "mmrl.algorithms:rloo_advantages"
    takes_constraints: ClassVar[bool] = True


class ConstantBaselineAdvantage(AdvantageConfig):
    """Each reward minus a constant, so that every answer counts by itself (TOPR, arXiv:2503.14286)."""

    name: Literal["constant"] = "constant"
    function: ClassVar[str | None] = "mmrl.algorithms:constant_baseline_advantages"
    baseline: ClassVar[Baseline] = "batch"
    value: float = 0.0
    """The baseline. It sets the share of answers that count as bad: with rewards of 0 and 1, 0 learns from the right
    ones alone, and 0.5 weighs right and wrong ones alike."""

    def arguments(self) -> Mapping[str, Any]:
        return {"value": self.value}


class MaxRLAdvantage(AdvantageConfig):
    """Each reward minus its group's mean, over that mean: prompts weigh as in maximum likelihood (arXiv:2602.02710)."""

    name: Literal["max_rl"] = "max_rl"
    function: ClassVar[str | None] = "mmrl.algorithms:max_rl_advantages"


class LinearBestOfAdvantage(AdvantageConfig):
    """As max_rl, for graded rewards: the z-score in the group times that of the group's best."""

    name: Literal["linear_best_of"] = "linear_best_of"
    function: ClassVar[str | None] = "mmrl.algorithms:linear_best_of_advantages"


class BatchAdvantage(AdvantageConfig):
    """Rewards whitened over the batch (REINFORCE++, arXiv:2501.03262)."""

    name: Literal["reinforce_pp"] = "reinforce_pp"
    function: ClassVar[str | None] = "mmrl.algorithms:reinforce_pp_advantages"
    baseline: ClassVar[Baseline] = "batch"
    takes_constraints: ClassVar[bool] = True

    def arguments(self) -> Mapping[str, Any]:
        return {"baseline": "batch", "ddof": self.ddof}


class GDPOAdvantage(AdvantageConfig):
    """Several rewards, each normalised within its group before they are added (GDPO, arXiv:2601.05242)."""

    name: Literal["gdpo"] = "gdpo"
    function: ClassVar[str | None] = "mmrl.algorithms:grpo_advantages"  # of a constraint, which is one reward
    uses_total: ClassVar[bool] = False
    takes_constraints: ClassVar[bool] = True
    several_rewards: ClassVar[str] = "normalises each of several rewards"

    def arguments(self) -> Mapping[str, Any]:
        return {"std": "group", "ddof": self.ddof}

    def estimate_several(self, rewards: Tensor, weights: list[float], group_index: Tensor) -> Tensor:
        estimated: Tensor = load_reference("mmrl.algorithms:gdpo_advantages")(
            rewards, group_index, weights, ddof=self.ddof
        )
        return estimated

    @property
    def has_choice_of_spread(self) -> bool:
        return False

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        yield from super().validation_errors(config)
        if config.run.overlap.stream:
            yield (
                "run.overlap.stream: gdpo whitens advantages over the answers of an iteration, which are learnt from "
                "group by group: leave it out, or choose grpo"
            )


class ParetoAdvantage(AdvantageConfig):
    """Several rewards: only answers that no other dominates are learnt from (Parrot, arXiv:2401.05675)."""

    name: Literal["pareto"] = "pareto"
    front: Literal["group", "batch"] = "group"
    """The answers among which none may dominate: those to the same prompt, or all of the batch (Parrot)."""
    centred: bool = False
    """True: minus the mean of the answers to the same prompt, so that those off the front have negative advantages."""
    uses_total: ClassVar[bool] = False
    several_rewards: ClassVar[str] = "weighs several rewards against one another"

    def estimate_several(self, rewards: Tensor, weights: list[float], group_index: Tensor) -> Tensor:
        estimate = load_reference("mmrl.training.rollouts.advantage_estimator:pareto_front_advantages")
        estimated: Tensor = estimate(rewards, weights, group_index, self.front, self.centred)
        return estimated

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        yield from super().validation_errors(config)
        yield from equal_totals_errors(self.name, config)


def equal_totals_errors(name: str, config: TrainConfig) -> Iterator[str]:
    """Yield a message if groups are left out by their totals, for an estimator that learns from single rewards."""
    if config.data.group_sampling.name == "dynamic":
        yield (
            f"data.group_sampling: dynamic drops groups whose totals are equal, but {name} learns from those whose "
            "rewards differ one by one: leave it out, or choose grpo"
        )


class RunningAdvantage(AdvantageConfig):
    """Rewards against the last ones of the same prompt, so that groups may have one row (DDPO, arXiv:2305.13301)."""

    name: Literal["running"] = "running"
    baseline: ClassVar[Baseline] = "history"


class BranchAdvantage(AdvantageConfig):
    """Each denoising step by the mean reward of all rows that took it (BranchGRPO, arXiv:2509.06040)."""

    name: Literal["branch"] = "branch"
    function: ClassVar[str | None] = "mmrl.algorithms:grpo_advantages"
    baseline: ClassVar[Baseline] = "branch"

    def arguments(self) -> Mapping[str, Any]:
        return {"std": self.std, "ddof": self.ddof}


class SiblingAdvantage(AdvantageConfig):
    """Each reward against those of the rows that share its first steps, over their spread (B2-DiffuRL).

    With `std: batch` over that of all rewards: of a pair, its own spread says nothing (MVC-ZigAL, arXiv:2505.20107).
    """

    name: Literal["siblings"] = "siblings"
    function: ClassVar[str | None] = "mmrl.algorithms:grpo_advantages"
    baseline: ClassVar[Baseline] = "tree"
    takes_constraints: ClassVar[bool] = True

    def arguments(self) -> Mapping[str, Any]:
        return {"std": self.std, "ddof": self.ddof}


AnyAdvantageConfig = AdvantageConfig | BestOfConfig | ExponentialConfig
