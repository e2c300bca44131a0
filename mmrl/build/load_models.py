"""Load the models beside the policy that `models` names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from safetensors.torch import load_file

from mmrl.build.model_references import ModelRef, resolve_model
from mmrl.build.policies import build_policy, resolve_model_path, without_exploration
from mmrl.build.reward_suites import Rewards
from mmrl.config.named_models import POLICY, NamedModelConfig, kind_of, other_policy, sampling_of
from mmrl.config.policy import FROZEN, ImageTokenConfig, PolicyConfig, VLMConfig
from mmrl.config.sampling import ImageTokenSamplingConfig, SamplingConfig, TokenSamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.errors import ConfigError, UnsupportedError
from mmrl.policy import Capability
from mmrl.training.learner import Learner
from mmrl.training.offloaded_weights import OffloadedWeights
from mmrl.training.run_models import NamedModels

if TYPE_CHECKING:
    from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
    from mmrl.generation.image_tokens.image_token_policy import ImageTokenPolicy
    from mmrl.generation.image_tokens.picture_decoder import TrainedNetwork
    from mmrl.understanding.value_model import ValueModel
    from mmrl.understanding.vlm_policy import VLMPolicy


def build_models(config: TrainConfig, policy: Any) -> NamedModels:
    """Load the models of a run, and make its snapshots.

    Raises:
        ConfigError: a model cannot be loaded, or it has another tokenizer than the policy.
    """
    loaded: dict[str, Any] = {}
    critics: dict[str, ValueModel] = {}
    parts: dict[str, TrainedNetwork] = {}
    for name, chosen in config.models.items():
        if chosen.of_codec:
            parts[name] = _part_of_codec(chosen, policy)
        if chosen.shares:
            loaded[name] = _drawing_policy(name, config, policy)
        if chosen.model is None:
            continue
        if kind_of(config, name) != config.policy.kind:
            loaded[name] = load_other(name, chosen, config)
        elif isinstance(config.policy, PolicyConfig):
            loaded[name] = _load_pipeline(name, chosen, config, policy)
        elif chosen.head == "value":
            critics[name] = _load_critic(name, chosen, config, policy)
        else:
            loaded[name] = _load(name, chosen, config, policy)
    texts = {name: model.head == "text" for name, model in config.models.items()}
    drawn = [name for name in (POLICY, *config.models) if texts.get(name, True) and kind_of(config, name) != "vlm"]
    sampling = {name: without_exploration(sampling_of(config, name)) for name in drawn}
    offloaded = {n: OffloadedWeights(each.networks()) for n, each in loaded.items() if config.models[n].offload}
    return NamedModels(
        policy, config.models, loaded, critics=critics, parts=parts, drawing=sampling, offloaded=offloaded
    )


def check_reward_models(rewards: Rewards, models: NamedModels, overlaps: bool = False) -> None:
    """Raise unless the run has every model that its rewards ask.

    `overlaps`: a thread samples and scores answers while the policy is updated.

    Raises:
        ConfigError: naming a model that is missing, or that draws where a text is needed, or the other way round; or
            one that an update changes while it scores.
    """
    for name in rewards.models:
        if overlaps:
            raise ConfigError(
                f"run.overlap: a reward asks the model {name} about answers while it is updated, so that no run could "
                "be repeated: leave run.overlap out, or choose another reward"
            )
        if name not in models:
            raise ConfigError(
                f"rewards: a reward asks the model {name}, and the run has {', '.join(models)}: add it to models"
            )
        if name in rewards.painters and name not in models.painters:
            raise ConfigError(
                f"rewards: a reward asks the model {name} for a picture, and it draws none: name one of kind pipeline "
                "or image_tokens"
            )
        if name in rewards.denoisers:
            _check_denoiser(name, models)
        elif name not in rewards.painters and name not in models.scorers:
            raise ConfigError(
                f"rewards: a reward asks the model {name} how likely a text is, and it cannot say: name one of kind vlm"
            )


def _check_denoiser(name: str, models: NamedModels) -> None:
    if name not in models.painters or Capability.ENCODE_MEDIA not in models[name].policy.capabilities:
        raise ConfigError(
            f"rewards: a reward asks the model {name} for velocities, and it has none: name one of kind pipeline"
        )
    try:
        cast(Any, models[name].policy).check_encoder()
    except UnsupportedError as err:
        raise ConfigError(f"rewards: a reward asks the model {name} for the velocities of a picture: {err}") from err


def _drawing_policy(name: str, config: TrainConfig, policy: VLMPolicy) -> ImageTokenPolicy:
    """Return the policy as the one that draws, with the same weights; where both learn, each trains what all need."""
    from mmrl.generation.image_tokens.image_token_policy import ImageTokenPolicy, drawing_model

    try:
        image_model = drawing_model(policy.vlm.model, policy.vlm.processor)
    except ConfigError as err:
        raise ConfigError(f"models.{name}.shares: {err}") from err
    trainable = policy.train_also(image_model.is_trainable) if config.models[name].trained else policy.trainable
    settings = cast(ImageTokenConfig, other_policy(config, name))
    return ImageTokenPolicy(image_model, settings, cast(ImageTokenSamplingConfig, sampling_of(config, name)), trainable)


def load_other(name: str, chosen: NamedModelConfig, config: TrainConfig) -> Any:
    """Return a model of another kind than the policy, which shares neither tokens nor calls with it.

    Raises:
        ConfigError: it cannot be loaded, or is of another kind than its section says.
    """
    found = resolve_model(str(chosen.model), cast(Any, kind_of(config, name)))
    settings = other_policy(config, name)
    if found.policy.kind != settings.kind:
        raise ConfigError(f"models.{name}: {chosen.model} is of kind {found.policy.kind}, not {settings.kind}")
    if found.run is not None:
        if chosen.trained:
            raise ConfigError(_of_a_run(name, chosen))
        settings = found.policy.model_copy(update={"dtype": settings.dtype, "device": settings.device})
    try:
        model: Any = build_policy(settings, sampling_of(config, name), config.media)
    except ConfigError as err:
        raise ConfigError(f"models.{name}: {err}") from err
    if found.checkpoint is not None:
        model.load(found.checkpoint)
    if not chosen.trained:
        for parameter in model.parameters_to_train().values():
            parameter.requires_grad_(False)
    return model


def _of_a_run(name: str, chosen: NamedModelConfig) -> str:
    return (
        f"models.{name}.train: {chosen.model} is the folder of a run, whose model is scored with alone: export it "
        "first (mmrl export), and name that folder"
    )


def _load(name: str, chosen: NamedModelConfig, config: TrainConfig, policy: VLMPolicy) -> VLMPolicy:
    from mmrl.understanding.vlm_policy import VLMPolicy

    found, settings = _settings(name, chosen, config)
    sampling = cast(TokenSamplingConfig, sampling_of(config, name))  # that of a model of this kind
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
    own, sampling = config.drawing()[0], cast(SamplingConfig, sampling_of(config, name))
    found = resolve_model(chosen.model, "pipeline")
    if not isinstance(found.policy, PolicyConfig):
        raise ConfigError(f"models.{name}: {chosen.model} is of kind {found.policy.kind}, and the policy is a pipeline")
    like = own.model_dump(include={"dtype", "attention", "device", "scheduler"})
    if found.run is None:
        like |= {"revision": chosen.revision, "train": "lora", "lora": FROZEN}
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


def _part_of_codec(chosen: NamedModelConfig, policy: ImageTokenPolicy) -> TrainedNetwork:
    """Return the decoder of the policy's codec, or a new discriminator of its pictures."""
    from mmrl.generation.image_tokens.picture_decoder import PictureDecoder, PictureDiscriminator

    if chosen.head == "pixels":
        return PictureDecoder(policy.image_model)
    return PictureDiscriminator(chosen.width or 64, policy.device)


