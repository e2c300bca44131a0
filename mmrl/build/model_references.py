"""Models by name: a checkpoint of a run, the base of a run, or a model that no run trained."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from mmrl.build.answering import painter_of
from mmrl.build.policies import without_exploration
from mmrl.config.algorithms.drawn_texts import JointGRPOConfig
from mmrl.config.environment import EnvironmentConfig
from mmrl.config.media import MediaConfig
from mmrl.config.named_models import kind_of, sampling_of
from mmrl.config.policy import AnyPolicyConfig, ImageTokenConfig, PolicyConfig, ServedVLMConfig, VLMConfig
from mmrl.config.sampling import AnySamplingConfig, ImageTokenSamplingConfig, SamplingConfig, TokenSamplingConfig
from mmrl.errors import ConfigError
from mmrl.training.run.checkpoints import Checkpoints
from mmrl.training.run.run_folder import CONFIG, Run, load_run

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
    def painter(self) -> str | None:
        """The name of the model of its run that draws what it writes; None: its answers are its own."""
        return painter_of(self.run.config.algorithm) if self.run else None

    @property
    def answer_kind(self) -> str:
        """The kind of the model that makes its answers: the painter's, if there is one, else the policy's."""
        return kind_of(self.run.config, self.painter) if self.run and self.painter else self.policy.kind

    @property
    def answer_sampling(self) -> AnySamplingConfig:
        """The sampling settings of the model that makes its answers, without exploration."""
        if self.run is None or self.painter is None:
            return self.sampling
        return without_exploration(sampling_of(self.run.config, self.painter))

    @property
    def drawing(self) -> str:
        """JSON of the settings by which its texts are drawn; empty: they are not."""
        if self.run is None or not isinstance(algorithm := self.run.config.algorithm, JointGRPOConfig):
            return ""
        config, name = self.run.config, algorithm.painter
        settings = [
            each.model_dump(mode="json") for each in (config.models[name], sampling_of(config, name), algorithm.reader)
        ]
        return json.dumps([*settings, config.evaluation.original_prompt], sort_keys=True)

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
    is_whole = "@" not in text or (Path(text) / CONFIG).is_file()  # the @ may be in the name of a folder
    folder, _, which = (text, "", LAST) if is_whole else text.rpartition("@")
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
