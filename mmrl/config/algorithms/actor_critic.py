"""PPO: a policy gradient whose advantages come from a critic, which learns beside the policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.policy_gradient import Aggregate, PolicyGradientConfig
from mmrl.config.sampling import TokenSamplingConfig

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig

Share = Annotated[float, Field(ge=0, le=1)]


class PPOConfig(PolicyGradientConfig):
    """PPO: advantages from a critic that learns beside the policy, by generalised advantage estimation
    (arXiv:1707.06347, arXiv:1506.02438)."""

    objective: ClassVar[str] = "mmrl.training.objectives.actor_critic:ActorCritic"
    reads_advantages: ClassVar[bool] = False
    name: Literal["ppo"] = "ppo"
    critic: str = "critic"
    """The name of a model of the run with `head: value` (`models`)."""
    discount: Share = 1.0
    """Gamma: the weight of a reward one decision later."""
    trace: Share = 0.95
    """Lambda: 1 takes the return less the value as the advantage, 0 the error of one decision alone."""
    whiten: bool = True
    """Advantages of an iteration have mean 0 and standard deviation 1, over all of its decisions."""
    value_clip: PositiveFloat | None = 0.2
    """The furthest that a value moves in an update from the one that advantages were computed from; unset: no bound."""
    aggregate: Aggregate = "token"

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each problem with the critic, or with settings of group-relative advantages."""
        yield from super().validation_errors(config)
        if not isinstance(config.sampling, TokenSamplingConfig):
            yield f"algorithm.name: {self.name} has a critic of tokens, and this policy writes none: choose grpo"
        if config.policy.dtype == "float16":
            yield f"policy.dtype: {self.name} has two losses, and float16 one scale for both: take bfloat16 or float32"
        critics = [name for name, model in config.models.items() if model.head == "value"]
        if self.critic not in critics:
            known = ", ".join(critics) or "none has"
            yield f"algorithm.critic: models has no {self.critic} with head: value ({known}): add one"
        if self.advantage != AdvantageConfig():
            yield f"algorithm.advantage: advantages of {self.name} come from its critic: leave it out, or choose grpo"
        if config.data.replay is not None:
            yield f"data.replay: {self.name} learns from answers of this iteration alone: leave it out"
        if config.environment is not None and config.environment.horizon:
            yield "environment.horizon: a critic that learnt from short episodes misjudges longer ones: leave it out"