def _settings(name: str, chosen: NamedModelConfig, config: TrainConfig) -> tuple[ModelRef, VLMConfig]:
    """Return the model that a section names, and how it is loaded beside the policy."""
    assert chosen.model is not None and isinstance(config.policy, VLMConfig)
    found = resolve_model(chosen.model, "vlm")
    like = config.policy.model_dump(include={"dtype", "attention", "fused_log_probs", "device"})
    if not isinstance(found.policy, VLMConfig):
        raise ConfigError(f"models.{name}: {chosen.model} is of kind {found.policy.kind}, and the policy is a vlm")
    if chosen.trained and found.run is not None:
        raise ConfigError(_of_a_run(name, chosen))
    if chosen.trained:
        shared = ("gradient_checkpointing", "vision", "connector")  # it learns with the policy's parts
        like |= {key: getattr(config.policy, key) for key in shared}
        like |= {"lora": chosen.lora or config.policy.lora, "train": chosen.train}
    settings = found.policy.model_copy(update=like)
    if found.run is None:
        settings = settings.model_copy(update={"revision": chosen.revision})
    return found, resolve_model_path(settings)


def build_learners(config: TrainConfig, models: NamedModels) -> dict[str, Learner]:
    """Return the models beside the policy that are trained, by name, with their optimizers."""
    found: dict[str, Learner] = {}
    for name, chosen in config.models.items():
        if chosen.trained:
            apart = {**models.critics, **models.parts}
            model = apart[name] if name in apart else models[name].policy
            kind = sampling_of(config, name).kind
            found[name] = Learner(model, chosen.optimizer or config.optimizer, config.policy.dtype, kind)
    return found


def load_trained(config: TrainConfig, policy: Any, models: NamedModels, checkpoint: Path) -> None:
    """Load what a checkpoint holds of the policy, of the models beside it that the run trained, and of snapshots."""
    policy.load(checkpoint)
    for name, chosen in config.models.items():
        if chosen.trained and name not in models.critics and name not in models.parts:
            cast(Any, models[name].policy).load(checkpoint / "models" / name)
    if (snapshots := checkpoint / "trainer" / "models.safetensors").is_file():
        models.load_state_dict(load_file(snapshots))
