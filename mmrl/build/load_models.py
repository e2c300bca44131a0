"""Load the models beside the policy that `models` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from mmrl.build.checkpoint_pool import ModelRef, resolve_model
from mmrl.build.policies import resolve_model_path
from mmrl.build.reward_suites import Rewards
from mmrl.config.named_models import NamedModelConfig
from mmrl.config.policy import LoraConfig, PolicyConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.errors import ConfigError
from mmrl.training.learner import Learner
from mmrl.training.run_models import NamedModels

if TYPE_CHECKING:
    from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
    from mmrl.understanding.value_model import ValueModel
    from mmrl.understanding.vlm_policy import VLMPolicy


def build_models(config: TrainConfig, policy: Any) -> NamedModels:
    """Load the models of a run, and make its snapshots.

    Raises:
        ConfigError: a model cannot be loaded, or it has another tokenizer than the policy.
    """
    loaded: dict[str, Any] = {}
    critics: dict[str, ValueModel] = {}
    for name, chosen in config.models.items():
        if isinstance(config.policy, PolicyConfig):
            if chosen.model is not None:
                loaded[name] = _load_pipeline(name, chosen, config, policy)
        elif chosen.head == "value":
            critics[name] = _load_critic(name, chosen, config, policy)
        elif chosen.model is not None:
            loaded[name] = _load(name, chosen, config, policy)
    return NamedModels(policy, config.models, loaded, critics=critics)


def check_reward_models(rewards: Rewards, models: Mapping[str, Any], config: TrainConfig) -> None:
    """Raise unless the run has every model that its rewards ask.

    Raises:
        ConfigError: naming a model that is missing; or the policy writes no texts.
    """
    if rewards.models and config.policy.kind != "vlm":
        raise ConfigError(
            f"rewards: one asks a model how likely a text is, and {config.policy.kind} policies cannot say"
        )
    for name in rewards.models:
        if name not in models:
            raise ConfigError(
                f"rewards: a reward asks the model {name}, and the run has {', '.join(models)}: add it to models"
            )


def _load(name: str, chosen: NamedModelConfig, config: TrainConfig, policy: VLMPolicy) -> VLMPolicy:
    from mmrl.understanding.vlm_policy import VLMPolicy

    found, settings = _settings(name, chosen, config)
    sampling = cast(TokenSamplingConfig, config.sampling)  # that of a policy of this kind
    frozen = found.checkpoint is None and not chosen.trained
    model = VLMPolicy.from_config(settings, sampling, config.media, frozen)
    if found.checkpoint is not None:
        model.load(found.checkpoint)
        model.freeze()
    if reason := policy.vlm.differs_in_tokens(model.vlm):
        raise ConfigError(f"models.{name}: {chosen.model} cannot score what the policy writes: {reason}")
    return model


def _load_pipeline(name: str, chosen: NamedModelConfig, config: TrainConfig, policy: PipelinePolicy) -> PipelinePolicy:
    from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy

    assert chosen.model is not None
    own, sampling = config.drawing()
    found = resolve_model(chosen.model, "pipeline")
    if not isinstance(found.policy, PolicyConfig):
        raise ConfigError(f"models.{name}: {chosen.model} is of kind {found.policy.kind}, and the policy is a pipeline")
    like = own.model_dump(include={"dtype", "attention", "device", "scheduler"})
    if found.run is None:  # an adapter of rank 1, which stays 0, rather than a copy of all weights as its reference
        like |= {"revision": chosen.revision, "train": "lora", "lora": LoraConfig(rank=1, alpha=1)}
    settings = found.policy.model_copy(update=like)
    try:
        teacher = PipelinePolicy.from_config(resolve_model_path(settings), sampling)
    except ConfigError as err:
        raise ConfigError(f"models.{name}: {chosen.model} cannot teach here: {err}") from err
    if found.checkpoint is not None:
        teacher.load(found.checkpoint)
    if type(teacher.pipeline) is not type(policy.pipeline):
        raise ConfigError(
            f"models.{name}: {chosen.model} is a {type(teacher.pipeline).__name__}, and the policy a "
            f"{type(policy.pipeline).__name__}, whose calls it cannot repeat: name one of that class"
        )
    for parameter in teacher.parameters_to_train().values():
        parameter.requires_grad_(False)
    return teacher


def _load_critic(name: str, chosen: NamedModelConfig, config: TrainConfig, policy: VLMPolicy) -> ValueModel:
    from mmrl.understanding.value_model import ValueModel

    critic = ValueModel.from_config(_settings(name, chosen, config)[1])
    if reason := policy.vlm.differs_in_tokens(critic.vlm):
        raise ConfigError(f"models.{name}: {chosen.model} cannot judge what the policy writes: {reason}")
    return critic


def _settings(name: str, chosen: NamedModelConfig, config: TrainConfig) -> tuple[ModelRef, VLMConfig]:
    """Return the model that a section names, and how it is loaded beside the policy."""
    assert chosen.model is not None and isinstance(config.policy, VLMConfig)
    found = resolve_model(chosen.model, "vlm")
    like = config.policy.model_dump(include={"dtype", "attention", "fused_log_probs", "device"})
    if not isinstance(found.policy, VLMConfig):
        raise ConfigError(f"models.{name}: {chosen.model} is of kind {found.policy.kind}, and the policy is a vlm")
    if chosen.trained and found.run is not None:
        raise ConfigError(
            f"models.{name}.train: {chosen.model} is the folder of a run, whose model is scored with alone: export it "
            "first (mmrl export), and name that folder"
        )
    if chosen.trained:
        shared = ("lora", "gradient_checkpointing", "vision", "connector")  # it learns with the policy's parts
        like |= {**{key: getattr(config.policy, key) for key in shared}, "train": chosen.train}
    settings = found.policy.model_copy(update=like)
    if found.run is None:
        settings = settings.model_copy(update={"revision": chosen.revision})
    return found, resolve_model_path(settings)


def build_learners(config: TrainConfig, models: NamedModels) -> dict[str, Learner]:
    """Return the models beside the policy that are trained, by name, with their optimizers."""
    found: dict[str, Learner] = {}
    for name, chosen in config.models.items():
        if chosen.trained:
            model = models.critics[name] if name in models.critics else models[name].policy
            found[name] = Learner(model, chosen.optimizer or config.optimizer, config.policy.dtype)
    return found
