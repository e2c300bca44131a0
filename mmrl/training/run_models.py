"""Models beside the policy: teachers that never change, and snapshots that follow the policy.

A snapshot shares the policy's model and keeps a copy of the trained parameters, which is exchanged with them while it
computes. `ModelScorer` is what rewards see of a model (`RewardContext.models`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmrl.config.named_models import POLICY, NamedModelConfig
from mmrl.distributed.layout import layout_of
from mmrl.nested_state import state_of_part
from mmrl.policy import Rollout, TargetText, TeacherForcingPolicy
from mmrl.rewards.core.text_scoring import TextQuery, TextScorer
from mmrl.training.ema import ParameterCopy
from mmrl.training.objectives.replay_passes import replayed_log_probs

ROWS = 128
"""Texts that a model scores in one call, unless the run says otherwise."""


@dataclass(frozen=True)
class NamedModel:
    """A model that scores what the policy wrote, or any text, without gradients."""

    policy: TeacherForcingPolicy
    weights: Callable[[], AbstractContextManager[Any]] = nullcontext
    """A context in which `policy` computes with the parameters of this model."""

    def score_targets(self, targets: Sequence[TargetText]) -> Rollout:
        """Return a rollout of texts with their log-probabilities under this model."""
        with torch.no_grad(), self.weights():
            return self.policy.score_targets(targets)

    def log_probs(self, rollout: Rollout, step_indices: Sequence[int]) -> Tensor:
        """Return [B, K] float32, the log-probabilities of K decisions of the policy's own rollout under this model."""
        with self.weights():
            return replayed_log_probs(self.policy, rollout, step_indices)


class Snapshot:
    """A copy of the policy's trained parameters that follows them."""

    def __init__(self, policy: TeacherForcingPolicy, config: NamedModelConfig) -> None:
        self._copy = ParameterCopy(policy.parameters_to_train(), layout_of(policy), used_in_batches=True)
        self._every, self._decay = config.every or 1, config.ema or 0.0
        self.model = NamedModel(policy, self._copy.in_place)

    def finish_iteration(self, iterations: int) -> None:
        """Follow the policy if it is time; `iterations` are those that are finished."""
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
        policy: TeacherForcingPolicy,
        configured: Mapping[str, NamedModelConfig],
        loaded: Mapping[str, TeacherForcingPolicy],
        rows: int = ROWS,
    ) -> None:
        """
        Args:
            policy: the policy, which snapshots follow.
            configured: the section `models`.
            loaded: the other models of it, by name.
            rows: texts that a model scores in one call for a reward.
        """
        self._models = {POLICY: NamedModel(policy)} | {name: NamedModel(other) for name, other in loaded.items()}
        self._snapshots = {name: Snapshot(policy, config) for name, config in configured.items() if config.changes}
        self._models |= {name: snapshot.model for name, snapshot in self._snapshots.items()}
        for name, config in configured.items():
            if config.of is not None and not config.changes:
                self._models[name] = NamedModel(policy, policy.reference)
        lock = threading.Lock()
        self.scorers: Mapping[str, TextScorer] = {
            name: ModelScorer(model, lock, rows) for name, model in self._models.items()
        }
        """The models as rewards see them."""

    def __getitem__(self, name: str) -> NamedModel:
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def finish_iteration(self, iterations: int) -> None:
        """Let snapshots follow the policy; `iterations` are those that are finished."""
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


class ModelScorer:
    """A model as rewards see it: it scores texts in calls of some rows, one call at a time in the whole run."""

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
