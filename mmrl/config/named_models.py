"""The key `models`: models beside the policy, by name, which score, teach, answer, and may be trained in stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveInt, model_validator

from mmrl.config.policy import FROZEN, AnyPolicyConfig, ImageTokenConfig, LoraConfig, PolicyConfig, VLMConfig
from mmrl.config.sampling import (
    SAMPLING_OF,
    AnySamplingConfig,
    ImageTokenSamplingConfig,
    SamplingConfig,
    TokenSamplingConfig,
)
from mmrl.config.section import Section
from mmrl.config.training import EvaluationConfig, OptimizerConfig

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig

POLICY = "policy"
"""The name of the policy itself, as it is now, among the models that rewards may ask."""

ModelKind = Literal["pipeline", "vlm", "image_tokens"]


class NamedModelConfig(Section):
    """A model beside the policy: another one, frozen or trained, or a snapshot of one that is trained."""

    model: str | None = None
    """A folder, a Hugging Face id, a name as in `policy.model`, or the folder of a run, whose last checkpoint it is
    (`RUN@best` is its best one). It has the policy's tokenizer and is of its family, and may be larger."""
    revision: str | None = None
    kind: ModelKind | None = None
    """Unset: that of the policy. `vlm` beside a pipeline writes texts for it, and `pipeline` or `image_tokens` beside a
    vision-language model draws for it; such a model needs no tokenizer or class in common with the policy."""
    shares: Literal["policy"] | None = None
    """`policy`: the model has the policy's weights and draws with them. The policy is a unified model, such as Janus,
    and what either learns changes both. `kind` is `image_tokens`."""
    sampling: AnySamplingConfig | None = None
    """The sampler of the model; unset: the run's if the policy is of its kind, else the default."""
    of: str | None = None
    """Set: a snapshot of the policy (`policy`) or of another trained model, by name. Without `every` and `ema`, it is
    that model as training began."""
    every: PositiveInt | None = None
    """The snapshot is renewed after each this many iterations; unset: after each one, with `ema`."""
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The snapshot is a moving average: ema times itself plus 1 - ema times its model. Unset: that model itself."""
    train: Literal["none", "lora", "full"] = "none"
    """`none`: the model is frozen. `lora` and `full`, as in `policy.train`: it has an optimizer and a reference of its
    own, and `stages` name it where it learns."""
    lora: LoraConfig | None = None
    """The adapters of a model that is trained with `lora`; unset: those of the policy, if it is of the same kind."""
    head: Literal["text", "value", "pixels", "discriminator"] = "text"
    """`value`: a critic, which estimates the reward that is still to come before each token (`algorithm: {name: ppo}`).
    Its language model is that of `model`, with one output, which begins at 0. `pixels`: the decoder of the policy's own
    codec, for a policy of image tokens. `discriminator`: a network that tells true pictures from that decoder's."""
    width: PositiveInt | None = None
    """The filters of a discriminator's first layer; unset: 64."""
    optimizer: OptimizerConfig | None = None
    """The optimizer of a trained model; unset: the run's."""
    offload: bool = False
    """True: the weights of a frozen model lie in the CPU's memory, and are on the device only while it writes, draws
    or scores: never while the policy samples, nor while an update has activations in memory."""

    @model_validator(mode="after")
    def _is_a_model_or_a_snapshot(self) -> NamedModelConfig:
        if self.width is not None and self.head != "discriminator":
            raise ValueError("width of a discriminator alone: leave it out")
        if self.of_codec:
            of_others = ("model", "revision", "kind", "sampling", "of", "every", "ema", "offload")
            named = [key for key in of_others if getattr(self, key)]
            if named or self.train != "full":
                raise ValueError(
                    f"head: {self.head} is of the policy's own codec: set train to full, and leave "
                    f"{', '.join(named) or 'the rest'} out"
                )
            return self
        if self.shares is not None:
            own = ("model", "revision", "of", "every", "ema", "lora", "offload")
            named = [key for key in own if getattr(self, key)]
            if named or self.kind != "image_tokens" or self.head != "text":
                raise ValueError(
                    "shares: policy is the policy that draws: set kind to image_tokens, and leave "
                    f"{', '.join(named) or 'head'} out"
                )
            return self._with_own_optimizer()
        if (self.model is None) == (self.of is None):
            raise ValueError("either model, the name of another model, or of: policy, for a snapshot")
        if self.of is None and (self.every is not None or self.ema is not None):
            raise ValueError("every and ema of a snapshot (of: policy) alone: another model never changes")
        if self.of is not None and self.revision is not None:
            raise ValueError("no revision of a snapshot: it is its model's own")
        if self.of is not None and self.trained:
            raise ValueError("a snapshot (of) follows a model and is not trained itself: leave train out")
        if self.head == "value" and (self.model is None or not self.trained):
            raise ValueError("head: value is for another model that is trained: set model, and train to lora or full")
        if self.offload and (self.of is not None or self.trained):
            raise ValueError(
                "offload of a frozen model alone: a snapshot shares the weights of its model, and those of a trained "
                "one change: leave it out"
            )
        if self.of is not None and (self.kind is not None or self.sampling is not None):
            raise ValueError("a snapshot (of) is of its model's kind and samples as that does: leave both out")
        if self.lora is not None and self.train != "lora":
            raise ValueError("adapters of a model that is trained with lora alone: set train, or leave lora out")
        return self._with_own_optimizer()

    def _with_own_optimizer(self) -> NamedModelConfig:
        if self.optimizer is not None and not self.trained:
            raise ValueError("an optimizer of a trained model alone: set train to lora or full, or leave it out")
        return self

    @property
    def trained(self) -> bool:
        """True if the model is trained in this run."""
        return self.train != "none"

    @property
    def of_codec(self) -> bool:
        """True if the model belongs to the policy's codec of images: its decoder, or the discriminator of that."""
        return self.head in ("pixels", "discriminator")

    @property
    def changes(self) -> bool:
        """True if the model is a snapshot that follows another."""
        return self.every is not None or self.ema is not None


