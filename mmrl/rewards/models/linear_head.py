"""The head that LAION's aesthetic predictor and ImageReward share: five linear layers, and nothing between them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mmrl.rewards.base import RewardError
from mmrl.rewards.models.loading import explained

if TYPE_CHECKING:
    from torch import Tensor, nn

LAYERS = ("0", "2", "4", "6", "7")
"""As the published files number them; what stands between is dropout."""


def linear_head(tensors: Mapping[str, Tensor], what: str) -> nn.Sequential:
    """The head of tensors called layers.0.weight to layers.7.bias; `what` is their file, for messages."""
    from torch import nn

    needed = [f"layers.{layer}.{part}" for layer in LAYERS for part in ("weight", "bias")]
    if missing := [name for name in needed if name not in tensors]:
        raise RewardError(f"{what} is no head of five linear layers: it lacks {', '.join(missing)}")
    head = nn.Sequential(OrderedDict((n, nn.Linear(*tensors[f"layers.{n}.weight"].shape[::-1])) for n in LAYERS))
    with explained(what):
        head.load_state_dict({name.removeprefix("layers."): tensors[name] for name in needed})
    return head
