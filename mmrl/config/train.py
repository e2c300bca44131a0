"""The whole configuration of a training run."""

from __future__ import annotations

from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.answers import AnswersConfig
from mmrl.config.data import DataConfig
from mmrl.config.media import MediaConfig
from mmrl.config.optimizer import OptimizerConfig
from mmrl.config.policy import AnyPolicyConfig, PolicyConfig
from mmrl.config.pretraining import PretrainingConfig
from mmrl.config.rewards import RewardConfig, ScoringConfig
from mmrl.config.sampling import AnySamplingConfig, SamplingConfig
from mmrl.config.section import Section
from mmrl.config.training import EvaluationConfig, RunConfig, TrainingConfig
from mmrl.errors import ConfigError


class TrainConfig(Section):
    """The configuration of one run of `mmrl train`."""

    name: str
    """Names the run folder and the model card."""
    seed: int = 0
    policy: AnyPolicyConfig
    sampling: AnySamplingConfig = SamplingConfig()
    algorithm: AlgorithmConfig = GRPOConfig()
    pretraining: PretrainingConfig | None = None
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

    def drawing(self) -> tuple[PolicyConfig, SamplingConfig]:
        """The policy and the sampling of a generator.

        Raises:
            ConfigError: it is no generator that is trained.
        """
        if isinstance(self.policy, PolicyConfig) and isinstance(self.sampling, SamplingConfig):
            return self.policy, self.sampling
        raise ConfigError(f"policy.kind: {self.policy.kind} draws nothing; this is for generators (pipeline) alone")
