"""The whole configuration of a training run, with its offline stage."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, PositiveFloat, PositiveInt, Tag

from mmrl.config.algorithms.base import AlgorithmConfig
from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.algorithms.preference import DPOConfig, MPOConfig
from mmrl.config.algorithms.supervised import SFTConfig
from mmrl.config.data import AnswersConfig, DataConfig, GroupSamplingConfig, PromptsConfig
from mmrl.config.environment import EnvironmentConfig
from mmrl.config.media import MediaConfig
from mmrl.config.named_models import POLICY, NamedModelConfig, kind_of, learner_config, sampling_of
from mmrl.config.policy import AnyPolicyConfig, PolicyConfig
from mmrl.config.rewards import RewardConfig, ScoringConfig
from mmrl.config.sampling import AnySamplingConfig, SamplingConfig
from mmrl.config.section import Section, Seed, tag_of
from mmrl.config.starts import StartsConfig
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
    lr_scale: PositiveFloat = 1.0
    """The factor on the learning rate in these iterations."""


class StageDataConfig(Section):
    """The keys of `data` that a stage may change; unset: as in the run."""

    path: str | None = None
    groups: PositiveInt | None = None
    group_size: Annotated[int, Field(ge=2)] | None = None
    micro_batch: PositiveInt | None = None
    prompts: PromptsConfig | None = None
    group_sampling: GroupSamplingConfig | None = None
    starts: StartsConfig | None = None


class StageConfig(Section):
    """An earlier stage, with the sections that differ from the run's."""

    iterations: PositiveInt
    """The number of its iterations, which follow those of `pretraining` and of the stages before it."""
    once: bool = False
    """True: it has a turn in the first round alone, such as a proposer that learns to write questions at all."""
    train: str = POLICY
    """The model that learns, from its own answers or from those of samples: the policy, or a model of `models` that is
    trained, which writes one answer to each prompt."""
    lr_scale: PositiveFloat = 1.0
    """The factor on the learning rate of the model that learns, in the iterations of this stage."""
    begin: str | None = None
    """Each turn of the stage begins with the parameters of this model, such as `policy` for a next generation of it;
    the optimizer's running means stay. Unset: with those that the stage's last turn left."""
    algorithm: AlgorithmConfig | None = None
    """Unset: as in the run."""
    rewards: tuple[RewardConfig, ...] | None = None
    """Unset: as in the run. Evaluations always measure the run's."""
    data: StageDataConfig = StageDataConfig()


def _folder_name(name: str) -> str:
    """Return the name if a folder can have it; a recipe from elsewhere must not choose where its run is written."""
    if not name.strip(".") or any(mark in name for mark in "/\\{}"):
        raise ValueError("the name of a run, which is part of its folder: leave out / \\ { and }")
    return name


class TrainConfig(Section):
    """The configuration of one run of `mmrl train`."""

    name: Annotated[str, AfterValidator(_folder_name)]
    """Names the run folder and the model card: no path."""
    seed: Seed = 0
    policy: AnyPolicyConfig
    models: dict[str, NamedModelConfig] = Field(default_factory=dict)
    """Models beside the policy, by name: teachers, models that learn in `stages`, and snapshots
    (docs/several-models.md)."""
    sampling: AnySamplingConfig = SamplingConfig()
    environment: EnvironmentConfig | None = None
    """Set: a vision-language model writes several turns, which this environment answers."""
    algorithm: AlgorithmConfig = GRPOConfig()
    pretraining: PretrainingConfig | None = None
    stages: tuple[StageConfig, ...] = ()
    """Stages between `pretraining` and the iterations that train as `algorithm` and `rewards` say."""
    rounds: PositiveInt = 1
    """The number of times that all stages are gone through, one after another."""
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
        """Return the configuration that a stage trains with, by itself.

        Where it trains a model of another kind than the policy, that model is the policy in it.
        """
        learner = self if kind_of(self, stage.train) == self.policy.kind else learner_config(self, stage.train)
        data = {name: value for name, value in stage.data if value is not None}
        changed: dict[str, Any] = {"stages": (), "rounds": 1, "pretraining": None}
        changed |= {"data": learner.data.model_copy(update=data)} if data else {}
        changed |= {} if stage.algorithm is None else {"algorithm": stage.algorithm}
        changed |= {} if stage.rewards is None else {"rewards": stage.rewards}
        if stage.train != POLICY:
            changed |= {"environment": None, "sampling": sampling_of(self, stage.train)}
        return learner.model_copy(update=changed)

    @property
    def earlier_iterations(self) -> int:
        """The iterations of `pretraining` and of all rounds of `stages`, before those of the run's own sections."""
        pretraining = 0 if self.pretraining is None else self.pretraining.iterations
        return pretraining + sum(stage.iterations * self.turns(stage) for stage in self.stages)

    def turns(self, stage: StageConfig) -> int:
        """Return how often a stage has its turn."""
        return 1 if stage.once else self.rounds

    def drawing(self) -> tuple[PolicyConfig, SamplingConfig]:
        """The policy and the sampling of a generator.

        Raises:
            ConfigError: it is no generator that is trained.
        """
        if isinstance(self.policy, PolicyConfig) and isinstance(self.sampling, SamplingConfig):
            return self.policy, self.sampling
        raise ConfigError(f"policy.kind: {self.policy.kind} draws nothing; this is for generators (pipeline) alone")
