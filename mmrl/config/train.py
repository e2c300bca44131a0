"""The whole configuration of a training run, with its offline stage."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, PositiveInt, Tag

from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.algorithms.preference import DPOConfig, MPOConfig
from mmrl.config.algorithms.supervised import SFTConfig
from mmrl.config.data import AnswersConfig, DataConfig
from mmrl.config.environment import EnvironmentConfig
from mmrl.config.media import MediaConfig
from mmrl.config.named_models import NamedModelConfig
from mmrl.config.policy import AnyPolicyConfig, PolicyConfig
from mmrl.config.rewards import RewardConfig, ScoringConfig
from mmrl.config.sampling import AnySamplingConfig, SamplingConfig
from mmrl.config.section import Section, tag_of
from mmrl.config.training import EvaluationConfig, OptimizerConfig, RunConfig, TrainingConfig
from mmrl.errors import ConfigError

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


class StageConfig(Section):
    """An earlier stage on the policy's own answers: what differs from the run's own `algorithm` and `rewards`."""

    iterations: PositiveInt
    """The number of its iterations, which follow those of `pretraining` and of the stages before it."""
    algorithm: AlgorithmConfig | None = None
    """Unset: as in the run."""
    rewards: tuple[RewardConfig, ...] | None = None
    """Unset: as in the run. Evaluations always measure the run's."""


class TrainConfig(Section):
    """The configuration of one run of `mmrl train`."""

    name: str
    """Names the run folder and the model card."""
    seed: int = 0
    policy: AnyPolicyConfig
    models: dict[str, NamedModelConfig] = Field(default_factory=dict)
    """Models beside the policy, by name: teachers, and snapshots of the policy (docs/several-models.md)."""
    sampling: AnySamplingConfig = SamplingConfig()
    environment: EnvironmentConfig | None = None
    """Set: a vision-language model writes several turns, which this environment answers."""
    algorithm: AlgorithmConfig = GRPOConfig()
    pretraining: PretrainingConfig | None = None
    stages: tuple[StageConfig, ...] = ()
    """Stages between `pretraining` and the iterations that train as `algorithm` and `rewards` say."""
    rewards: tuple[RewardConfig, ...] = ()
    """The rewards of every sample that names none itself and whose task has none."""
    scoring: ScoringConfig = ScoringConfig()
    answers: AnswersConfig = AnswersConfig()
    media: MediaConfig = MediaConfig()
    data: DataConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    run: RunConfig = RunConfig()

    def staged(self, stage: StageConfig) -> TrainConfig:
        """Return the configuration that a stage trains with, by itself."""
        changed = {"algorithm": stage.algorithm, "rewards": stage.rewards}
        return self.model_copy(
            update={"stages": (), "pretraining": None} | {key: new for key, new in changed.items() if new is not None}
        )

    def drawing(self) -> tuple[PolicyConfig, SamplingConfig]:
        """The policy and the sampling of a generator.

        Raises:
            ConfigError: it is no generator that is trained.
        """
        if isinstance(self.policy, PolicyConfig) and isinstance(self.sampling, SamplingConfig):
            return self.policy, self.sampling
        raise ConfigError(f"policy.kind: {self.policy.kind} draws nothing; this is for generators (pipeline) alone")
