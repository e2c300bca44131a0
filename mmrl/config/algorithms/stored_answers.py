"""Learning from answers in the data that rewards score: A-LoL, which keeps those that beat the reference's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import PositiveInt

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.base import ExperienceKind
from mmrl.config.algorithms.policy_gradient import Aggregate, ClipConfig, Importance, PolicyGradientConfig
from mmrl.config.algorithms.policy_losses import CISPOLoss, PolicyLossConfig
from mmrl.config.rewards import constrained
from mmrl.config.sampling import TokenSamplingConfig

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig


class ALoLConfig(PolicyGradientConfig):
    """A-LoL (arXiv:2305.14718): answers in the data that are better than the reference's own, each as one action."""

    experience: ClassVar[ExperienceKind] = "answers"
    name: Literal["a_lol"] = "a_lol"
    surrogate: PolicyLossConfig = CISPOLoss()
    importance: Importance = "trajectory"
    """trajectory: the ratio of a whole answer to the reference (A-LoL). token: each token's own (A-LoL seq.). Without a
    ratio, `surrogate: reinforce`, it is A-LoL ref-free."""
    clip: ClipConfig = ClipConfig(low=0.9, high=0.9)
    aggregate: Aggregate = "constant"
    values: PositiveInt = 4
    """The answers of the reference to a prompt whose mean reward is its value. The reference is the policy as it is
    before the first update on stored answers, after `pretraining`."""
    negatives: bool = False
    """False: answers that are no better than the value are dropped. True: they are made less likely."""
    draw: Literal["advantage", "uniform"] = "advantage"
    """The probability with which an answer is drawn: in proportion to its advantage, or the same for all."""

    def for_one_call(self) -> ALoLConfig:
        """Return itself with all stored answers, so that those to few samples are learnt from, however good."""
        return self.model_copy(update={"negatives": True, "draw": "uniform"})

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each key that has no effect on stored answers, or cannot work with them."""
        yield from super().validation_errors(config)
        if not isinstance(config.sampling, TokenSamplingConfig):
            yield "algorithm.name: a_lol learns from texts in the data: choose flow_rwr or dpo for pictures"
        if self.advantage != AdvantageConfig():
            yield "algorithm.advantage: that of a_lol is the reward less the reference's value: leave it out"
        if self.mismatch is not None:
            yield "algorithm.mismatch: a_lol learns from no engine's answers: leave it out"
        if constrained(config.rewards):
            yield "rewards: at_least adds to advantages that are relative to a group, which a_lol has none of"