def trained_names(config: TrainConfig) -> list[str]:
    """Return the names of the models that a stage may train: the policy, and trained models that write or draw."""
    return [POLICY, *(name for name, model in config.models.items() if model.trained and model.head == "text")]


def _followed(config: TrainConfig, name: str) -> NamedModelConfig | None:
    """Return the section of a model of the run, of a snapshot that of its model; None: it is the policy.

    Snapshots follow no snapshots, which `model_errors` refuses.
    """
    model = config.models.get(name)
    if model is not None and model.of is not None:
        model = config.models.get(model.of)
    return None if model is None or model.of is not None else model


def kind_of(config: TrainConfig, name: str) -> str:
    """Return the kind of a model of the run; a snapshot has that of its model."""
    model = _followed(config, name)
    return config.policy.kind if model is None else model.kind or config.policy.kind


def sampling_of(config: TrainConfig, name: str) -> AnySamplingConfig:
    """Return how a model of the run writes or draws, in training; a snapshot does it as its model."""
    model = _followed(config, name)
    kind = kind_of(config, name)
    if model is not None and model.sampling is not None:
        return model.sampling
    if kind == config.policy.kind:
        return config.sampling
    if kind == "image_tokens":
        return ImageTokenSamplingConfig()
    return SamplingConfig() if kind == "pipeline" else TokenSamplingConfig()


def other_policy(config: TrainConfig, name: str) -> AnyPolicyConfig:
    """Return the section `policy` with which a model of another kind than the policy is loaded.

    A frozen pipeline has an adapter of rank 1, which stays 0, in the place of a copy of all weights as its reference.
    """
    model = config.models[name]
    source = config.policy if model.shares else model
    assert source.model is not None
    shared: dict[str, Any] = {"model": source.model, "revision": source.revision}
    shared |= {"dtype": config.policy.dtype, "device": config.policy.device}
    if model.trained:
        shared |= {"train": model.train, "lora": model.lora or LoraConfig()}
    if kind_of(config, name) == "vlm":
        return VLMConfig(**shared)
    if kind_of(config, name) == "image_tokens":
        if model.shares:
            of_body = ("attention", "fused_log_probs", "gradient_checkpointing")
            shared |= {key: getattr(config.policy, key) for key in of_body}
        return ImageTokenConfig(**shared)
    return PolicyConfig(**({"lora": FROZEN} | shared))


def learner_config(config: TrainConfig, name: str) -> TrainConfig:
    """Return the configuration in which a model of another kind is the policy, and the policy one of its `models`.

    Evaluations measure the policy of the run, so there are none here; keys of `data` that are about answers in text,
    prompts that are written for the policy, and servers are left out.
    """
    of_texts = ("replay", "demonstrations", "starts", "turn_filter", "token_budget", "controller")
    answers: dict[str, Any] = dict.fromkeys(of_texts)
    if config.data.prompts.name == "written":  # for the policy
        answers["prompts"] = type(config.data).model_fields["prompts"].default
    unmeasured = {"validation": None, "heldout": None}
    models = {
        each: model if model.of else model.model_copy(update={"kind": kind_of(config, each)})
        for each, model in config.models.items()
    }
    own = NamedModelConfig(model=config.policy.model, kind=config.policy.kind)
    return config.model_copy(
        update={
            "policy": other_policy(config, name),
            "sampling": sampling_of(config, name),
            "models": {**models, POLICY: own},
            "data": config.data.model_copy(update=answers | unmeasured),
            "evaluation": EvaluationConfig(),
            "training": config.training.model_copy(update={"max_tokens": None, "max_kl": None}),
            "run": config.run.model_copy(update={"servers": None}),
            "environment": None,
        }
    )


