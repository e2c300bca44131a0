"""Linear layers that multiply FP8 numbers, simulated in the policy's own precision (Jet-RL, arXiv:2601.14243).

Weights and activations are rounded to FP8 with a scale for each block, and multiplied as the numbers that they then
are: what an FP8 product computes, not how fast. Gradients pass through the rounding unchanged (straight-through,
arXiv:1308.3432) and are themselves not rounded; the parameters that an optimizer moves keep their precision.

A scale of activations belongs to one token, never to several, so that a token's numbers do not depend on the batch that
it is computed in. Scales are powers of two: a rounded number times its scale is exact in bfloat16 too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mmrl.checks import ShapeError
from mmrl.config.policy import FP8Config, FP8Format

DTYPES: dict[FP8Format, torch.dtype] = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
"""The dtypes of the formats: e4m3 has 3 bits after the binary point and reaches 448, e5m2 has 2 and reaches 57344."""


def round_to_fp8(
    values: Tensor,  # [..., N, M]
    fp8_format: FP8Format,
    rows: int | None,  # of a block; None: all N
    columns: int | None,  # of a block; None: all M
) -> Tensor:  # [..., N, M], of the dtype of `values`
    """Return the nearest FP8 numbers times the scale of their block, the smallest power of two that lets it fit.

    The gradient is that of the identity.
    """
    if values.dim() < 2:
        raise ShapeError(f"values: expected [..., N, M], got {list(values.shape)}")
    rounded: Tensor = _Rounding.apply(values, DTYPES[fp8_format], rows, columns)
    return rounded


class _Rounding(torch.autograd.Function):
    """Rounding to FP8 by blocks, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, dtype: torch.dtype, rows: int | None, columns: int | None) -> Tensor:
        """Return the rounded values [..., N, M]; blocks at the lower and right edges may be smaller."""
        height, width = values.shape[-2:]
        rows, columns = min(rows or height, height), min(columns or width, width)
        padded = F.pad(values.detach().float(), (0, -width % columns, 0, -height % rows))
        blocks = padded.unflatten(-1, (-1, columns)).unflatten(-3, (-1, rows))  # [..., n, rows, m, columns]
        largest = blocks.abs().amax((-3, -1), keepdim=True)
        mantissa, exponent = torch.frexp(largest / torch.finfo(dtype).max)  # a mantissa is in [0.5, 1)
        exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
        scaled = torch.ldexp(blocks, -exponent).to(dtype).float()
        whole = torch.ldexp(scaled, exponent).flatten(-2).flatten(-3, -2)
        return whole[..., :height, :width].to(values.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient as it came."""
        return grads[0], None, None, None


@dataclass
class FP8Numbers:
    """The settings of a model's FP8 layers, and whether they round now."""

    settings: FP8Config
    rounds: bool  # False: the layers compute with the numbers that they are given
    _kept: dict[int, tuple[Tensor, Tensor]] | None = field(default=None, init=False)
    """{the id of a weight: it, and its rounded values} of the rollout that is open."""

    def activations(self, values: Tensor) -> Tensor:  # [..., M]
        """Return the rounded activations; a scale is shared by `block` features of one token."""
        return round_to_fp8(values[..., None, :], self.settings.format, 1, self.settings.block)[..., 0, :]

    def weight(self, values: Tensor) -> Tensor:  # [N, M]
        """Return the rounded weight of a layer; a scale is shared by a square of `block` times `block` numbers."""
        block = self.settings.block
        if self._kept is None:
            return round_to_fp8(values, self.settings.format, block, block)
        if id(values) not in self._kept:
            self._kept[id(values)] = values, round_to_fp8(values, self.settings.format, block, block)
        return self._kept[id(values)][1]

    @contextmanager
    def of_rollout(self) -> Iterator[None]:
        """While open, the layers round, and round each weight once: parameters must not change meanwhile."""
        before = self.rounds, self._kept
        self.rounds, self._kept = True, {}
        try:
            yield
        finally:
            self.rounds, self._kept = before


class FP8Linear(nn.Linear):
    """A linear layer that rounds its weight and its input to FP8 before it multiplies them."""

    numbers: FP8Numbers

    def forward(self, input: Tensor) -> Tensor:
        """Return the outputs [..., N] of inputs [..., M]."""
        if not self.numbers.rounds:
            return super().forward(input)
        return F.linear(self.numbers.activations(input), self.numbers.weight(self.weight), self.bias)


def use_fp8(layers: Iterable[nn.Linear], settings: FP8Config) -> FP8Numbers:
    """Let linear layers compute with FP8 numbers, in place; their parameters keep names, values and precision.

    With the flow `rollout` they do so only within `of_rollout`.
    """
    numbers = FP8Numbers(settings, rounds=settings.flow == "unified")
    for layer in layers:
        layer.__class__ = FP8Linear
        layer.numbers = numbers  # type: ignore[assignment]
    return numbers
