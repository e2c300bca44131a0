"""RankE: a generator of image tokens and the decoder of their codec, trained together by rewards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from mmrl.config.algorithms.base import AlgorithmConfig, ExperienceKind, KLConfig
from mmrl.config.algorithms.policy_gradient import PolicyGradientConfig
from mmrl.config.section import Section

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig


class PerceptualConfig(Section):
    """A distance of two pictures by features of a network."""

    name: str = "lpips"
    """A reward that compares a picture with a reference and has a gradient: `lpips`, or one of your own."""
    args: dict[str, Any] = Field(default_factory=dict)
    """The arguments of that reward."""


class SteadyConfig(Section):
    """A moving average of the decoder, whose pictures are rewarded."""

    decay: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """The share of itself that stays; 0: the decoder itself, as it was at the last change."""
    every: PositiveInt = 2
    """It changes after iterations at whose end the number of updates is a multiple of this."""


class ReconstructionConfig(AlgorithmConfig):
    """Reconstruction: the decoder of the policy's codec learns to repeat true pictures, as in VQGAN (arXiv:2012.09841).

    The true picture of a sample is its `demonstration`. The policy itself does not change.
    """

    experience: ClassVar[ExperienceKind] = "demonstrations"
    objective: ClassVar[str] = "mmrl.training.objectives.decoder_training:TruePictureLoss"
    name: Literal["reconstruction"] = "reconstruction"
    decoder: str = "decoder"
    """The name of a model of the run with `head: pixels` (`models`)."""
    discriminator: str | None = None
    """The name of a model of the run with `head: discriminator`; unset: no adversarial loss."""
    perceptual: PerceptualConfig = PerceptualConfig()
    """The loss is the mean absolute difference of pixels plus this distance."""
    adversarial: NonNegativeFloat = 0.5
    """The factor on the adversarial loss, whose gradient at the last layer is made as long as that of the rest."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each model that is missing."""
        yield from super().validation_errors(config)
        yield from decoder_errors(self, config)


class RankEConfig(PolicyGradientConfig):
    """RankE (arXiv:2605.21195): a policy gradient for a generator of image tokens, and for the decoder of its codec the
    best pictures of each group."""

    objective: ClassVar[str] = "mmrl.training.objectives.decoder_training:RankE"
    name: Literal["ranke"] = "ranke"
    kl: KLConfig = KLConfig(kind="k2", coef=0.05)
    decoder: str = "decoder"
    """The name of a model of the run with `head: pixels` (`models`)."""
    discriminator: str | None = None
    """The name of a model of the run with `head: discriminator`; unset: no adversarial losses."""
    perceptual: PerceptualConfig = PerceptualConfig()
    """The distance that `reconstruction` and `consistency` are measured by."""
    best: PositiveInt = 1
    """The decoder learns from this many pictures of each group, those with the highest total rewards."""
    best_temperature: PositiveFloat = 1.0
    """A picture's weight is the softmax of reward / best_temperature over the chosen ones of its group."""
    reconstruction: NonNegativeFloat = 1.0
    """The factor on the loss of true pictures, the `demonstration` of the samples, with its adversarial part."""
    adversarial: NonNegativeFloat = 0.5
    """The factor on what the discriminator says of the chosen pictures; of repeated ones, as in `reconstruction`."""
    consistency: NonNegativeFloat = 10.0
    """The factor on the distance between a chosen picture and the one that the moving average decodes."""
    reward: NonNegativeFloat = 0.01
    """The factor on the rewards of the chosen pictures, which are differentiated through the decoder."""
    steady: SteadyConfig = SteadyConfig()

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each model that is missing, and each setting that a decoder cannot learn with."""
        yield from super().validation_errors(config)
        yield from decoder_errors(self, config)
        size, rows = config.data.group_size, config.data.micro_batch
        if self.best > size:
            yield f"algorithm.best: {self.best} of a group of {size} (data.group_size): choose at most {size}"
        if rows is not None and config.training.updates > 1 and rows % size:
            yield f"data.micro_batch: {rows} rows cut a group of {size}, whose pictures are compared: take a multiple"
        if self.discriminator is not None and self.adversarial and not self.reconstruction:
            yield "algorithm.reconstruction: the discriminator learns with it: set it above 0, or adversarial to 0"
        if config.data.replay is not None:
            yield f"data.replay: {self.name} compares the pictures of an iteration: leave it out, or choose grpo"


def decoder_errors(algorithm: ReconstructionConfig | RankEConfig, config: TrainConfig) -> Iterator[str]:
    """Yield one message for each trained part of the codec that `models` lacks, or that cannot learn here."""
    if config.policy.kind != "image_tokens":
        yield f"algorithm.name: {algorithm.name} trains the decoder of image tokens, which this policy lacks: take grpo"
        return
    for key, head in (("decoder", "pixels"), ("discriminator", "discriminator")):
        name = getattr(algorithm, key)
        if name is not None and (name not in config.models or config.models[name].head != head):
            known = ", ".join(each for each, model in config.models.items() if model.head == head) or "none has"
            yield f"algorithm.{key}: models has no {name} with head: {head} ({known}): add one"
    if config.policy.train != "full":
        yield f"policy.train: {config.policy.train} saves no decoder, which {algorithm.name} trains: take full"
    if config.policy.dtype == "float16":
        yield f"policy.dtype: {algorithm.name} has several losses, and float16 one scale for all: take bfloat16"
