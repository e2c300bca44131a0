"""Checkpoints side by side: one model in memory, of which one checkpoint at a time answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from mmrl.build.policies import build_policy, without_exploration
from mmrl.config.media import MediaConfig
from mmrl.config.policy import AnyPolicyConfig, ImageTokenConfig, PolicyConfig, VLMConfig
from mmrl.config.sampling import AnySamplingConfig, ImageTokenSamplingConfig, SamplingConfig, TokenSamplingConfig
from mmrl.errors import ConfigError
from mmrl.training.run.checkpoints import Checkpoints, load_parameters
from mmrl.training.run.run_folder import CONFIG, Run, load_run

if TYPE_CHECKING:
    from mmrl.build.policies import AnyPolicy

BASE, BEST, LAST = "base", "best", "last"
"""What may stand after the `@` of a subject, besides the number of an iteration."""

Kind = Literal["pipeline", "vlm", "image_tokens"]


@dataclass(frozen=True)
class ModelRef:
    """A model as it was at one moment: at a checkpoint of a run, or as the run (or nobody) began with it."""

    name: str  # what tables and pictures call it
    policy: AnyPolicyConfig
    sampling: AnySamplingConfig  # how its run sampled, without exploration
    run: Run | None  # None: a model that no run trained
    checkpoint: Path | None  # None: the base
    step: int  # iterations of training behind it; 0: the base

    @property
    def media(self) -> MediaConfig:
        """How pictures and videos are read for it."""
        return self.run.config.media if self.run else MediaConfig()

    @property
    def base(self) -> ModelRef:
        """What its training began with."""
        name = self.policy.model if self.run is None else f"{self.run.folder}@{BASE}"
        return ModelRef(name, self.policy, self.sampling, self.run, None, 0)


def resolve_model(text: str, kind: Kind = "pipeline") -> ModelRef:
    """`RUN` (its last checkpoint), `RUN@best`, `RUN@last`, `RUN@40`, `RUN@base`, or a model's folder or id.

    `kind` says what a model is that no run trained.

    Raises:
        ConfigError: the run has no such checkpoint.
        RunError: it is damaged.
    """
    folder, _, which = text.rpartition("@") if "@" in text else (text, "", LAST)
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
    """Any number of subjects; those of one base share one model in memory, and take turns.

    A checkpoint is read when it is first asked for, and its trained parameters then stay on the CPU: switching copies
    them, a few milliseconds for adapters. Threads may share a lineup: whoever holds a policy holds it alone.
    """

    def __init__(self, subjects: Sequence[ModelRef], media: MediaConfig | None = None) -> None:
        """`media`: how pictures are read for all of them; unset: as each one's run says."""
        self.subjects = {subject.name: subject for subject in subjects}
        self._media = media
        self._models: dict[str, _Model] = {}
        self._loading = threading.Lock()

    @contextmanager
    def turn(self, name: str) -> Iterator[AnyPolicy]:
        """The policy as this subject; nobody else's parameters while open.

        Raises:
            KeyError: no subject has this name.
            OSError, ValueError, SafetensorError: a file of its checkpoint cannot be read. The others still can.
        """
        subject = self.subjects[name]
        model = self._model(subject)
        with model.lock:
            model.become(subject)
            yield model.policy

    def _model(self, subject: ModelRef) -> _Model:
        media = self._media or subject.media
        key = subject.policy.model_dump_json() + (media.model_dump_json() if subject.policy.kind == "vlm" else "")
        with self._loading:
            if key not in self._models:
                self._models[key] = _Model(build_policy(subject.policy, subject.sampling, media))
            return self._models[key]


@dataclass
class _Model:
    """A loaded model and the trained parameters of the checkpoints that were asked for."""

    policy: AnyPolicy
    lock: threading.Lock = field(default_factory=threading.Lock)
    _kept: dict[Path | None, dict[str, Tensor]] = field(default_factory=dict, init=False)  # None: the base
    _now: Path | None = field(default=None, init=False)

    def become(self, subject: ModelRef) -> None:
        """Put this subject's parameters into the model."""
        if not self._kept:
            self._kept[None] = self._copy()
        wanted = subject.checkpoint
        if wanted == self._now:
            return
        if wanted in self._kept:
            load_parameters(self.policy.parameters_to_train(), self._kept[wanted])
        else:
            self._read(wanted)
        self._now = wanted

    def _read(self, checkpoint: Path | None) -> None:
        assert checkpoint is not None
        try:
            self.policy.load(checkpoint)
        except BaseException:  # half of it may be in the model
            load_parameters(self.policy.parameters_to_train(), self._kept[None])
            self._now = None
            raise
        self._kept[checkpoint] = self._copy()

    def _copy(self) -> dict[str, Tensor]:
        with torch.no_grad():
            return {name: p.detach().to("cpu", copy=True) for name, p in self.policy.parameters_to_train().items()}


def _untrained(model: str, kind: Kind) -> tuple[AnyPolicyConfig, AnySamplingConfig]:
    match kind:
        case "pipeline":
            return PolicyConfig(model=model), SamplingConfig()
        case "vlm":
            return VLMConfig(model=model), TokenSamplingConfig()
        case "image_tokens":
            return ImageTokenConfig(model=model), ImageTokenSamplingConfig()


def _numbered(run: Run, which: str) -> Path:
    kept = sorted(int(folder.name.removeprefix("step-")) for folder in (run.folder / "checkpoints").glob("step-*"))
    folder = run.folder / "checkpoints" / f"step-{which}"
    if not which.isdecimal() or not folder.is_dir():
        raise ConfigError(f"{run.folder}@{which}: expected base, best, last or one of the kept iterations {kept}")
    return folder
