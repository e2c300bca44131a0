"""Learning offline before learning online."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, PositiveInt, Tag

from mmrl.config.algorithm import DPOConfig, MPOConfig, SFTConfig
from mmrl.config.section import Section, tag_of

PretrainingAlgorithm = Annotated[
    Annotated[SFTConfig, Tag("sft")] | Annotated[DPOConfig, Tag("dpo")] | Annotated[MPOConfig, Tag("mpo")],
    Discriminator(tag_of("name", "sft")),
]


class PretrainingConfig(Section):
    """The first iterations of a run learn from what samples hold, all others as `algorithm` says."""

    iterations: PositiveInt
    """Of `training.iterations`, from the first."""
    algorithm: PretrainingAlgorithm = SFTConfig()
    """What they minimise: imitation of demonstrations, or preference of the chosen over the rejected."""
    path: str | None = None
    """Their samples; unset: those of `data.path`."""
