"""The rewards and their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from mmrl.config.section import Section

REMOTE = "remote"
"""The reward of a service, of which a run may have several."""


class LagrangeConfig(Section):
    """The multiplier of a constraint: how much it weighs beside the objective, whose weight is 1."""

    start: NonNegativeFloat = 0.0
    """The initial multiplier."""
    rate: PositiveFloat = 0.1
    """After each iteration it grows by rate * (at_least - mean), and never falls below 0."""
    max: PositiveFloat = 5.0
    """It grows no further, so that a threshold out of reach does not silence the objective."""


class CountsIfConfig(Section):
    """The condition on which a reward adds to the total: another reward of the answer reaches a threshold (G-RA)."""

    reward: str
    """The name of the other reward, which keeps its own part of the total; its weight may be 0."""
    at_least: float
    """The value that the other reward must reach; for one whose lower values are better, at most this."""


class RewardConfig(Section):
    """A reward by name, with its weight and its settings."""

    name: str
    """As registered (`mmrl rewards list`), or `path/to/file.py:function` for one of your own."""
    weight: float = 1.0
    """0: measured, and no part of the total. Rewards whose direction is "lower" are subtracted."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed to the reward's constructor."""
    gate: float | None = None
    """An answer that does not reach this value gets the lowest possible total, independent of its other rewards."""
    counts_if: CountsIfConfig | None = None
    """This reward adds to the total of an answer only if another one, the outcome, reaches a threshold, and adds 0
    otherwise. The outcome itself always counts (gated reward accumulation, G-RA)."""
    after: dict[str, float] = Field(default_factory=dict)
    """{earlier reward: value}: this reward scores only answers for which each of these earlier ones reaches its value.
    All others get this reward's worst value with the status `stopped`, without a call (a cascade)."""
    at_least: float | None = None
    """A constraint, and no part of the total: the other rewards are maximised as long as this one's mean over an
    iteration reaches the threshold (MVC-ZigAL, arXiv:2505.20107). Its advantages are added, times a multiplier."""
    lagrange: LagrangeConfig = LagrangeConfig()
    """The update of the multiplier of `at_least`."""
    retries: Annotated[int, Field(ge=0)] = 3
    """The number of times that scoring is repeated after a transient failure (a busy server)."""
    deadline_s: PositiveFloat | None = None
    """A call that takes longer is given up: its answers are unscored, with the status `timeout`, for good."""
    batch_size: PositiveInt | None = None
    """Answers a call; unset: as the reward says."""
    concurrency: PositiveInt | None = None
    """Calls at once, for rewards that wait for a server; unset: as the reward says."""

    @property
    def known_as(self) -> str:
        """The name by which other keys mean this reward: `name`, and for `remote` the one that it has in this run."""
        return str(self.args.get("called") or self.args.get("reward") or REMOTE) if self.name == REMOTE else self.name


def constrained(rewards: Sequence[RewardConfig]) -> list[RewardConfig]:
    """The rewards that are constraints."""
    return [reward for reward in rewards if reward.at_least is not None]


def summed(rewards: Sequence[RewardConfig]) -> list[RewardConfig]:
    """The rewards that are parts of the total."""
    return [reward for reward in rewards if reward.at_least is None and reward.weight != 0]


class NamedRewardConfig(Section):
    """A reward in the place of those that samples name."""

    name: str
    """As registered (`mmrl rewards list`)."""
    weight: float = 1.0
    """0: measured, and no part of the total."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Passed to the reward's constructor."""


class ScoringConfig(Section):
    """The combination of rewards."""

    by_source: dict[str, Annotated[list[NamedRewardConfig], Field(min_length=1)]] = Field(default_factory=dict)
    """Rewards of samples in training and its evaluations, by their source or else by their task, in the place of those
    that the samples name."""

    cache: str | None = None
    """A file that keeps scores from batch to batch and run to run; unset: none."""
    renormalise: bool = False
    """True: if some rewards could not be scored, the others are scaled up by the missing weight. False: such an answer
    is unscored."""
