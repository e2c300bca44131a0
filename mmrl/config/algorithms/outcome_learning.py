"""OREAL: right answers are cloned, wrong ones pushed down by a reshaped reward, and tokens weighted by importance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.policy_gradient import Aggregate, PolicyGradientConfig
from mmrl.config.algorithms.policy_losses import PolicyLossConfig, ReinforceLoss
from mmrl.config.sampling import TokenSamplingConfig

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig


class OREALConfig(PolicyGradientConfig):
    """OREAL (arXiv:2502.06781): right answers are cloned, wrong ones have a reshaped reward, tokens an importance."""

    objective: ClassVar[str] = "mmrl.training.objectives.outcome_learning:OutcomeLearning"
    name: Literal["oreal"] = "oreal"
    advantage: AdvantageConfig = AdvantageConfig(name="rloo")
    surrogate: PolicyLossConfig = ReinforceLoss()
    aggregate: Aggregate = "token"
    threshold: float = 1.0
    """An answer is right if its total reward reaches this."""
    negatives: NonNegativeFloat = 0.5
    """The factor on the mean over tokens of wrong answers, beside that of right ones; 0: right answers alone."""
    shaped: bool = True
    """True: a wrong answer counts as much as there are right ones in its group. False: each wrong answer counts 1."""
    critic: str | None = None
    """The name of a model of the run with `head: value` (`models`) that learns to tell right from wrong answers by the
    mean of its values of tokens: the importance of each token follows from it. Unset: all tokens count alike."""
    importance_from: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """The probability of the outcome from which on a token has an importance, with a `critic`."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each setting that has no effect, or that cannot work with credit by outcome."""
        yield from super().validation_errors(config)
        critics = [name for name, model in config.models.items() if model.head == "value"]
        if self.critic is not None and self.critic not in critics:
            known = ", ".join(critics) or "none has"
            yield f"algorithm.critic: models has no {self.critic} with head: value ({known}): add one"
        if self.critic is not None and not isinstance(config.sampling, TokenSamplingConfig):
            yield "algorithm.critic: it is a model of tokens, and this policy writes none: leave it out"
        if self.critic is not None and config.policy.dtype == "float16":
            yield "policy.dtype: oreal with a critic has two losses, and float16 one scale for both: take bfloat16"
        if self.critic is None and self.importance_from != 0.5:
            yield "algorithm.importance_from: it is of tokens that a critic judges: name one, or leave it out"
        if self.aggregate != "token":
            yield f"algorithm.aggregate: oreal has a mean over tokens of each outcome, and not {self.aggregate}"
        if self.advantage.turns is not None or self.advantage.baseline == "branch":
            yield "algorithm.advantage: oreal has one outcome of a whole answer: leave turns and branches out"
        if config.data.replay is not None or config.data.demonstrations is not None:
            yield "data: oreal learns from the answers of an iteration alone: leave replay and demonstrations out"
        if config.run.overlap.stream:
            yield "run.overlap.stream: oreal counts the tokens of all answers of an iteration: leave it out"
