"""Algorithms that follow a reward's own gradient, back through the picture and the last denoising steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import PositiveInt

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.base import AlgorithmConfig, KLConfig

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig


class RewardGradientConfig(AlgorithmConfig):
    """Ascent on rewards that are differentiable, through the autoencoder and the last steps of the sampler."""

    objective: ClassVar[str] = "mmrl.training.objectives.reward_gradient:RewardGradient"
    reads_advantages: ClassVar[bool] = False
    advantage: ClassVar[AdvantageConfig] = AdvantageConfig(name="dr_grpo")  # of rollouts; nothing is learnt from it
    lacking: ClassVar[str] = "has no gradient"
    """The defect, as a clause, of a reward that this algorithm cannot follow."""
    steps: PositiveInt | None = 1
    """The number of last denoising steps that gradients flow through (DRaFT-K's K); unset: all of them."""
    truncation: Literal["fixed", "random"] = "fixed"
    """fixed: always `steps`. random: from 1 to `steps`, drawn for each micro-batch, all equally likely (AlignProp)."""
    jump: PositiveInt | None = None
    """Stop where 0 to jump - 1 steps are left, all equally likely, and take x_0 as predicted there (ReFL). Unset: go on
    to the end."""
    renoised: PositiveInt | None = None
    """The number of copies of x_0, each noised separately, from which the last step is computed again, for a gradient
    of lower variance (DRaFT-LV). Unset: from the latents that the rollout had there."""
    detach: bool = False
    """No gradient into the denoiser's inputs, so that many steps neither explode nor vanish (DRTune): each step learns
    from the gradient at the end of the sampler, as if later steps did not answer to it."""
    recompute: bool = False
    """True computes each denoiser call again in the backward pass: activations of one call are in memory, however many
    `steps` there are, for one more forward pass of each."""
    ceiling: float | None = None
    """A total above this earns nothing more (ReFL's hinge, whose ceiling is 2 for ImageReward). Unset: none."""
    kl: KLConfig = KLConfig(kind="velocity_mse")

    def follows(self, kind: type[Any]) -> bool:
        """Return whether this algorithm can follow the gradient of rewards of this class."""
        return bool(kind.differentiable)

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each key that has no effect beside the others, or cannot work with them."""
        one_step = self.steps == 1 and self.truncation == "fixed"
        if self.renoised is not None and not (one_step and self.jump is None):
            yield (
                "algorithm.renoised: noise is put on x_0 for the last step alone: set steps to 1 and leave truncation "
                "and jump out, or leave renoised out"
            )
        if self.detach and self.steps == 1:
            yield "algorithm.detach: a single step has nothing before it to cut: raise steps, or leave detach out"
        if self.recompute and self.steps == 1:
            yield "algorithm.recompute: a single step has no other activations to free: raise steps, or leave it out"
        if self.truncation == "random" and self.steps == 1:
            yield "algorithm.truncation: a random number from 1 to steps, which is 1: raise steps, or leave it unset"
        if self.kl.coef > 0 and self.kl.kind != "velocity_mse":
            yield (
                f"algorithm.kl.kind: {self.kl.kind} compares stochastic decisions, of which {self.name} has none: "
                "choose velocity_mse"
            )


class DRaFTConfig(RewardGradientConfig):
    """DRaFT-K (arXiv:2309.17400): the reward's gradient through the last `steps` steps of the sampler."""

    name: Literal["draft"] = "draft"


class DRTuneConfig(RewardGradientConfig):
    """DRTune (arXiv:2405.00760): all steps, with the denoiser's inputs cut from the graph."""

    name: Literal["drtune"] = "drtune"
    steps: PositiveInt | None = None
    detach: bool = True


class DRaFTLVConfig(RewardGradientConfig):
    """DRaFT-LV (arXiv:2309.17400): DRaFT-1 on several noised copies of each picture, for less variance."""

    name: Literal["draft_lv"] = "draft_lv"
    renoised: PositiveInt | None = 2


class ReFLConfig(RewardGradientConfig):
    """ReFL (arXiv:2304.05977): one random late step, and the picture that it predicts."""

    name: Literal["refl"] = "refl"
    jump: PositiveInt | None = 10


class LatentReFLConfig(RewardGradientConfig):
    """ReFL on latents (arXiv:2603.12257): rewards score the latents that a late step predicts, and nothing is decoded.

    Each reward is a `LatentReward`, such as `learned_latents`.
    """

    objective: ClassVar[str] = "mmrl.training.objectives.reward_gradient:LatentRewardGradient"
    lacking: ClassVar[str] = "reads no latents"
    name: Literal["latent_refl"] = "latent_refl"
    jump: PositiveInt | None = 10
    levels: PositiveInt = 1
    """The noise levels at which x_0 is scored, of which the mean counts: one drawn from each of as many equal parts of
    the range that a reward was trained on, with new noise in each update."""

    def follows(self, kind: type[Any]) -> bool:
        return bool(kind.reads_latents)


class AlignPropConfig(RewardGradientConfig):
    """AlignProp (arXiv:2310.03739): back-propagation through the sampler, cut at a random step."""

    name: Literal["alignprop"] = "alignprop"
    steps: PositiveInt | None = None
    truncation: Literal["fixed", "random"] = "random"
