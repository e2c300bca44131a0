"""Models beside the policy: teachers that never change, models that learn in stages, and snapshots of those.

A snapshot shares the weights of its model and keeps a copy of the trained parameters, which is exchanged with them
while it computes. `ModelHandle` and, of models that draw, `PainterHandle` are what rewards see of a model
(`RewardContext.models`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmrl.config.named_models import POLICY, NamedModelConfig
from mmrl.config.sampling import AnySamplingConfig
from mmrl.data.sample import Sample
from mmrl.distributed.layout import layout_of
from mmrl.errors import ConfigError
from mmrl.nested_state import state_of_part
from mmrl.policy import (
    Capability,
    DecisionCallback,
    Rollout,
    RolloutRequest,
    TargetText,
    TeacherForcingPolicy,
    batch_requests,
)
from mmrl.rewards.core.picture_drawing import PictureModel
from mmrl.rewards.core.text_scoring import TextModel, TextQuery
from mmrl.seeds import fold_in
from mmrl.trained_models import Critic, TrainedModel
from mmrl.training.ema import ParameterCopy
from mmrl.training.objectives.replay_passes import replayed_log_probs
from mmrl.training.offloaded_weights import OffloadedWeights

ROWS = 128
"""Texts that a model scores in one call, unless the run says otherwise."""


class AnsweringPolicy(TeacherForcingPolicy, Protocol):
    """A policy that writes texts, of one turn or of several."""

    def answering(self) -> AbstractContextManager[None]:
        """Return a context in which rollouts are one answer to each prompt, as without an environment."""


@dataclass(frozen=True)
class NamedModel:
    """A model that answers prompts, and scores what the policy wrote or any text, without gradients."""

    policy: AnsweringPolicy
    weights: Callable[[], AbstractContextManager[Any]] = nullcontext
    """A context in which `policy` computes with the parameters of this model."""
    offloaded: OffloadedWeights | None = None
    """The weights, if they lie in the CPU's memory between uses; `weights` then loads them."""

    @classmethod
    def of_offloaded(cls, policy: AnsweringPolicy, offloaded: OffloadedWeights) -> NamedModel:
        """Return a model whose weights are loaded when it computes, and stay until `release`."""
        return cls(policy, offloaded.in_use, offloaded)

    def release(self) -> None:
        """Free the device's copy of offloaded weights."""
        if self.offloaded is not None:
            self.offloaded.release()

    def score_targets(self, targets: Sequence[TargetText]) -> Rollout:
        """Return a rollout of texts with their log-probabilities under this model."""
        with torch.no_grad(), self.weights():
            return self.policy.score_targets(targets)

    def answers(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        """Return a rollout of one answer for each request, also where the model plays in an environment."""
        with self.weights(), self.policy.answering():
            return self.policy.rollout(requests, seed)

    def draw(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        """Return a rollout of pictures; the model is one that draws."""
        with self.weights():
            return self.policy.rollout(requests, seed)

    def replay(self, rollout: Rollout, step_indices: Sequence[int], visit: DecisionCallback) -> None:
        """Replay decisions of the policy's own rollout under this model, without gradients."""
        with torch.no_grad(), self.weights():
            self.policy.replay(rollout, step_indices, visit)

    def log_probs(self, rollout: Rollout, step_indices: Sequence[int]) -> Tensor:
        """Return [B, K] float32, the log-probabilities of K decisions of the policy's own rollout under this model."""
        with self.weights():
            return replayed_log_probs(self.policy, rollout, step_indices)


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
            if Capability.TEACHER_FORCE in model.policy.capabilities
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


class ModelHandle:
    """A model as rewards see it: it scores and writes in calls of some rows, one call at a time in the whole run."""

    def __init__(self, model: NamedModel, lock: threading.Lock, rows: int) -> None:
        self._model, self._lock, self._rows = model, lock, rows

    def log_probs(self, texts: Sequence[TextQuery]) -> list[NDArray[np.float32]]:
        """Return [T] for each text, the log-probability of each of its tokens and of its end."""
        places: dict[tuple[str, str, str], int] = {}
        distinct: list[TextQuery] = []
        for each in sorted(texts, key=lambda each: each.sample.id):  # the answers to a prompt share it in a call
            if (key := (each.sample.id, each.prefix, each.text)) not in places:
                places[key] = len(distinct)
                distinct.append(each)
        found: list[NDArray[np.float32]] = []
        for start in range(0, len(distinct), self._rows):
            targets = [
                TargetText(each.sample, each.text, group, prefix=each.prefix)
                for group, each in enumerate(distinct[start : start + self._rows])
            ]
            with self._lock:
                rollout = self._model.score_targets(targets)
            rows = zip(rollout.log_probs.cpu(), rollout.mask.cpu(), strict=True)
            found += [log_probs[mask].numpy() for log_probs, mask in rows]
        return [found[places[each.sample.id, each.prefix, each.text]] for each in texts]

    def answers(self, samples: Sequence[Sample], seed: int, draws: int = 1) -> list[list[str]]:
        """Return `draws` answers to each sample."""
        found: list[list[str]] = [[] for _ in samples]
        for number, requests in enumerate(batch_requests(samples, draws, self._rows)):
            with self._lock:
                rollout = self._model.answers(requests, fold_in(seed, number))
            for row, group in enumerate(rollout.group_index.tolist()):
                found[group].append(str(rollout.media[row]))
        return found


class PainterHandle:
    """A model that draws, as rewards see it: in calls of some rows, one call at a time in the whole run."""

    def __init__(self, model: NamedModel, lock: threading.Lock, rows: int, sampling: AnySamplingConfig) -> None:
        """`sampling` is that of pictures which are not learnt from."""
        self._model, self._lock, self._rows, self._sampling = model, lock, rows, sampling

    def pictures(self, samples: Sequence[Sample], seed: int, draws: int = 1) -> list[list[Any]]:
        """Return `draws` pictures for each sample; those of one prompt, without conditions, share theirs."""
        places: dict[str, int] = {}
        distinct: list[Sample] = []
        for each in samples:
            if (key := _drawn_key(each)) not in places:
                places[key] = len(distinct)
                distinct.append(each)
        found: list[list[Any]] = [[] for _ in distinct]
        for number, requests in enumerate(batch_requests(distinct, draws, self._rows, sampling=self._sampling)):
            with self._lock:
                rollout = self._model.draw(requests, fold_in(seed, number))
            for row, group in enumerate(rollout.group_index.tolist()):
                found[group].append(rollout.media[row])
        return [found[places[_drawn_key(each)]] for each in samples]


def _drawn_key(sample: Sample) -> str:
    """Return what two samples share if they are drawn alike."""
    return f"id {sample.id}" if sample.conditions else f"prompt {sample.prompt}"
