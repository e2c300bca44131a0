"""Learning from pairs of a chosen and a rejected answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat

from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.config.algorithms.base import (
    VELOCITY_REGRESSION,
    AlgorithmConfig,
    AnswerSource,
    ExperienceKind,
    MatchingConfig,
    source_errors,
)
from mmrl.config.named_models import POLICY, missing_model_errors
from mmrl.config.sampling import SamplingConfig, TokenSamplingConfig
from mmrl.config.section import Section

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig

PREFERENCE_LEARNING = "mmrl.training.objectives.preference_pairs:PreferenceLearning"


class DPOConfig(MatchingConfig):
    """DPO and its relatives, on pairs of a chosen and a rejected answer (arXiv:2305.18290); Diffusion-DPO and Flow-DPO
    on pairs of pictures (arXiv:2311.12908, arXiv:2501.13918)."""

    experience: ClassVar[ExperienceKind] = "pairs"
    objective: ClassVar[str] = PREFERENCE_LEARNING
    velocity_objective: ClassVar[str | None] = VELOCITY_REGRESSION
    velocity_loss: ClassVar[str] = "mmrl.training.objectives.velocity_losses:PairLoss"
    name: Literal["dpo"] = "dpo"
    loss: Literal["sigmoid", "ipo", "bco", "kto"] = "sigmoid"
    """DPO's own; IPO (arXiv:2310.12036), on the means over tokens; BCO (arXiv:2404.04656) and KTO (arXiv:2402.01306,
    arXiv:2404.04465), on pairs."""
    beta: PositiveFloat | None = None
    """The price of leaving the reference; 1 over twice the margin that ipo aims at. Unset: 0.1 for texts; 100 for
    pictures, whose log-ratio is a difference of *mean* squared errors. Published: 2000 (SD 1.5) and 5000 (SDXL) with
    `weighting: epsilon`."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """The share of pairs that are thought to be labelled the wrong way round; sigmoid only."""
    reference_free: bool = False
    """True: the reward of a text is beta times its log-probability, and not relative to the reference. What is learnt
    is an autoregressive reward model, which guides another model by its logits (GenARM, arXiv:2410.08193)."""
    reference: str | None = None
    """The model of the run (`models`) that the reward of a text is relative to, such as a snapshot that follows the
    policy from generation to generation. Unset: the policy as training began."""
    axis: str | None = None
    """The axis of `metadata.axes` of a pair that says which answer is chosen, as in `{"brief": "rejected"}`: the text
    under `rejected` is the better one. Unset: the text under `chosen`."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each key that has no effect beside the others."""
        yield from super().validation_errors(config)
        media = isinstance(config.sampling, SamplingConfig)
        if self.reference_free and media:
            yield "algorithm.reference_free: the loss of media compares errors with the reference: leave it out"
        if self.reference is not None and (media or self.reference_free):
            yield "algorithm.reference: media and reference_free have none beside the policy's own: leave it out"
        elif self.reference is not None:
            yield from missing_model_errors(config, "algorithm.reference", self.reference)
        if self.axis is not None and (media or self.experience != "pairs"):
            yield "algorithm.axis: it reads the two texts of a sample, which dpo on texts learns from: leave it out"
        if self.label_smoothing > 0 and self.loss != "sigmoid":
            yield f"algorithm.label_smoothing: the loss {self.loss} has none: choose sigmoid, or leave it out"


class MAHDPOConfig(AlgorithmConfig):
    """MAH-DPO (arXiv:2510.01167): DPO on each axis of `metadata.axes` of a pair, with an output layer for each."""

    experience: ClassVar[ExperienceKind] = "pairs"
    objective: ClassVar[str] = "mmrl.training.objectives.head_preferences:HeadPreferences"
    name: Literal["mah_dpo"] = "mah_dpo"
    beta: PositiveFloat = 0.1
    """The price of leaving the reference, for every head."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield a message unless the policy has heads."""
        if not getattr(config.policy, "heads", ()):
            yield "policy.heads: mah_dpo trains a head for each axis of the pairs: name the axes, or choose dpo"


