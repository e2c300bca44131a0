"""Several objectives in one update: the algorithm `mix`, with its terms and their weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Discriminator, Field, NonNegativeFloat, PositiveFloat, Tag

from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.algorithms.preference import OnlineDPOConfig
from mmrl.config.section import Section, tag_of

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig


Share = Annotated[float, Field(ge=0, le=1)]


class GradientNormBalanceConfig(Section):
    """Each update has one of two terms, imitation or the other, by the norm of imitation's gradient (SASR)."""

    number = "gamma"

    name: Literal["gradient_norm"] = "gradient_norm"
    gamma: PositiveFloat = 1.0
    """An update imitates with the probability |g| / (|g| + gamma |g0|), |g| the norm of the last gradient of imitation
    and |g0| that of the first one of the mix, which `pretraining` may precede (arXiv:2505.13026)."""


class VolatilityBalanceConfig(Section):
    """Weights move from saturated terms to those that still change, by the costs of the last updates (RECAP)."""

    name: Literal["volatility"] = "volatility"
    window: Annotated[int, Field(ge=2)] = 10
    """The updates whose costs are compared: the mean of the later half with that of the earlier, and its spread."""
    temperature: PositiveFloat = 1.0
    """The larger, the closer all weights are to what the terms say; the paper's is 5."""


class MetaGradientBalanceConfig(Section):
    """Imitation has the weight mu and the other term 1 - mu; mu follows the gradient of later rewards (AMFT)."""

    name: Literal["meta_gradient"] = "meta_gradient"
    start: Share = 0.5
    """mu in the first update."""
    rate: NonNegativeFloat = 0.1
    """mu moves by this times the cosine of the reward's gradient, on answers that come later, and the difference that
    imitation made."""
    entropy_rate: NonNegativeFloat = 0.05
    """mu moves by this for each nat that the policy's entropy lacks to its target; 0: entropy has no effect."""
    entropy: NonNegativeFloat | None = None
    """The target of the entropy, in nats for each token; unset: that of the first update."""
    least: Share = 0.05
    """The smallest mu."""
    most: Share = 0.95
    """The largest mu."""


BalanceConfig: TypeAlias = GradientNormBalanceConfig | VolatilityBalanceConfig | MetaGradientBalanceConfig


class MixConfig(AlgorithmConfig):
    """Several objectives in one update: the gradient is the weighted sum of those of its terms."""

    objective: ClassVar[str] = "mmrl.training.objectives.mixed_terms:MixedTerms"
    on_decisions: ClassVar[bool] = True
    name: Literal["mix"] = "mix"
    balance: (
        Annotated[
            Annotated[GradientNormBalanceConfig, Tag("gradient_norm")]
            | Annotated[VolatilityBalanceConfig, Tag("volatility")]
            | Annotated[MetaGradientBalanceConfig, Tag("meta_gradient")],
            Discriminator(tag_of("name", "gradient_norm")),
        ]
        | None
    ) = None
    """The rule that moves the weights of the terms while training: `gradient_norm` (SASR), `volatility` (RECAP) or
    `meta_gradient` (AMFT); unset: they are as the terms say."""
    terms: tuple[AlgorithmConfig, ...] = ()
    """Each is an `algorithm` section with a `weight`. Terms that learn from the policy's own answers share them; a term
    such as sft learns from the samples' demonstrations beside them."""

    @property
    def lead(self) -> AlgorithmConfig:
        """The term that decides how rollouts are scored: the first with an advantage, else the first on rollouts."""
        sampled = [term for term in self.terms if term.experience == "rollouts"]
        advantages = (term for term in sampled if hasattr(term, "advantage"))
        return next(advantages, next(iter((*sampled, *self.terms)), self))

    @property
    def advantage(self) -> Any:
        """The advantage of the leading term; None: it has none."""
        return None if self.lead is self else getattr(self.lead, "advantage", None)

    def labels(self) -> tuple[str, ...]:
        """Return a name for each term, in metrics: its algorithm's, with a number where two have the same."""
        count = Counter(term.name for term in self.terms)
        return tuple(
            term.name if count[term.name] == 1 else f"{term.name}-{number}" for number, term in enumerate(self.terms)
        )

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each term that cannot work, by itself or beside the others."""
        if not self.terms:
            yield "algorithm.terms: there are none, so nothing would be learnt: list algorithms with their weights"
            return
        if all(term.experience != "rollouts" for term in self.terms):
            yield "algorithm.terms: none learns from the policy's own answers: choose an algorithm, without mix"
        imitated = [term.experience == "demonstrations" for term in self.terms]
        by_pair = self.balance is not None and not isinstance(self.balance, VolatilityBalanceConfig)
        if by_pair and (len(imitated) != 2 or sum(imitated) != 1):
            yield "algorithm.balance: it chooses between two terms, one of them on demonstrations: list grpo and sft"
        if isinstance(self.balance, VolatilityBalanceConfig) and len(self.terms) < 2:
            yield "algorithm.balance: volatility compares terms, and there is one: list others, or leave it out"
        if isinstance(self.balance, MetaGradientBalanceConfig):
            rule = self.balance
            if not rule.least <= rule.start <= rule.most:
                yield f"algorithm.balance.start: {rule.start} is not between least, {rule.least}, and most, {rule.most}"
        if all(term.weight == 0 and not term.weight_end for term in self.terms):
            yield "algorithm.terms: all weights are 0, so nothing would be learnt"
        advantages = [each for term in self.terms if (each := getattr(term, "advantage", None)) is not None]
        if any(each != advantages[0] for each in advantages):
            yield "algorithm.terms: two have different advantages, and the answers of a run have one: make them equal"
        if config.run.overlap.is_on:
            yield "algorithm.name: mix needs all answers of an update at once, which run.overlap does not wait for"
        for number, term in enumerate(self.terms):
            if isinstance(term, MixConfig):
                yield f"algorithm.terms.{number}: a mix in a mix: list its terms here"
                continue
            if beside := [key for key in ("critic", "painter") if getattr(term, key, None) is not None]:
                message = f"{term.name} has a {beside[0]}, which a mix has no update for: choose grpo"
                yield f"algorithm.terms.{number}: {message}"
                continue
            elsewhere = term.experience in ("pairs", "answers") or isinstance(term, OnlineDPOConfig)
            if elsewhere or not (term.on_decisions or term.experience == "demonstrations"):
                yield f"algorithm.terms.{number}: {term.name} is no term of a mix, whose terms are on log-probabilities"
            advantage = getattr(term, "advantage", None)
            if any(channel.learn for channel in getattr(advantage, "channels", ())):
                key = f"algorithm.terms.{number}.advantage.channels"
                yield f"{key}: with learn, each channel would add the gradients of all terms: choose grpo, without mix"
            for error in term.validation_errors(config.model_copy(update={"algorithm": term})):
                yield error.replace("algorithm.", f"algorithm.terms.{number}.", 1)

    def capability_errors(self, capabilities: Collection[str]) -> Iterator[str]:
        """Yield one message for each setting of a term that cannot work on a policy with these capabilities."""
        if "log_probs" not in capabilities:
            yield "algorithm.name: mix adds losses on log-probabilities, which this policy does not have"
        for number, term in enumerate(self.terms):
            for error in term.capability_errors(capabilities):
                yield error.replace("algorithm.", f"algorithm.terms.{number}.", 1)


def lead_of(algorithm: AlgorithmConfig) -> AlgorithmConfig:
    """Return the algorithm that decides how rollouts are sampled and scored: of a mix, its leading term."""
    return algorithm.lead if isinstance(algorithm, MixConfig) else algorithm
