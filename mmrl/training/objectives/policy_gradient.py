"""The policy gradient: GRPO and its relatives for tokens, Flow-GRPO for denoising steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from mmrl.algorithms.aggregation import Aggregation, aggregation_total, aggregation_weights
from mmrl.algorithms.forward_process import velocity_mse
from mmrl.algorithms.importance import guarded_log_ratio
from mmrl.algorithms.kl import gaussian_entropy, gaussian_mean_distance, kl_k2, kl_k3, kl_weighted_k3
from mmrl.algorithms.policy_losses import PolicyLoss
from mmrl.config.algorithms.policy_gradient import PolicyGradientConfig
from mmrl.config.sampling import ImageTokenSamplingConfig, SamplingConfig, decisions_per_trajectory
from mmrl.errors import ConfigError
from mmrl.policy import Capability, FusedLossPolicy, Policy, StepOutputs
from mmrl.rollout import Rollout
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective, ObjectiveInputs, trained_decisions
from mmrl.training.objectives.replay_passes import backpropagate, backpropagate_coupled, marked_steps

STEP_CLIP, GUARD_CLIP, TOKEN_CLIP = 1e-4, 2e-6, 0.2
"""The default of `clip.low`. The log-prob of a denoising step is a mean over latents, hence the size; a guarded ratio's
is smaller by the step's noise (flow_grpo's GRPO-Guard has 2e-6)."""

Distance = Literal["mean_distance", "velocity_mse", "k2", "k3", "weighted_k3"]
Surrogate = Callable[[Tensor, Tensor, Tensor, Tensor], PolicyLoss]
"""A function of log-probs, old log-probs, advantages and mask, all [B, T]."""


@dataclass(frozen=True)
class SurrogateSettings:
    """The computation of a policy gradient."""

    surrogate: Surrogate
    couples: bool  # whether a term depends on other decisions of its row
    guarded: bool  # whether ratios are normalised by the moments of their step
    distance: Distance | None  # None: no penalty
    how: Aggregation
    constant: float | None


def resolve_settings(
    config: PolicyGradientConfig, capabilities: frozenset[Capability], max_decisions: int | None = None
) -> SurrogateSettings:
    """Fill in what the configuration leaves open. `max_decisions` is the most decisions that a trajectory may have.

    Raises:
        ConfigError: the penalty is not for this kind of policy, or a constant to divide by is missing.
    """
    if errors := list(config.capability_errors(capabilities)):
        raise ConfigError("\n".join(errors))
    constant = config.length or max_decisions
    if config.aggregate != "constant":
        constant = None
    elif constant is None:
        raise ConfigError("algorithm.length: aggregate constant divides by it; set it to the longest answer allowed")
    guarded, denoising = config.ratio == "guard", Capability.MOMENTS in capabilities
    clip = TOKEN_CLIP if not denoising else GUARD_CLIP if guarded else STEP_CLIP
    distance = config.kl.kind or ("mean_distance" if denoising else "k3")
    return SurrogateSettings(
        surrogate=config.surrogate.build(config, clip),
        guarded=guarded,
        couples=config.importance != "token" or config.surrogate.couples_decisions,
        distance=distance if config.kl.coef else None,
        how="token" if config.aggregate == "micro_batch" else config.aggregate,
        constant=constant,
    )


class PolicyGradient(Objective):
    """A surrogate of log-prob ratios (`config.surrogate`) with an optional penalty on leaving the reference.

    Each block of decisions that a replay visits is backpropagated at once: one denoising step, or all tokens.
    """

    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.LOG_PROBS})

    def __init__(
        self, policy: Policy, config: PolicyGradientConfig, max_decisions: int | None = None, entropy: float = 0.0
    ) -> None:
        """`max_decisions` is the most decisions that a trajectory may have, which `aggregate: constant` divides by.

        `entropy` is the weight of the entropy of trained noise levels.
        """
        self._policy = policy
        self._config = config
        self._entropy = entropy
        self._settings = resolve_settings(config, policy.capabilities, max_decisions)

    @classmethod
    def build(cls, config: PolicyGradientConfig, inputs: ObjectiveInputs) -> PolicyGradient:
        """Return the objective; the number of tokens of an image is known to its model alone."""
        policy, sampling = inputs.policy, inputs.sampling
        is_image = isinstance(sampling, ImageTokenSamplingConfig)
        learned = sampling.transition.learned if isinstance(sampling, SamplingConfig) else None
        decisions = policy.codes_per_image if is_image else decisions_per_trajectory(sampling)
        if decisions is not None and (environment := getattr(policy, "environment", None)) is not None:
            decisions *= environment.max_turns
        return cls(policy, config, decisions, 0.0 if learned is None else learned.entropy)

    def uses_copies(self) -> bool:
        """Return True with a penalty."""
        return self._settings.distance is not None

    def loss_normalizer(self, batch: MicroBatch) -> float:
        """Return the number of rows or decisions that the loss is the mean over; with `micro_batch`, 1."""
        total = aggregation_total(trained_decisions(batch), self._settings.how)
        return min(total, 1) if self._config.aggregate == "micro_batch" else total

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        """Replay the micro-batch's decisions and backpropagate each block as soon as it is computed."""
        part = self._slice_of(batch, share)
        step_indices = part.step_indices
        if not step_indices:
            return
        if self._settings.distance is not None:
            part.reference = self._reference(part.rollout, step_indices)

        def visit(now: StepOutputs) -> None:
            loss = part.guarded(now) if self._settings.guarded else part.surrogate(now.log_probs, now.step_indices)
            penalty = part.penalty(now)
            backpropagate(loss if penalty is None else loss + penalty, self._policy)

        if self._settings.couples:
            whole = partial(part.surrogate, step_indices=step_indices)
            backpropagate_coupled(self._policy, part.rollout, step_indices, whole, part.penalty)
        else:
            with torch.enable_grad(), self._fused_loss(part):
                self._policy.replay(part.rollout, step_indices, visit)
        metrics.absorb(part.metrics)
        metrics.mean("loss", part.loss / (share or 1.0), weight=share)

    def _fused_loss(self, part: _ReplaySlice) -> AbstractContextManager[None]:
        """Pass the derivative of the loss to the replay: the loss of a decision depends on its own log-prob alone."""
        if Capability.FUSED_LOSS not in self._policy.capabilities:
            return nullcontext()
        return cast(FusedLossPolicy, self._policy).fused_loss(part.slope)

    def _slice_of(self, batch: MicroBatch, share: float) -> _ReplaySlice:
        """Return the micro-batch with its weights, without rows that have no gradient if the policy can select rows."""
        settings, rollout = self._settings, batch.rollout
        trained = trained_decisions(batch)
        weights = share * aggregation_weights(trained, settings.how, settings.constant)
        credit = batch.step_advantages
        if settings.distance is None and Capability.SELECT_ROWS in self._policy.capabilities:
            teaches = (trained & (credit != 0)).any(1)
            if not teaches.all():
                trained, weights, credit = trained[teaches], weights[teaches], credit[teaches]
                rollout = rollout.select(teaches.nonzero()[:, 0].tolist())
        copies = weights.new_ones(rollout.rows)
        if Capability.SELECT_ROWS in self._policy.capabilities:
            rows, weights, copies = merge_duplicates(rollout, trained, weights, credit)
            if len(rows) < rollout.rows:
                rollout, trained, credit = rollout.select(rows), trained[rows], credit[rows]
        fresh = rollout.policy_version == self._policy.version
        coefs, turns = (self._config.kl.coef, self._entropy), self._config.kl.turns
        kept = trained if turns is None else trained & torch.isin(rollout.channel, rollout.channel.new_tensor(turns))
        return _ReplaySlice(settings, *coefs, rollout, trained, weights, credit, copies, kept, fresh)

    def _reference(self, rollout: Rollout, step_indices: Sequence[int]) -> dict[int, Tensor]:
        """Return the reference's log-prob, mean or velocity at each decision, as the penalty compares."""
        found: dict[int, Tensor] = {}

        def visit(now: StepOutputs) -> None:
            compared = _compared(now, self._settings.distance)
            found.update({t: compared[:, k].detach() for k, t in enumerate(now.step_indices)})

        with torch.no_grad(), self._policy.reference():
            self._policy.replay(rollout, step_indices, visit)
        return found


