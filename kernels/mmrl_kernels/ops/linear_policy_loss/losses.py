"""The losses, each a function of log-probs of a few rows: their derivative is autograd's, not written out by hand.

A token loss needs a row's own numbers only, so that any chunk of rows can be done with for good. A sequence loss needs
the log-probs of whole answers first.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

LARGEST = 20.0
"""Log-ratios are cut here: where exp overflows, a row with advantage 0 would make every gradient NaN."""


@dataclass(frozen=True)
class Decisions:
    """What is known of the rows beside their log-probs. No gradient reaches any of it."""

    weights: Tensor  # [N] float32; 0 = not a decision of the policy
    old_log_probs: Tensor | None = None  # [N] as sampled
    advantages: Tensor | None = None  # [N]
    sequence_index: Tensor | None = None  # [N] int64; the answer that a row belongs to
    reference_log_probs: Tensor | None = None  # [N]

    def at(self, rows: Tensor) -> Decisions:
        """Those of these rows."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: tensor[rows] for name, tensor in given.items() if tensor is not None})


@dataclass(frozen=True)
class Clip:
    """-min(ratio A, clip(ratio, 1 - low, 1 + high) A), PPO's (arXiv:1707.06347); `high` above `low`: DAPO.

    `dual` > 1 lets the ratio of a bad decision count for no more than that (dual clip, arXiv:1912.09729).
    """

    low: float
    high: float
    dual: float | None = None
    needs: ClassVar[frozenset[str]] = frozenset({"old_log_probs", "advantages"})

    def __post_init__(self) -> None:
        _check_limits(self.low, self.high)
        if self.dual is not None and self.dual <= 1:
            raise ValueError(f"dual: expected a number > 1, got {self.dual}")

    def terms(self, log_probs: Tensor, decisions: Decisions) -> tuple[Tensor, Tensor]:
        """[n] with a graph, [n] bool: rows that no longer learn."""
        return self.of_ratio(_log_ratio(log_probs, decisions).clamp(max=LARGEST).exp(), _given(decisions.advantages))

    def of_ratio(self, ratio: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        """The same, of ratios p_new / p_old and advantages."""
        least = torch.minimum(ratio * gain, ratio.clamp(1 - self.low, 1 + self.high) * gain)
        clipped = ((gain > 0) & (ratio > 1 + self.high)) | ((gain < 0) & (ratio < 1 - self.low))
        if self.dual is not None:
            least = torch.where(gain < 0, torch.maximum(least, self.dual * gain), least)
            clipped = clipped | ((gain < 0) & (ratio > self.dual))
        return -least, clipped


@dataclass(frozen=True)
class CISPO:
    """-clip(ratio, 1 - low, 1 + high) A log p, the ratio without a gradient (CISPO, arXiv:2506.13585).

    The paper has no lower limit: `low` None.
    """

    low: float | None
    high: float
    needs: ClassVar[frozenset[str]] = frozenset({"old_log_probs", "advantages"})

    def __post_init__(self) -> None:
        _check_limits(self.low or 0.0, self.high)

    def terms(self, log_probs: Tensor, decisions: Decisions) -> tuple[Tensor, Tensor]:
        """[n] with a graph, [n] bool: rows that learn less than their ratio says."""
        gain = _given(decisions.advantages)
        ratio = _log_ratio(log_probs.detach(), decisions).clamp(max=LARGEST).exp()
        weight = ratio.clamp(None if self.low is None else 1 - self.low, 1 + self.high)
        return -weight * gain * log_probs, (weight != ratio) & (gain != 0)


@dataclass(frozen=True)
class GSPO:
    """`Clip` of the answer's ratio, the geometric mean of its rows' (GSPO, arXiv:2507.18071).

    The shared ratio has the gradient of a row's own log-prob (GSPO-token, section 4.3): where an answer's rows have
    equal advantages and weights, that is the gradient of the shared ratio.
    """

    low: float
    high: float
    needs: ClassVar[frozenset[str]] = frozenset({"old_log_probs", "advantages", "sequence_index"})

    def __post_init__(self) -> None:
        _check_limits(self.low, self.high)

    def terms(self, log_probs: Tensor, decisions: Decisions) -> tuple[Tensor, Tensor]:
        """[n] with a graph, [n] bool: rows that no longer learn."""
        sequence, own = _given(decisions.sequence_index), _log_ratio(log_probs, decisions)
        mean = _answer_sums(own.detach(), sequence) / _answer_sums(torch.ones_like(own), sequence).clamp(min=1)
        shared = mean[sequence] + (own - own.detach())
        return Clip(self.low, self.high).of_ratio(shared.clamp(max=LARGEST).exp(), _given(decisions.advantages))


@dataclass(frozen=True)
class DPO:
    """-log sigmoid(beta (chosen - rejected)) of log(p / p_reference) of whole answers (DPO, arXiv:2305.18290).

    Answer 2 p was chosen and answer 2 p + 1 rejected, for each pair p. Every row of a pair has the pair's term: with
    weights that are the mean over answers of the mean over an answer's rows, the loss is the mean over pairs.
    `label_smoothing` is the share of pairs thought to be labelled the wrong way round.
    """

    beta: float
    label_smoothing: float = 0.0
    needs: ClassVar[frozenset[str]] = frozenset({"sequence_index", "reference_log_probs"})

    def __post_init__(self) -> None:
        if self.beta <= 0:
            raise ValueError(f"beta: expected a number > 0, got {self.beta}")
        if not 0 <= self.label_smoothing < 0.5:
            raise ValueError(f"label_smoothing: expected a number in [0, 0.5), got {self.label_smoothing}")

    def terms(self, log_probs: Tensor, decisions: Decisions) -> tuple[Tensor, Tensor]:
        """[n] with a graph, [n] bool: none."""
        sequence = _given(decisions.sequence_index)
        log_ratio = _answer_sums(log_probs - _given(decisions.reference_log_probs), sequence)
        chosen, rejected = log_ratio[::2], log_ratio[1::2]
        margin = self.beta * (chosen - rejected)
        of_pair = -(1 - self.label_smoothing) * logsigmoid(margin) - self.label_smoothing * logsigmoid(-margin)
        return of_pair[sequence // 2], torch.zeros_like(sequence, dtype=torch.bool)


TokenLoss = Clip | CISPO
SequenceLoss = GSPO | DPO


def kl_k3(
    log_probs: Tensor,  # [n]
    reference_log_probs: Tensor,  # [n]
) -> Tensor:  # [n], >= 0
    """q/p - 1 - log(q/p), an estimate of KL(policy || reference) on tokens that the policy drew (arXiv:2402.03300)."""
    d = reference_log_probs - log_probs
    return d.expm1() - d


def _log_ratio(log_probs: Tensor, decisions: Decisions) -> Tensor:
    return log_probs - _given(decisions.old_log_probs)


def _answer_sums(values: Tensor, sequence: Tensor) -> Tensor:
    """[S] sums over each answer's rows, S being even; 0 for a number that no row has."""
    answers = int(sequence.max()) // 2 * 2 + 2 if len(sequence) else 0
    return values.new_zeros(answers).index_add(0, sequence, values)


def _given(tensor: Tensor | None) -> Tensor:
    assert tensor is not None  # `needs` was checked at the door
    return tensor


def _check_limits(low: float, high: float) -> None:
    if low < 0 or high < 0:
        raise ValueError(f"low, high: expected two numbers >= 0, got {low}, {high}")
