"""Loss scaling: float16 has no number between 0 and 6e-8, where most of a denoiser's gradient would lie.

A log-probability is a mean over latent dimensions and a loss a mean over trajectories and decisions, so the gradient
that enters the denoiser is about 1e-7. Losses are multiplied by `factor` before the backward pass, and the gradients
of the parameters, which are float32, divided by it after. Unlike `torch.amp.GradScaler`, an update without any
gradient does not count towards growth, and too small a factor is an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn

from mmrl.config.policy import Precision
from mmrl.distributed.tensor_parts import own_part
from mmrl.errors import RunError

START = 2.0**16
PATIENCE = 200
"""Updates without an overflow after which the factor is doubled: at most one update in this many is skipped for it."""


class LossScale:
    """The factor on losses. In float32 and bfloat16 it is always 1; in float16 it adapts.

    An overflow is a gradient that is not finite: its update is skipped and the factor halved. Factors are powers of
    two, so that scaling itself rounds nothing.
    """

    def __init__(self, precision: Precision) -> None:
        self.adapts = precision == "float16"
        self.factor = START if self.adapts else 1.0
        self.skipped = 0  # updates, so far
        self._since_change = 0  # updates

    @torch.no_grad()
    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide gradients by the factor, in place."""
        if self.adapts and (gradients := [own_part(p.grad) for p in parameters if p.grad is not None]):
            torch._foreach_div_(gradients, self.factor)

    def accepts(self, norm: float) -> bool:
        """Return True if an update with gradients of this norm may be made, and adapt the factor.

        Where the factor is fixed, every norm is accepted: a norm that is not finite is an error, not an overflow.

        Raises:
            RunError: unscaled losses overflow too.
        """
        if not self.adapts:
            return True
        if math.isfinite(norm):
            self._since_change += norm > 0  # a gradient of 0 is no evidence
            if self._since_change == PATIENCE:
                self._change(2.0)
            return True
        self.skipped += 1
        self._change(0.5)
        if self.factor < 1:
            raise RunError(
                f"the gradient's norm is {norm} in float16 even where the loss is not scaled ({self.skipped} updates "
                "were skipped so far): set policy.dtype to bfloat16 or float32; the last checkpoint is kept"
            )
        return False

    def metrics(self) -> dict[str, float]:
        """Return `loss_scale`, and the run's `updates_skipped` so far; empty where the factor is fixed."""
        return {"loss_scale": self.factor, "updates_skipped": float(self.skipped)} if self.adapts else {}

    def state_dict(self) -> dict[str, float]:
        """Return the state, fit for JSON; empty where the factor is fixed."""
        if not self.adapts:
            return {}
        return {"factor": self.factor, "skipped": self.skipped, "since_change": self._since_change}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue exactly where `state_dict` was taken."""
        if state:
            self.factor = state["factor"]
            self.skipped, self._since_change = int(state["skipped"]), int(state["since_change"])

    def _change(self, by: float) -> None:
        self.factor, self._since_change = self.factor * by, 0