@dataclass
class _ReplaySlice:
    """The state of one micro-batch during its backward pass."""

    settings: SurrogateSettings
    coef: float  # of the penalty
    entropy: float  # the weight of the entropy of trained noise levels
    rollout: Rollout
    trained: Tensor  # [B, T] bool
    weights: Tensor  # [B, T]
    credit: Tensor  # [B, T]
    copies: Tensor  # [B]; how many answers of the rollout each row stands for
    kept: Tensor  # [B, T] bool; trained decisions that the penalty keeps near the reference
    fresh: bool  # whether the parameters are still those that the rollout was sampled with
    reference: dict[int, Tensor] = field(default_factory=dict)  # column -> [B, ...]
    metrics: MetricAccumulator = field(default_factory=MetricAccumulator)
    loss: float = 0.0

    @property
    def step_indices(self) -> list[int]:
        """The decisions that any row is trained on."""
        return marked_steps(self.trained)

    def surrogate(self, log_probs: Tensor, step_indices: Sequence[int]) -> Tensor:
        """Return the weighted sum of the loss over some decisions; `log_probs` are [B, K]."""
        here = list(step_indices)
        mask, old = self.trained[:, here], self.rollout.log_probs[:, here]
        terms = self.settings.surrogate(log_probs, old, self.credit[:, here], mask)
        return self._weighted(terms, self.weights[:, here], log_probs.detach() - old, mask)

    def guarded(self, now: StepOutputs) -> Tensor:
        """Return `surrogate` with ratios normalised by their step's moments, so that all steps have equal gradients."""
        here, means = list(now.step_indices), self.rollout.means
        if means is None or now.mean is None or now.std is None or now.gain is None:
            raise ValueError("algorithm.ratio guard needs rollouts that keep their means, of steps whose gain is known")
        mask, old = self.trained[:, here], self.rollout.log_probs[:, here]
        ratio = guarded_log_ratio(now.log_probs, old, now.mean, means[:, here], now.std, mask)
        terms = self.settings.surrogate(ratio, torch.zeros_like(old), self.credit[:, here], mask)
        return self._weighted(terms, self.weights[:, here] / now.gain, now.log_probs.detach() - old, mask)

    def slope(self, log_probs: Tensor, rows: Tensor, step_indices: Tensor) -> Tensor:
        """Return [M] the derivative of surrogate and penalty in the log-probs of M decisions."""
        at = rows, step_indices
        old, credit, mask = (each[at][None] for each in (self.rollout.log_probs, self.credit, self.trained))
        with torch.enable_grad():
            free = log_probs.detach().requires_grad_()
            terms = self.settings.surrogate(free[None], old, credit, mask).loss
            if self.settings.distance is not None:
                now, reference = StepOutputs(tuple(range(len(free))), free[None]), self._reference_log_probs[at][None]
                distance = _distance(now, reference, old, self.settings.distance, mask)
                terms = terms + self.coef * distance * self.kept[at][None]
            return torch.autograd.grad((self.weights[at] * terms[0]).sum(), free)[0]

    @cached_property
    def _reference_log_probs(self) -> Tensor:
        """The reference's log-probs [B, T]; 0 at decisions that are not trained on."""
        table = torch.zeros_like(self.rollout.log_probs)
        table[:, list(self.reference)] = torch.stack(list(self.reference.values()), dim=1)
        return table

    def penalty(self, now: StepOutputs) -> Tensor | None:
        """Return the weighted sum of the distance from the reference, less that of the entropy of trained noise.

        None without either. The entropy is logged.
        """
        kind, here = self.settings.distance, list(now.step_indices)
        mask = self.trained[:, here]
        if now.entropy is not None:
            self._mean("entropy", now.entropy.detach(), mask)
        bonus = self._entropy_bonus(now, mask) if self.entropy else None
        if kind is None:
            return None if bonus is None else -bonus
        reference = torch.stack([self.reference[t] for t in here], dim=1)
        distance = _distance(now, reference, self.rollout.log_probs[:, here], kind, mask)
        kept = self.kept[:, here]
        penalty = self.coef * (self.weights[:, here] * distance).where(kept, 0.0).sum()
        self._mean("kl", distance.detach(), kept)
        self.loss += penalty.item()
        return penalty if bonus is None else penalty - bonus

    def _entropy_bonus(self, now: StepOutputs, mask: Tensor) -> Tensor:
        """Return the weighted sum of the entropies of Gaussian steps, in nats a dimension, times the coefficient."""
        if now.std is None:
            raise ValueError("the entropy of trained noise levels needs decisions with a standard deviation")
        entropy = gaussian_entropy(now.std)
        self._mean("entropy", entropy.detach(), mask)
        bonus = self.entropy * (self.weights[:, list(now.step_indices)] * entropy).sum()
        self.loss -= bonus.item()
        return bonus

    def _weighted(self, terms: PolicyLoss, weights: Tensor, moved: Tensor, mask: Tensor) -> Tensor:
        """Return the weighted sum of terms and log it; `moved` is how far log-probs are from the sampled ones."""
        self._mean("ratio_mean", terms.ratio, mask)
        self.metrics.maximum("ratio_max", terms.ratio[mask].max().item())
        self._mean("clip_fraction", terms.clipped.float(), mask)
        if self.fresh:
            self.metrics.maximum("log_prob_change_max", moved[mask].abs().max().item())
        loss = (weights * terms.loss).sum()
        self.loss += loss.item()
        return loss

    def _mean(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Log the mean over all sampled decisions; one that stands for several rows counts as often."""
        counts = (mask * self.copies[:, None])[mask]
        total = counts.sum().item()
        if not total:
            return
        self.metrics.mean(name, (values[mask] * counts).sum().item() / total, weight=total)


def _compared(now: StepOutputs, kind: Distance | None) -> Tensor:
    """Return [B, K, ...] the quantity that a penalty compares."""
    if kind in ("k2", "k3", "weighted_k3"):
        return now.log_probs
    compared = now.velocity if kind == "velocity_mse" else now.mean
    if compared is None:
        raise ValueError(f"the policy's replay has no output for kl.kind {kind}")
    return compared


def _distance(now: StepOutputs, reference: Tensor, old: Tensor, kind: Distance, mask: Tensor) -> Tensor:
    """Return the distance [B, K] of each decision from the reference."""
    mine = _compared(now, kind)
    if kind == "k2":
        return kl_k2(mine, reference, mask)
    if kind == "k3":
        return kl_k3(mine, reference, mask)
    if kind == "weighted_k3":
        return kl_weighted_k3(mine, old, reference, mask)
    step_indices = range(mine.shape[1])
    if kind == "velocity_mse":
        return torch.stack([velocity_mse(mine[:, k], reference[:, k]) for k in step_indices], dim=1)
    if now.std is None:
        raise ValueError("mean_distance needs decisions with a standard deviation")
    std = now.std.detach()  # of both: a trained noise level would grow to make distances look short
    each = [gaussian_mean_distance(mine[:, k], reference[:, k], std[:, k]) for k in step_indices]
    return torch.stack(each, dim=1)


def merge_duplicates(
    rollout: Rollout,
    trained: Tensor,  # [B, T] bool
    weights: Tensor,  # [B, T] of each decision's term in the loss
    credit: Tensor,  # [B, T]
) -> tuple[list[int], Tensor, Tensor]:  # K rows of the B that differ, in order; [K, T] weights; [K] how many each is
    """Merge rows of a group with the same start, tokens and advantages into one, whose weight is their sum.

    The loss and its gradient stay what they were, up to rounding; short answers (a letter, a count) often repeat, and
    cost a fraction. Equal tokens after another prompt or prefix have other probabilities, and so have those that older
    weights wrote. Rollouts without token ids keep all their rows, as do rows of several turns: what they observed
    between equal tokens may differ.
    """
    if rollout.token_ids is None:
        return list(range(rollout.rows)), weights, weights.new_ones(rollout.rows)
    rows: list[int] = []  # the first of each
    place_of: list[int] = []
    places: dict[tuple[object, ...], int] = {}
    written = [tuple(ids) for ids in rollout.token_ids]
    deserved = [tuple(row) for row in credit.where(trained, torch.inf).tolist()]  # unscored rows are never merged
    several = [False] * rollout.rows if rollout.episodes is None else [len(each.texts) > 1 for each in rollout.episodes]
    own = [row if alone else None for row, alone in enumerate(several)]
    starts = rollout.starts or [None] * rollout.rows
    versions = [None] * rollout.rows if rollout.versions is None else map(tuple, rollout.versions.tolist())
    keys = zip(rollout.group_index.tolist(), starts, versions, written, deserved, own, strict=True)
    for row, key in enumerate(keys):
        place = places.setdefault(key, len(rows))
        if place == len(rows):
            rows.append(row)
        place_of.append(place)
    index = torch.tensor(place_of, dtype=torch.long, device=weights.device)
    merged = weights.new_zeros(len(rows), weights.shape[1]).index_add(0, index, weights)
    return rows, merged, torch.bincount(index).to(weights)
