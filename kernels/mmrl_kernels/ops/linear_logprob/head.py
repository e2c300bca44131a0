"""The output layer: logits of a few rows into a buffer, and the way back from the softmax to its operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmrl_kernels.ops.linear_logprob.sizes import columns_per_block, rows_per_chunk
from mmrl_kernels.ops.linear_logprob.spec import OP
from mmrl_kernels.registry import implementation


@dataclass(frozen=True)
class Head:
    """softmax((hidden @ weight.T + bias) / temperature), `suppressed` tokens left out."""

    weight: Tensor  # [V, H]
    bias: Tensor | None  # [V]
    temperature: float
    suppressed: Tensor | None  # [S] int64

    def to(self, dtype: torch.dtype) -> Head:
        """The operands as the GEMMs take them."""
        return replace(self, weight=self.weight.to(dtype), bias=None if self.bias is None else self.bias.to(dtype))

    def logits_(
        self,
        out: Tensor,  # [n, V] of the operands' dtype; overwritten
        hidden: Tensor,  # [n, H]
    ) -> Tensor:
        """Fill `out`. The GEMM divides by the temperature before it rounds; suppressed logits are the lowest number.

        Not minus infinity, which times a probability of 0 would be NaN.
        """
        scale = 1 / self.temperature
        if self.bias is None:
            out.addmm_(hidden, self.weight.T, beta=0, alpha=scale)
        else:
            torch.addmm(self.bias, hidden, self.weight.T, beta=scale, alpha=scale, out=out)
        if self.suppressed is not None:
            out.index_fill_(1, self.suppressed, torch.finfo(out.dtype).min)
        return out


def compute_dtype(hidden: Tensor) -> torch.dtype:
    """Return the dtype of the GEMMs: autocast's where it is on, else the operands'. Autocast keeps float64."""
    device = hidden.device.type
    if hidden.dtype != torch.float64 and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return hidden.dtype


def chunk_buffer(rows: int, head: Head, device: torch.device) -> tuple[int, Tensor]:
    """Return the number of rows per chunk, and a buffer for their logits."""
    vocabulary, dtype = len(head.weight), head.weight.dtype
    count = rows_per_chunk(rows, vocabulary, dtype.itemsize, device.type)
    return count, torch.empty(min(count, rows), vocabulary, dtype=dtype, device=device)


def softmax_rows(logits: Tensor) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the function from these logits to log-probs, entropies and gradients (`reference.softmax_rows`)."""
    return implementation(OP, logits)


@dataclass(frozen=True)
class Gradients:
    """Sums of what row chunks give to the gradients that are needed; the others are None."""

    hidden: Tensor | None  # [N, H] of the hidden states' dtype, or wider
    weight: Tensor | None  # [V, H] float32, or wider
    bias: Tensor | None  # [V] float32, or wider

    @classmethod
    def zeros(
        cls, hidden: Tensor, head: Head, needed: tuple[bool, bool, bool], dtype: torch.dtype | None = None
    ) -> Gradients:
        """Return the `needed` gradients of hidden, weight and bias; that of hidden in its dtype, or in `dtype`."""
        wide = torch.promote_types(head.weight.dtype, torch.float32)
        return cls(
            torch.zeros_like(hidden, dtype=dtype) if needed[0] else None,
            torch.zeros_like(head.weight, dtype=wide) if needed[1] else None,
            torch.zeros_like(head.bias, dtype=wide) if needed[2] and head.bias is not None else None,
        )

    def scaled_(self, by: float) -> Gradients:
        """All of them times a number."""
        if by != 1:
            for each in (self.hidden, self.weight, self.bias):
                if each is not None:
                    each.mul_(by)
        return self

    def add_(
        self,
        head: Head,
        rows: Tensor,  # [n] int64; which rows of the hidden states these are
        hidden: Tensor,  # [n, H] of the GEMMs' dtype
        residual: Tensor,  # [n, V] of the GEMMs' dtype: probabilities, less 1 at the target
        slope: Tensor,  # [n] float32: d objective / d log-prob of each row
    ) -> None:
        """d log-prob / d logit is minus the residual, and the logits were divided by the temperature."""
        if not len(rows):
            return
        factor = slope[:, None] / -head.temperature
        if self.hidden is not None:
            self.hidden.index_copy_(0, rows, torch.mm(residual, head.weight).mul(factor).to(self.hidden.dtype))
        if self.weight is not None:
            _add_outer_(self.weight, residual, hidden, factor)
        if self.bias is not None:
            self.bias.addmv_(residual.to(self.bias.dtype).T, factor[:, 0].to(self.bias.dtype))


def _add_outer_(
    total: Tensor,  # [V, H] float32, or wider
    residual: Tensor,  # [n, V]
    hidden: Tensor,  # [n, H]
    factor: Tensor,  # [n, 1]
) -> None:
    """total += residual.T @ (factor * hidden)."""
    if total.dtype == residual.dtype:
        total.addmm_(residual.T, hidden * factor)
        return
    # Factors are about 1 / tokens of the batch: half precision would lose them, so only their proportions go in.
    largest = factor.abs().amax().clamp(min=torch.finfo(factor.dtype).tiny)
    scaled = hidden.mul(factor / largest).to(hidden.dtype)
    size = columns_per_block(*total.shape)
    for first in range(0, len(total), size):
        total[first : first + size].addcmul_(torch.mm(residual[:, first : first + size].T, scaled), largest)