def missing_model_errors(config: TrainConfig, key: str, name: str) -> Iterator[str]:
    """Yield a message unless `models` has a model of this name, which `key` asks for."""
    if name not in config.models:
        known = ", ".join(config.models) or "it is empty"
        yield f"{key}: there is no model {name} in models ({known}): name one there"


def model_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each setting of `models` that cannot work with the rest of `config`."""
    if not config.models or POLICY in config.models:  # `learner_config`: the run's own were checked
        return
    if config.policy.kind == "image_tokens" and not all(model.of_codec for model in config.models.values()):
        yield (
            "models: policies of kind image_tokens have no models beside them but the decoder of their codec and its "
            "discriminator (head): leave the others out"
        )
    for name, model in config.models.items():
        kind = kind_of(config, name)
        if kind == config.policy.kind == "pipeline" and model.trained:
            yield (
                f"models.{name}.train: pipelines beside a pipeline are teachers, and are not trained: leave it out, or "
                "let a vision-language model be the policy"
            )
        if model.of_codec and config.policy.kind != "image_tokens":
            yield f"models.{name}.head: {model.head} is of the codec of a policy of kind image_tokens: leave it out"
        if model.head == "value" and (kind != "vlm" or config.policy.kind != "vlm"):
            yield f"models.{name}.head: a critic estimates the rewards of texts, of a policy of kind vlm: leave it out"
        if model.shares and config.policy.kind != "vlm":
            yield f"models.{name}.shares: a unified model draws beside a policy of kind vlm, which answers: set that"
        elif model.shares and model.trained:
            yield from _shared_training_errors(config, name, model)
        if model.sampling is not None and model.sampling.kind != SAMPLING_OF[kind]:
            yield f"models.{name}.sampling.kind: a model of kind {kind} has {SAMPLING_OF[kind]}"
    if config.run.overlap.is_on:
        yield "models: snapshots are taken between iterations, which run.overlap does not separate: take lag 0"
    trained = trained_names(config)
    for name, model in config.models.items():
        if model.of is not None and model.of not in trained:
            yield f"models.{name}.of: {model.of} is not trained here; snapshots follow {' or '.join(trained)}"
        chosen = model.optimizer or config.optimizer
        if model.trained and chosen.schedule != "constant":
            yield (
                f"models.{name}.optimizer.schedule: {chosen.schedule} ends with the run, and this model learns in some "
                "of its iterations: choose constant"
            )


def _shared_training_errors(config: TrainConfig, name: str, model: NamedModelConfig) -> Iterator[str]:
    """Yield one message for each setting that does not suit weights which two models of the run train."""
    if model.train != config.policy.train:
        yield f"models.{name}.train: the policy trains these weights with {config.policy.train}: choose that, or none"
    if any(each is not None and each.ema is not None for each in (config.optimizer, model.optimizer)):
        yield f"models.{name}.shares: a moving average follows the updates of one of the two: leave optimizer.ema out"
    if config.run.servers is not None:
        yield f"models.{name}.shares: servers have the weights of the policy's own updates: leave run.servers out"


def untrained_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each model that is to be trained and is not, by any stage of the whole run.

    Also for a model with the name of the policy.
    """
    if POLICY in config.models:
        yield f"models.{POLICY}: this is the name of the policy itself: choose another name"
    algorithms = [config.algorithm, *(stage.algorithm for stage in config.stages)]
    if config.pretraining is not None:
        algorithms.append(config.pretraining.algorithm)
    learning = {stage.train for stage in config.stages} | {getattr(each, "painter", None) for each in algorithms}
    critics = {getattr(algorithm, "critic", None) for algorithm in algorithms}
    parts = {getattr(algorithm, key, None) for algorithm in algorithms for key in ("decoder", "discriminator")}
    for name, model in config.models.items():
        if model.head == "value" and name not in critics:
            yield f"models.{name}.head: no algorithm has {name} as its critic: choose ppo, or leave it out"
        elif model.of_codec and name not in parts:
            yield f"models.{name}.head: no algorithm trains {name}: choose ranke, or leave it out"
        elif model.head == "text" and model.trained and name not in learning:
            yield f"models.{name}.train: no stage trains it: name it in stages.N.train, or leave train out"
