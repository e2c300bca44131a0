"""Models by name, and several checkpoints that share one model in memory.

A `ModelRef` names a model: a checkpoint of a run, the base of a run, or a model that no run trained. A `CheckpointPool`
loads each base once and copies the trained parameters of the active checkpoint into it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import torch
from pydantic import ValidationError
from torch import Tensor

from mmrl.build.policies import build_policy, without_exploration
from mmrl.config.environment import EnvironmentConfig
from mmrl.config.media import MediaConfig
from mmrl.config.policy import AnyPolicyConfig, ImageTokenConfig, PolicyConfig, ServedVLMConfig, VLMConfig
from mmrl.config.sampling import AnySamplingConfig, ImageTokenSamplingConfig, SamplingConfig, TokenSamplingConfig
from mmrl.errors import ConfigError
from mmrl.trained_models import CodeDecodingPolicy
from mmrl.training.run.checkpoints import Checkpoints, load_parameters
from mmrl.training.run.run_folder import CONFIG, Run, load_run

if TYPE_CHECKING:
    from mmrl.build.policies import AnyPolicy

BASE, BEST, LAST = "base", "best", "last"
"""The words that may follow the `@` of a model's name, besides the number of an iteration."""

ModelKind = Literal["pipeline", "vlm", "image_tokens"]


@dataclass(frozen=True)
class ModelRef:
    """A reference to a model: a checkpoint of a run, the base of a run, or a model that no run trained."""

    name: str
    """The name in tables and pictures."""
    policy: AnyPolicyConfig
    sampling: AnySamplingConfig
    """The sampling settings of its run, without exploration."""
    run: Run | None
    """The run that trained it; None: no run did."""
    checkpoint: Path | None
    """The folder of its checkpoint; None: the base."""
    step: int
    """The number of training iterations; 0: the base."""

    @property
    def media(self) -> MediaConfig:
        """The settings by which its pictures and videos are read."""
        return self.run.config.media if self.run else MediaConfig()

    @property
    def environment(self) -> EnvironmentConfig | None:
        """The environment of its run, if it has one."""
        return self.run.config.environment if self.run else None

    @property
    def base(self) -> ModelRef:
        """The model that its training began with."""
        name = self.policy.model if self.run is None else f"{self.run.folder}@{BASE}"
        return ModelRef(name, self.policy, self.sampling, self.run, None, 0)


def resolve_model(text: str, kind: ModelKind = "pipeline", api_key_env: str = "") -> ModelRef:
    """Return the model that a text names.

    Args:
        text: `RUN` (its last checkpoint), `RUN@best`, `RUN@last`, `RUN@40`, `RUN@base`, a model's folder or id, or
            `MODEL@http://HOST:PORT` for a vision-language model behind an OpenAI-style server.
        kind: The kind of a model that no run trained.
        api_key_env: The environment variable with the key of servers; empty: they need none.

    Raises:
        ConfigError: The run has no such checkpoint, or the address of a server is wrong.
        RunError: The checkpoint is damaged.
    """
    folder, _, which = text.rpartition("@") if "@" in text else (text, "", LAST)
    if folder and which.startswith(("http://", "https://")):
        return ModelRef(text, _served(folder, which, api_key_env), TokenSamplingConfig(), None, None, 0)
    if not (Path(folder) / CONFIG).is_file():
        policy, sampling = _untrained(text, kind)
        return ModelRef(text, policy, sampling, None, None, 0)
    run = load_run(Path(folder))
    sampling = without_exploration(run.config.sampling)
    if which == BASE:
        return ModelRef(text, run.config.policy, sampling, run, None, 0)
    checkpoint = Checkpoints(run.folder).path(which) if which in (BEST, LAST) else _numbered(run, which)
    return ModelRef(text, run.config.policy, sampling, run, checkpoint, int(checkpoint.name.removeprefix("step-")))


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

    def _load(self, model: ModelRef) -> _LoadedModel:
        media = self._media or model.media
        environment = model.environment if self._in_environments else None
        key = model.policy.model_dump_json() + (media.model_dump_json() if model.policy.kind == "vlm" else "")
        key += "" if environment is None else environment.model_dump_json()
        with self._loading:
            if key not in self._loaded:
                self._loaded[key] = _LoadedModel(_build(model, media, environment))
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


def _untrained(model: str, kind: ModelKind) -> tuple[AnyPolicyConfig, AnySamplingConfig]:
    if kind == "pipeline":
        return PolicyConfig(model=model), SamplingConfig()
    if kind == "vlm":
        return VLMConfig(model=model), TokenSamplingConfig()
    return ImageTokenConfig(model=model), ImageTokenSamplingConfig()


def _served(model: str, url: str, api_key_env: str) -> ServedVLMConfig:
    try:
        return ServedVLMConfig(model=model, url=url, api_key_env=api_key_env)
    except ValidationError as err:
        raise ConfigError(f"{model}@{url}: expected {err.errors()[0]['msg']} after the @") from None


def _numbered(run: Run, which: str) -> Path:
    kept = sorted(int(folder.name.removeprefix("step-")) for folder in (run.folder / "checkpoints").glob("step-*"))
    folder = run.folder / "checkpoints" / f"step-{which}"
    if not which.isdecimal() or not folder.is_dir():
        raise ConfigError(f"{run.folder}@{which}: expected base, best, last or one of the kept iterations {kept}")
    return folder
