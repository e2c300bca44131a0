"""The interfaces of models that a run trains: what all have, and critics, decoders of codes and discriminators.

`mmrl.training` knows them through this file, as it knows policies through `mmrl.policy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from mmrl.rollout import Rollout


class TrainedModel(Protocol):
    """A model that a run trains: a policy, or one beside it."""

    version: int  # the number of optimizer updates so far

    def parameters_to_train(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by stable name, in stable order."""

    def lr_scale(self, name: str) -> float:
        """Return the factor on the learning rate for this parameter."""

    def save(self, folder: Path) -> None:
        """Write the trained parameters."""


class Critic(TrainedModel, Protocol):
    """A model that estimates the reward which is still to come before each decision of a policy."""

    def values(self, rollout: Rollout) -> Tensor:
        """Return [B, T] float32: the estimate before each decision, with a graph if gradients are enabled.

        It is 0 outside of the rollout's mask.
        """


@runtime_checkable
class CodeDecodingPolicy(Protocol):
    """A policy whose pictures come from a decoder that may be trained, and so differs between checkpoints."""

    def decoder_state(self) -> dict[str, Tensor]:
        """Return a copy of the decoder's parameters; empty where it never changes."""

    def load_decoder_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `decoder_state` returned."""


class CodeDecoder(TrainedModel, Protocol):
    """The decoder of a policy that draws codes: its pictures are the policy's, and it learns beside it."""

    def decode(self, codes: Tensor) -> Tensor:
        """Return pixels [B, 3, H, W] around [-1, 1] of codes [B, T], with a graph if gradients are enabled."""

    def encode(self, images: Sequence[Any]) -> Tensor:
        """Return the codes [B, T] of PIL images."""

    def pixels(self, images: Sequence[Any], like: Tensor) -> Tensor:
        """Return PIL images as [B, 3, H, W] in [-1, 1], in the size of `like` [..., H, W]."""

    def last_layer(self) -> nn.Parameter:
        """Return the weights of the last layer, by which gradients of losses are compared."""


class PictureJudge(TrainedModel, Protocol):
    """A discriminator, which learns to tell true pictures from those of a decoder."""

    def logits(self, pixels: Tensor) -> Tensor:
        """Return [B, 1, h, w], large where pixels [B, 3, H, W] in [-1, 1] look true."""
