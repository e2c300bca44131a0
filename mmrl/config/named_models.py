"""The key `models`: models beside the policy, by name, which score, teach, answer, and may be trained in stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from mmrl.config.section import Section
from mmrl.config.training import OptimizerConfig

if TYPE_CHECKING:
    from mmrl.config.train import TrainConfig

POLICY = "policy"
"""The name of the policy itself, as it is now, among the models that rewards may ask."""


class NamedModelConfig(Section):
    """A model beside the policy: another one, frozen or trained, or a snapshot of one that is trained."""

    model: str | None = None
    """A folder, a Hugging Face id, a name as in `policy.model`, or the folder of a run, whose last checkpoint it is
    (`RUN@best` is its best one). It has the policy's tokenizer and is of its family, and may be larger."""
    revision: str | None = None
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
    head: Literal["text", "value"] = "text"
    """`value`: a critic, which estimates the reward that is still to come before each token (`algorithm: {name: ppo}`).
    Its language model is that of `model`, with one output, which begins at 0."""
    optimizer: OptimizerConfig | None = None
    """The optimizer of a trained model; unset: the run's."""

    @model_validator(mode="after")
    def _is_a_model_or_a_snapshot(self) -> NamedModelConfig:
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
        if self.optimizer is not None and not self.trained:
            raise ValueError("an optimizer of a trained model alone: set train to lora or full, or leave it out")
        return self

    @property
    def trained(self) -> bool:
        """True if the model is trained in this run."""
        return self.train != "none"

    @property
    def changes(self) -> bool:
        """True if the model is a snapshot that follows another."""
        return self.every is not None or self.ema is not None


def trained_names(config: TrainConfig) -> list[str]:
    """Return the names of the models that a stage may train: the policy, and trained models that write text."""
    return [POLICY, *(name for name, model in config.models.items() if model.trained and model.head == "text")]


def model_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each setting of `models` that cannot work with the rest of `config`."""
    if not config.models:
        return
    if POLICY in config.models:
        yield f"models.{POLICY}: this is the name of the policy itself: choose another name"
    if config.policy.kind == "image_tokens":
        yield "models: policies of kind image_tokens have no models beside them: leave it out"
    for name, model in config.models.items():
        if config.policy.kind == "pipeline" and model.trained:
            yield f"models.{name}.train: pipelines beside the policy are teachers, and are not trained: leave it out"
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


def untrained_errors(config: TrainConfig) -> Iterator[str]:
    """Yield one message for each model that is to be trained and is not, by any stage of the whole run."""
    learning = {stage.train for stage in config.stages}
    algorithms = [config.algorithm, *(stage.algorithm for stage in config.stages)]
    critics = {getattr(algorithm, "critic", None) for algorithm in algorithms}
    for name, model in config.models.items():
        if model.head == "value" and name not in critics:
            yield f"models.{name}.head: no algorithm has {name} as its critic: choose ppo, or leave it out"
        elif model.head == "text" and model.trained and name not in learning:
            yield f"models.{name}.train: no stage trains it: name it in stages.N.train, or leave train out"
