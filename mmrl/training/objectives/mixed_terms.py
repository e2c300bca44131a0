"""Several objectives in one update: the gradient of each by itself, then their weighted sum."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import combinations
from typing import ClassVar

import torch
from torch import Tensor

from mmrl.config.algorithms.mixture import (
    BalanceConfig,
    MetaGradientBalanceConfig,
    MixConfig,
    VolatilityBalanceConfig,
)
from mmrl.distributed import processes
from mmrl.distributed.gradients import sum_gradients
from mmrl.nested_state import state_of_part
from mmrl.policy import Capability, Policy
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective, ObjectiveInputs, uses_velocity_loss
from mmrl.training.objectives.term_balance import (
    ImitationBalance,
    MetaGradientBalance,
    TermBalance,
    TermSignals,
    VolatilityBalance,
)

CHECKED = "log_prob_change_max"
"""The metric that the loop compares with its bound on the replay gap."""


class MixedTerms(Objective):
    """The weighted sum of the gradients of several objectives.

    The gradients are computed one after another and kept until the last: one more copy of the trained parameters for
    each term. With several processes, each has its share of the sum of all, and the update adds the shares up again.
    Metrics of the first term on rollouts keep their names, those of others are `NAME/...`. Gauges: `gradient/NAME`,
    the norm of a term's gradient before its weight, `gradient/cosine/A/B` between two terms, and `weight/NAME`. A term
    of weight 0 is not computed. One term alone is that objective to the bit.
    """

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.LOG_PROBS})

    def __init__(
        self, policy: Policy, config: MixConfig, terms: Sequence[Objective], updates: int | None = None
    ) -> None:
        """
        Args:
            policy: what is trained.
            config: the section.
            terms: the objectives of `config.terms`, in order.
            updates: the updates of the whole run, in which a weight comes to its `weight_end`.
        """
        self._policy, self._config, self._terms, self._updates = policy, config, list(terms), updates
        self._labels = config.labels()
        self._sampled = [term.experience == "rollouts" for term in config.terms]
        self._balance = None if config.balance is None else _balance(config.balance, self._sampled)
        self._lead = next(number for number, term in enumerate(config.terms) if term is config.lead)
        self._best = -math.inf  # the best total reward of an answer so far

    @classmethod
    def build(cls, config: MixConfig, inputs: ObjectiveInputs) -> MixedTerms:
        """Return the objective with those of its terms."""
        by_velocity = uses_velocity_loss(inputs.policy.capabilities)
        terms = [term.objective_class(by_velocity).build(term, inputs) for term in config.terms]
        return cls(inputs.policy, config, terms, inputs.updates)

    def sampling_weights(self) -> AbstractContextManager[None]:
        """Return that of the leading term."""
        return self._terms[self._lead].sampling_weights()

    def uses_copies(self) -> bool:
        return any(term.uses_copies() for term in self._terms)

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """Return that of the leading term; each term has its own mean (`accumulate`)."""
        return self._terms[self._lead].loss_normalizer(batch)

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Backpropagate a micro-batch that is an update by itself."""
        self.accumulate([batch], share, [seed], metrics)

    def accumulate(
        self,
        batches: Sequence[MicroBatch],
        factor: float,
        seeds: Sequence[int],
        metrics: MetricAccumulator,
        gathers_in_calls: bool = False,
    ) -> None:
        """Add the weighted sum of the terms' gradients; each is a mean over the micro-batches that it learns from."""
        weights = self._weights(seeds)
        chosen = [number for number, weight in enumerate(weights) if weight]
        if len(self._terms) == 1:
            self._terms[0].accumulate(batches, factor * weights[0], seeds, metrics, gathers_in_calls)
            return
        parameters = list(self._policy.parameters_to_train().values())
        before = [parameter.grad for parameter in parameters]
        gradients: dict[int, list[Tensor | None]] = {}
        own_metrics: dict[int, dict[str, float]] = {}
        for number in chosen:
            for parameter in parameters:
                parameter.grad = None
            own = [place for place, batch in enumerate(batches) if self._learns_from(number, batch)]
            found = MetricAccumulator()
            self._terms[number].accumulate(
                [batches[place] for place in own], factor, [seeds[place] for place in own], found, gathers_in_calls
            )
            sum_gradients(parameters)  # those of all processes, so that each of them measures and weighs the same
            gradients[number] = [parameter.grad for parameter in parameters]
            own_metrics[number] = found.over_processes().values()
            metrics.absorb(found, without=() if number == self._lead else (CHECKED,), prefix=self._prefix(number))
            if number != self._lead and CHECKED in (checked := own_metrics[number]):
                metrics.maximum(CHECKED, checked[CHECKED])
        norms = self._gauge(gradients, weights, factor, metrics)
        if self._balance is not None and all(map(math.isfinite, norms.values())):  # else float16 skips the update
            self._balance.observe(
                TermSignals(
                    gradients,
                    {number: norm / factor for number, norm in norms.items()},
                    self._costs(batches, own_metrics),
                    own_metrics.get(self._lead, {}).get("entropy"),
                )
            )
        for place, (parameter, start) in enumerate(zip(parameters, before, strict=True)):
            parts = [(gradients[number][place], weights[number] / processes.size()) for number in chosen]
            parameter.grad = _weighted_sum(start, parts)

    def begin(self) -> None:
        for term in self._terms:
            term.begin()

    def finish_iteration(self, updates: int) -> None:
        for term in self._terms:
            term.finish_iteration(updates)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors of all terms, by the number of the term and their name, and those of the balance."""
        own = {} if self._balance is None else self._balance.state_dict()
        if math.isfinite(self._best):
            own = own | {"best": torch.tensor(self._best, dtype=torch.float64)}
        return {f"balance.{name}": tensor for name, tensor in own.items()} | {
            f"{number}.{name}": tensor
            for number, term in enumerate(self._terms)
            for name, tensor in term.state_dict().items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        if self._balance is not None:
            self._balance.load_state_dict(state_of_part(state, "balance."))
            self._best = float(state.get("balance.best", -math.inf))
        for number, term in enumerate(self._terms):
            term.load_state_dict(state_of_part(state, f"{number}."))

    def _weights(self, seeds: Sequence[int]) -> list[float]:
        """Return the weight of each term in an update whose micro-batches have these seeds."""
        done = min(1.0, self._policy.version / self._updates) if self._updates else 0.0
        weights = [term.weight_at(done) for term in self._config.terms]
        if self._balance is None:
            return weights
        return [weight * factor for weight, factor in zip(weights, self._balance.factors(seeds[0]), strict=True)]

    def _costs(self, batches: Sequence[MicroBatch], metrics: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
        """Return what each computed term brings down: its loss, or how far the mean reward is below the best one."""
        found = {}
        for number, own in metrics.items():
            if hasattr(self._config.terms[number], "advantage"):
                parts = [batch.totals for batch in batches if batch.totals is not None and batch.term is None]
                totals = torch.cat(parts) if parts else torch.empty(0)
                if bool((known := totals.isfinite()).any()):
                    self._best = max(self._best, float(totals[known].max()))
                    found[number] = self._best - float(totals[known].mean())
            elif "loss" in own:
                found[number] = own["loss"]
        return found

    def _learns_from(self, number: int, batch: MicroBatch) -> bool:
        return self._sampled[number] if batch.term is None else batch.term == number

    def _prefix(self, number: int) -> str:
        return "" if number == self._lead else f"{self._labels[number]}/"

    def _gauge(
        self,
        gradients: dict[int, list[Tensor | None]],
        weights: Sequence[float],
        factor: float,
        metrics: MetricAccumulator,
    ) -> dict[int, float]:
        """Log norms, cosines and weights, and return the norms by the number of the term."""
        norms = {number: math.sqrt(_dot(each, each)) for number, each in gradients.items()}
        for number, weight in enumerate(weights):
            metrics.mean(f"weight/{self._labels[number]}", weight)
        for number, norm in norms.items():
            metrics.mean(f"gradient/{self._labels[number]}", norm / factor)
        for one, other in combinations(gradients, 2):
            if norms[one] and norms[other]:
                cosine = _dot(gradients[one], gradients[other]) / norms[one] / norms[other]
                metrics.mean(f"gradient/cosine/{self._labels[one]}/{self._labels[other]}", cosine)
        return norms


def _balance(config: BalanceConfig, sampled: Sequence[bool]) -> TermBalance:
    """Return what moves the weights of terms; `sampled` is True for each that learns from rollouts."""
    if isinstance(config, VolatilityBalanceConfig):
        return VolatilityBalance(len(sampled), config.window, config.temperature)
    imitation = list(sampled).index(False)
    if isinstance(config, MetaGradientBalanceConfig):
        return MetaGradientBalance(imitation, **config.model_dump(exclude={"name"}))
    return ImitationBalance(config.gamma, imitation)


def _dot(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> float:
    """Return the scalar product of two gradients, of which parts that are None are 0."""
    found = [(a * b).sum() for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    return float(torch.stack(found).sum()) if found else 0.0


def _weighted_sum(start: Tensor | None, parts: Sequence[tuple[Tensor | None, float]]) -> Tensor | None:
    """Return the sum of gradients times their weights, with what was there before; None if there is none."""
    total = start
    for gradient, weight in parts:
        if gradient is not None:
            scaled = gradient if weight == 1 else gradient * weight
            total = scaled if total is None else total + scaled
    return total
