"""Joint GRPO: a model writes a text, another draws it, and one reward of the picture trains both (UniGRPO)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.algorithms.policy_gradient import PolicyGradientConfig, UniGRPOConfig
from mmrl.config.named_models import kind_of
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.written_prompts import ReaderConfig

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig


class JointGRPOConfig(PolicyGradientConfig):
    """Joint GRPO of UniGRPO (arXiv:2603.23500): trajectories of a text and of the picture that a painter draws of it.

    Rewards see the picture and the user's prompt. The keys of a policy gradient are those of the text's tokens; the
    advantage is that of the whole trajectory, and so of the painter's steps, too.
    """

    objective: ClassVar[str] = "mmrl.training.objectives.joint_gradient:JointGradient"
    name: Literal["joint_grpo"] = "joint_grpo"
    painter: str = "painter"
    """The model of the run that draws (`models`, of kind pipeline). With `train: none` the text alone is learnt."""
    reader: ReaderConfig = ReaderConfig(name="captions")
    """The reader that makes the painter's sample of a text; where it refuses one, the user's prompt is drawn."""
    picture: AlgorithmConfig = UniGRPOConfig(name="unigrpo")
    """The policy gradient of the painter's steps: its clip, ratio and penalty. The advantage is the text's."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each problem with the painter, and each setting that has no part in a joint update."""
        yield from super().validation_errors(config)
        if not isinstance(config.sampling, TokenSamplingConfig):
            yield f"algorithm.name: {self.name} begins with a text, and this policy writes none: choose unigrpo"
            return
        painters = [
            name for name, model in config.models.items() if model.model and kind_of(config, name) == "pipeline"
        ]
        if self.painter not in painters:
            known = ", ".join(painters) or "none is"
            yield f"algorithm.painter: models has no {self.painter} of kind pipeline ({known}): add one"
        elif not config.models[self.painter].trained and self.picture != type(self).model_fields["picture"].default:
            yield f"algorithm.picture: {self.painter} is not trained (models.{self.painter}.train): leave it out"
        picture = self.picture
        if type(picture).objective != PolicyGradientConfig.objective:
            yield f"algorithm.picture.name: {picture.name} is no policy gradient of denoising steps: choose unigrpo"
        elif getattr(picture, "advantage", None) != AdvantageConfig():
            yield (
                "algorithm.picture.advantage: a text and its picture have one reward, and so one advantage: set "
                "algorithm.advantage, or choose unigrpo"
            )
        if picture.weight != 1.0 or picture.weight_end is not None:
            yield "algorithm.picture.weight: each model has its own optimizer, so it has no effect: leave it out"
        if config.policy.dtype == "float16":
            yield f"policy.dtype: {self.name} has two losses, and float16 one scale for both: take bfloat16 or float32"
        for key, chosen in (("environment", config.environment), ("data.replay", config.data.replay)):
            if chosen is not None:
                yield f"{key}: {self.name} draws single answers of this iteration: leave it out"
        if self.mismatch is not None:
            yield "algorithm.mismatch: it is computed for texts alone, and a picture has the same reward: leave it out"
