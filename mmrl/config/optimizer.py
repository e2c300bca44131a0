"""The optimizer and its learning-rate schedule."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from mmrl.config.section import Section


class OptimizerConfig(Section):
    """AdamW with a learning-rate schedule."""

    lr: PositiveFloat = 1e-4
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """Decay of AdamW's running means of the gradient and of its square."""
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    """Gradients are scaled down to this norm."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up: stay, or fall to zero at the last iteration."""
    warmup: Annotated[int, Field(ge=0)] = 0
    """Updates during which the learning rate rises from zero."""
    ema: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Decay of an exponential moving average of the trained parameters; evaluated and saved in their place."""
