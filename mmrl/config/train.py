"""The whole configuration of a training run."""

from __future__ import annotations

from mmrl.config.algorithm import AlgorithmConfig, GRPOConfig
from mmrl.config.data import DataConfig
from mmrl.config.optimizer import OptimizerConfig
from mmrl.config.policy import PolicyConfig
from mmrl.config.rewards import RewardConfig, ScoringConfig
from mmrl.config.sampling import SamplingConfig
from mmrl.config.section import Section
from mmrl.config.training import EvaluationConfig, RunConfig, TrainingConfig


class TrainConfig(Section):
    """One run of `mmrl train`."""

    name: str
    """Names the run folder and the model card."""
    seed: int = 0
    policy: PolicyConfig
    sampling: SamplingConfig = SamplingConfig()
    algorithm: AlgorithmConfig = GRPOConfig()
    rewards: tuple[RewardConfig, ...]
    scoring: ScoringConfig = ScoringConfig()
    data: DataConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    run: RunConfig = RunConfig()
