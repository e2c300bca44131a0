"""Offline training before online training."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, PositiveInt, Tag

from mmrl.config.algorithms.preference import DPOConfig, MPOConfig
from mmrl.config.algorithms.supervised import SFTConfig
from mmrl.config.section import Section, tag_of

PretrainingAlgorithm = Annotated[
    Annotated[SFTConfig, Tag("sft")] | Annotated[DPOConfig, Tag("dpo")] | Annotated[MPOConfig, Tag("mpo")],
    Discriminator(tag_of("name", "sft")),
]


class PretrainingConfig(Section):
    """An offline stage: the first iterations train on the samples' answers, all others as `algorithm` configures."""

    iterations: PositiveInt
    """The number of pretraining iterations, which are the first of `training.iterations`."""
    algorithm: PretrainingAlgorithm = SFTConfig()
    """Their loss: imitation of demonstrations, or preference of the chosen over the rejected answer."""
    path: str | None = None
    """Their samples; unset: those of `data.path`."""
