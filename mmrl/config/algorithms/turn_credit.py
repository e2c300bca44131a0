"""The credit of single turns of an episode: the key `algorithm.advantage.turns`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from mmrl.config.section import Section


class PotentialConfig(Section):
    """A turn reward that is taken as the potential of the state to which the turn leads, and is no reward itself.

    Each turn has the reward discount * phi(next state) - phi(state), where phi of the first state and of every end is
    0, so that the best policy stays the best (Ng, Harada and Russell 1999).
    """

    reward: str
    """The turn reward by name, such as the share of a task that is done."""
    weight: PositiveFloat = 1.0
    """The factor on the potential. The scale is that of the outcome, which is the total of `rewards`."""


class TurnCreditConfig(Section):
    """The credit of single turns, from the rewards that an environment gives for them."""

    weight: NonNegativeFloat = 1.0
    """The factor on the rewards of turns beside the outcome, which is the total of `rewards`."""
    discount: Annotated[float, Field(ge=0, le=1)] = 1.0
    """A turn's return is its reward plus `discount` times the return of the next turn. 0: its own reward alone."""
    broken_by: str | None = None
    """A turn reward. Where it is 0, a turn's return is its own reward alone, and earlier returns end before it: what
    comes after an error that the environment repaired is no merit of what came before it (UI-S1, arXiv:2509.11543)."""
    compared_by: str | None = None
    """A measured value of a turn (`turns/info/NAME`), such as its kind. Returns are compared with those of
    the group's turns of the same value, at any place (RLVMR, arXiv:2507.22844); `any`: with all of the group's turns,
    which are then to have rewards of one scale; unset: with those at the same place, such as of the same agent
    (Dr. MAS, arXiv:2602.08847)."""
    outcome: Literal["added", "returned", "both"] = "added"
    """`added`: the advantage of the outcome is added to that of the turn, each normalised by itself. `returned`: the
    outcome is a reward of the last turn, so that it is discounted and normalised with the rewards of the turns.
    `both`: it is that, and its own advantage is added besides (MatchTIR, arXiv:2601.10712)."""
    rewards: dict[str, float] = Field(default_factory=dict)
    """The weights of the turn rewards by name; those that are not named have no effect. Empty: 1 for each."""
    potential: PotentialConfig | None = None
    """Set: a turn reward shapes the returns as a potential; with `outcome: returned`."""

    @model_validator(mode="after")
    def _a_potential_shapes_the_return_of_the_outcome(self) -> TurnCreditConfig:
        if self.potential is not None and self.outcome != "returned":
            raise ValueError(
                "potential: the sum of its differences says nothing without the outcome in the same return: set "
                "outcome: returned"
            )
        if self.potential is not None and self.potential.reward in self.rewards:
            raise ValueError(f"potential: {self.potential.reward} is a potential or a reward: take it out of rewards")
        return self
