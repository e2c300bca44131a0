"""Models beside the policy: teachers that never change, models that learn in stages, and snapshots of those.

A snapshot shares the weights of its model and keeps a copy of the trained parameters, which is exchanged with them
while it computes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from mmrl.config.named_models import POLICY, NamedModelConfig
from mmrl.config.sampling import AnySamplingConfig
from mmrl.distributed.layout import layout_of
from mmrl.errors import ConfigError
from mmrl.nested_state import state_of_part
from mmrl.policy import Capability
from mmrl.rewards.core.picture_drawing import PictureModel
from mmrl.rewards.core.text_scoring import TextModel
from mmrl.trained_models import Critic, TrainedModel
from mmrl.training.ema import ParameterCopy
from mmrl.training.model_handles import ROWS, ModelHandle, PainterHandle
from mmrl.training.named_model import AnsweringPolicy, NamedModel
from mmrl.training.offloaded_weights import OffloadedWeights


class Snapshot:
    """A copy of a model's trained parameters that follows them."""

    def __init__(self, policy: AnsweringPolicy, config: NamedModelConfig) -> None:
        self._copy = ParameterCopy(policy.parameters_to_train(), layout_of(policy), used_in_batches=True)
        self._every, self._decay = config.every or 1, config.ema or 0.0
        self.model = NamedModel(policy, self._copy.in_place)

    def finish_iteration(self, iterations: int) -> None:
        """Follow the model if it is time; `iterations` are those that are finished."""
        if iterations % self._every == 0:
            self._copy.follow(self._decay)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the copy by the names of parameters."""
        return self._copy.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._copy.load_state_dict(state)


class NamedModels(Mapping[str, NamedModel]):
    """The models of a run by name, the policy as it is now among them."""

    def __init__(
        self,
        policy: AnsweringPolicy,
        configured: Mapping[str, NamedModelConfig],
        loaded: Mapping[str, AnsweringPolicy],
        rows: int = ROWS,
        critics: Mapping[str, Critic] | None = None,
        parts: Mapping[str, TrainedModel] | None = None,
        drawing: Mapping[str, AnySamplingConfig] | None = None,
        offloaded: Mapping[str, OffloadedWeights] | None = None,
    ) -> None:
        """
        Args:
            policy: the policy.
            configured: the section `models`.
            loaded: the other models of it, by name.
            rows: texts that a model scores or writes in one call for a reward.
            critics: the critics among `configured`, by name; they are no models that write or score.
            parts: the trained parts of the policy's codec among `configured`, by name.
            drawing: how each model that draws does it for others, by name.
            offloaded: the weights of those among `loaded` that lie in the CPU's memory between uses, by name.
        """
        self.critics: Mapping[str, Critic] = critics or {}
        self.parts: Mapping[str, TrainedModel] = parts or {}
        resting = offloaded or {}
        self._models = {POLICY: NamedModel(policy)} | {
            name: NamedModel.of_offloaded(other, resting[name]) if name in resting else NamedModel(other)
            for name, other in loaded.items()
        }
        self._snapshots: dict[str, Snapshot] = {}
        for name, config in configured.items():
            if config.of is None:
                continue
            followed = self._models[config.of].policy
            if config.changes:
                self._snapshots[name] = Snapshot(followed, config)
                self._models[name] = self._snapshots[name].model
            else:
                self._models[name] = NamedModel(followed, followed.reference)
        lock = threading.Lock()
        self.scorers: Mapping[str, TextModel] = {
            name: ModelHandle(model, lock, rows)
            for name, model in self._models.items()
            if Capability.TEACHER_FORCE in model.policy.capabilities and name not in (drawing or {})
        }
        """The models that write texts, as rewards see them."""
        self.painters: Mapping[str, PictureModel] = {
            name: PainterHandle(self._models[name], lock, rows, sampling) for name, sampling in (drawing or {}).items()
        }
        """The models that draw, as rewards see them."""
        self.handles: Mapping[str, TextModel | PictureModel] = {**self.scorers, **self.painters}
        """The models of both kinds."""

    def __getitem__(self, name: str) -> NamedModel:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def copy(self, source: str, target: str) -> None:
        """Give the trained parameters of one model the values of another's, whose names and shapes are the same.

        Raises:
            ConfigError: the two have other trained parameters.
        """
        model, parameters = self._models[source], self._models[target].policy.parameters_to_train()
        with model.weights(), torch.no_grad():
            values = {name: each.detach().clone() for name, each in model.policy.parameters_to_train().items()}
        if {name: each.shape for name, each in values.items()} != {name: p.shape for name, p in parameters.items()}:
            raise ConfigError(
                f"stages: {target} cannot begin as {source}, which trains other parameters: give both the same model, "
                "and train both alike"
            )
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(values[name])

    def release(self) -> None:
        """Free the device's copies of all offloaded weights; at the end of each phase of an iteration."""
        for model in self._models.values():
            model.release()

    def finish_iteration(self, iterations: int) -> None:
        """Let snapshots follow their models; `iterations` are those that are finished."""
        for snapshot in self._snapshots.values():
            snapshot.finish_iteration(iterations)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors of all snapshots, by the name of the snapshot and of the parameter."""
        return {
            f"{name}/{parameter}": tensor
            for name, snapshot in self._snapshots.items()
            for parameter, tensor in snapshot.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue exactly where `state_dict` was taken."""
        for name, snapshot in self._snapshots.items():
            snapshot.load_state_dict(state_of_part(state, f"{name}/"))
