"""A pool of checkpoints that share one model in memory.

A `CheckpointPool` loads each base once and copies the trained parameters of the active checkpoint into it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from mmrl.build.answering import answering_without_exploration
from mmrl.build.load_models import load_other
from mmrl.build.model_references import ModelRef
from mmrl.build.policies import build_policy
from mmrl.config.environment import EnvironmentConfig
from mmrl.config.media import MediaConfig
from mmrl.config.named_models import sampling_of
from mmrl.config.policy import ServedVLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.policy import Policy
from mmrl.trained_models import CodeDecodingPolicy
from mmrl.training.named_model import AnsweringPolicy, NamedModel
from mmrl.training.run.checkpoints import load_parameters

if TYPE_CHECKING:
    from mmrl.build.policies import AnyPolicy


class CheckpointPool:
    """A pool of checkpoints, of which those with the same base share one model in memory.

    A checkpoint is read on its first use, and its trained parameters then stay on the CPU: switching copies them, which
    takes a few milliseconds for adapters. Threads may share a pool: each model is locked while a checkpoint is active.
    """

    def __init__(
        self, models: Sequence[ModelRef], media: MediaConfig | None = None, in_environments: bool = False
    ) -> None:
        """Collect the models; nothing is loaded.

        Args:
            models: the models, with distinct names.
            media: the media settings for all; None: those of each run.
            in_environments: True lets a policy play in the environment of its run; False: one answer to each prompt.
        """
        self.models = {model.name: model for model in models}
        self._media, self._in_environments = media, in_environments
        self._loaded: dict[str, _LoadedModel] = {}
        self._loading = threading.Lock()

    @contextmanager
    def activate(self, name: str) -> Iterator[AnyPolicy]:
        """Yield the policy with the parameters of a checkpoint; no other checkpoint of its base is active meanwhile.

        Raises:
            KeyError: The pool has no model with this name.
            OSError, ValueError, SafetensorError: A file of the checkpoint cannot be read. Other checkpoints still can.
        """
        model = self.models[name]
        loaded = self._load(model)
        with loaded.lock:
            loaded.switch_to(model.checkpoint)
            yield loaded.policy

    @contextmanager
    def answering(self, name: str) -> Iterator[Policy]:
        """Yield what answers with a checkpoint: the policy as `activate` does, or a chain of it and its run's painter.

        Raises:
            KeyError, OSError, ValueError, SafetensorError: as `activate`; also of the painter's files.
        """
        model = self.models[name]
        with self.activate(name) as policy, ExitStack() as stack:
            if model.run is None or model.painter is None:
                yield cast("Policy", policy)
                return
            loaded = self._load_painter(model.run.config, model.painter)
            stack.enter_context(loaded.lock)
            trained = model.run.config.models[model.painter].trained
            loaded.switch_to(model.checkpoint / "models" / model.painter if model.checkpoint and trained else None)
            painter = {model.painter: NamedModel(cast("AnsweringPolicy", loaded.policy))}
            yield answering_without_exploration(model.run.config, policy, painter)

    def _load_painter(self, config: TrainConfig, name: str) -> _LoadedModel:
        chosen = config.models[name]
        settings = (chosen, sampling_of(config, name))
        key = json.dumps([each.model_dump(mode="json") for each in settings])
        return self._loaded_once(key, lambda: load_other(name, chosen, config))

    def _load(self, model: ModelRef) -> _LoadedModel:
        media = self._media or model.media
        environment = model.environment if self._in_environments else None
        key = model.policy.model_dump_json() + (media.model_dump_json() if model.policy.kind == "vlm" else "")
        key += "" if environment is None else environment.model_dump_json()
        return self._loaded_once(key, lambda: _build(model, media, environment))

    def _loaded_once(self, key: str, load: Callable[[], AnyPolicy]) -> _LoadedModel:
        with self._loading:
            if key not in self._loaded:
                self._loaded[key] = _LoadedModel(load())
            return self._loaded[key]


@dataclass
class _LoadedModel:
    """A model in memory and the trained parameters of the checkpoints that were used so far."""

    policy: AnyPolicy
    lock: threading.Lock = field(default_factory=threading.Lock)
    _parameters: dict[Path | None, dict[str, Tensor]] = field(default_factory=dict, init=False)  # None: the base
    _decoders: dict[Path | None, dict[str, Tensor]] = field(default_factory=dict, init=False)  # of image tokens
    _active: Path | None = field(default=None, init=False)

    def switch_to(self, checkpoint: Path | None) -> None:
        """Copy the parameters of a checkpoint, or of the base, into the model."""
        if not self._parameters:
            self._keep(None)
        if checkpoint == self._active:
            return
        if checkpoint in self._parameters:
            self._restore(checkpoint)
        else:
            assert checkpoint is not None
            self._read(checkpoint)
        self._active = checkpoint

    def _read(self, checkpoint: Path) -> None:
        try:
            self.policy.load(checkpoint)
        except BaseException:  # the model may hold a part of it
            self._restore(None)
            self._active = None
            raise
        self._keep(checkpoint)

    def _keep(self, checkpoint: Path | None) -> None:
        with torch.no_grad():
            trained = self.policy.parameters_to_train()
            self._parameters[checkpoint] = {name: p.detach().to("cpu", copy=True) for name, p in trained.items()}
        if isinstance(self.policy, CodeDecodingPolicy):
            self._decoders[checkpoint] = self.policy.decoder_state()

    def _restore(self, checkpoint: Path | None) -> None:
        load_parameters(self.policy.parameters_to_train(), self._parameters[checkpoint])
        if isinstance(self.policy, CodeDecodingPolicy):
            self.policy.load_decoder_state(self._decoders[checkpoint])


def _build(model: ModelRef, media: MediaConfig, environment: EnvironmentConfig | None) -> AnyPolicy:
    if not isinstance(model.policy, ServedVLMConfig):
        return build_policy(model.policy, model.sampling, media, environment)
    from mmrl.understanding.serving.chat_policy import ChatPolicy

    sampling = cast(TokenSamplingConfig, model.sampling)
    return cast("AnyPolicy", ChatPolicy.from_config(model.policy, sampling, media))  # it samples, and no more