class WritersConfig(Section):
    """The models that write the two answers of a pair, by their names in the run; `policy` is the policy as it is."""

    chosen: str = POLICY
    """The one of whose answers the best is chosen, such as the next generation of the policy."""
    rejected: str = POLICY
    """The one of whose answers the worst is rejected, such as the policy as training began."""


class OnlineDPOConfig(DPOConfig):
    """Online DPO: the same losses, on pairs of the policy's own answers to a prompt (arXiv:2402.04792)."""

    experience: ClassVar[ExperienceKind] = "rollouts"
    name: Literal["online_dpo"] = "online_dpo"  # type: ignore[assignment]
    advantage: AdvantageConfig = AdvantageConfig(name="dr_grpo")
    """The measure of how much better an answer is than another; by default the difference of their rewards."""
    pairing: Literal["best_worst", "all"] = "best_worst"
    """The best of each group against the worst, or every answer against every worse one."""
    margin: NonNegativeFloat = 0.0
    """Two answers are a pair if their advantages differ by more than this."""
    samples_from: AnswerSource = "policy"
    """The source of the answers, as of `flow_rwr`; media only."""
    writers: WritersConfig | None = None
    """Set: models of the run write the answers, each half of a group, and a pair is the best of one against the worst
    of the other, by their total rewards (Temporal Self-Rewarding, arXiv:2508.06026). Unset: the policy writes all."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each key that cannot work with the others or with the batch sizes."""
        yield from super().validation_errors(config)
        yield from self.advantage.validation_errors(config)
        yield from source_errors(self.samples_from, config)
        if self.writers is not None:
            yield from self._writer_errors(self.writers, config)
        elif config.data.starts is not None:
            yield "data.starts: a pair is two answers to the same prompt: leave it out, or choose grpo"
        together = 2 if self.pairing == "best_worst" else config.data.group_size
        micro_batch = config.data.micro_batch or together
        if micro_batch < together:
            yield (
                f"data.micro_batch: {micro_batch} rows do not hold the {together} of a group that algorithm.pairing "
                f"{self.pairing} compares"
            )

    def _writer_errors(self, writers: WritersConfig, config: TrainConfig) -> Iterator[str]:
        """Yield one message for each setting that pairs of several writers do not have."""
        if not isinstance(config.sampling, TokenSamplingConfig):
            yield "algorithm.writers: models beside the policy write texts: leave it out"
        if self.pairing != "best_worst":
            yield f"algorithm.pairing: with writers a pair is a best and a worst answer, and not {self.pairing}"
        if writers.chosen != writers.rejected and config.data.group_size % 2:
            yield f"data.group_size: two writers share {config.data.group_size} answers: take an even number"
        for key, is_set in (
            ("group_sampling", config.data.group_sampling.name != "fixed"),
            ("replay", config.data.replay is not None),
            ("weighting", config.data.weighting is not None),
            ("demonstrations", config.data.demonstrations is not None),
            ("starts", config.data.starts is not None),
        ):
            if is_set:
                yield f"data.{key}: algorithm.writers takes as many answers of each model as it says: leave it out"
        for key, name in (("chosen", writers.chosen), ("rejected", writers.rejected)):
            if name != POLICY:
                yield from missing_model_errors(config, f"algorithm.writers.{key}", name)


class MPOConfig(AlgorithmConfig):
    """MPO (InternVL, arXiv:2411.10442): DPO for the preference, BCO for quality, SFT on what was chosen."""

    experience: ClassVar[ExperienceKind] = "pairs"
    objective: ClassVar[str] = PREFERENCE_LEARNING
    name: Literal["mpo"] = "mpo"
    beta: PositiveFloat = 0.1
    preference: NonNegativeFloat = 0.8
    quality: NonNegativeFloat = 0.2
    generation: NonNegativeFloat = 1.0
    """The weights of the three parts."""

    def validation_errors(self, config: TrainConfig) -> Iterator[str]:
        """Yield a message if all weights are zero."""
        if not (self.preference or self.quality or self.generation):
            yield "algorithm: preference, quality and generation are all 0, so there is nothing to learn"
