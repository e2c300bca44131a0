"""Several objectives in one update: the algorithm `mix`, with its terms and their weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import PositiveFloat

from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.algorithms.preference import OnlineDPOConfig
from mmrl.config.section import Section

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig


class BalanceConfig(Section):
    """Each update has one of two terms, imitation or the other, by the norm of imitation's gradient (SASR)."""

    number = "gamma"

    gamma: PositiveFloat = 1.0
    """An update imitates with the probability |g| / (|g| + gamma |g0|), |g| the norm of the last gradient of imitation
    and |g0| that of the first one of the mix, which `pretraining` may precede (arXiv:2505.13026)."""


class MixConfig(AlgorithmConfig):
    """Several objectives in one update: the gradient is the weighted sum of those of its terms."""

    objective: ClassVar[str] = "mmrl.training.objectives.mixed_terms:MixedTerms"
    on_decisions: ClassVar[bool] = True
    name: Literal["mix"] = "mix"
    balance: BalanceConfig | None = None
    """Set: a mix of two terms, of which one learns from demonstrations, takes one of them in each update."""
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
        if self.balance is not None and (len(imitated) != 2 or sum(imitated) != 1):
            yield "algorithm.balance: it chooses between two terms, one of them on demonstrations: list grpo and sft"
        if all(term.weight == 0 for term in self.terms):
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
            if getattr(term, "critic", None) is not None:
                yield f"algorithm.terms.{number}: {term.name} has a critic, which a mix has no update for: choose grpo"
                continue
            by_pairs = term.experience == "pairs" or isinstance(term, OnlineDPOConfig)
            if by_pairs or not (term.on_decisions or term.experience == "demonstrations"):
                yield f"algorithm.terms.{number}: {term.name} is no term of a mix, whose terms are on log-probabilities"
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
