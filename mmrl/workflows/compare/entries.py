"""The entries of a comparison: the named models and their bases, and the settings that all of them share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mmrl.benchmarks.protocol import ProtocolConfig
from mmrl.build.model_references import ModelKind, ModelRef, resolve_model
from mmrl.config.data import AnswersConfig
from mmrl.config.media import MediaConfig
from mmrl.config.policy import ServedVLMConfig
from mmrl.config.sampling import AnySamplingConfig
from mmrl.errors import ConfigError
from mmrl.evaluation.comparison import file_name
from mmrl.file_digest import file_digest

LOST = "its weights are not known, its seeds may be ignored, and its answers have no token ids and no log-probabilities"
"""The properties that a model behind a server lacks, as a clause."""
IGNORED_FOR_BASE = {"lora": True, "gradient_checkpointing": True}
"""Settings of `policy` that do not change a base model: bases that differ in nothing else answer once."""


@dataclass(frozen=True)
class ComparedModel:
    """A model in a comparison."""

    model: ModelRef
    digest: str
    """SHA-256 of its configuration, of the files of its model if that is a folder, and of those of its checkpoint."""
    base: str | None
    """The name of the entry that its training began with; None: it is a base itself, or bases are left out."""

    @property
    def name(self) -> str:
        """The name in tables."""
        return self.model.name

    @property
    def file(self) -> str:
        """The stem of its files."""
        return file_name(self.name, self.digest)


@dataclass(frozen=True)
class SharedSettings:
    """The settings that are the same for all models, and notes on the models whose own settings differ."""

    sampling: AnySamplingConfig
    answers: AnswersConfig
    media: MediaConfig
    notes: tuple[str, ...]


def find_models(texts: Sequence[str], kind: ModelKind, bases: bool, api_key_env: str = "") -> list[ComparedModel]:
    """Resolve the models, named as `resolve_model` takes them; with `bases`, those of checkpoints come before them.

    Raises:
        ConfigError: A checkpoint does not exist, or the models are not all of one kind.
        RunError: A checkpoint is damaged.
    """
    found = [resolve_model(text, kind, api_key_env) for text in dict.fromkeys(texts)]
    _check_one_kind(found)
    entries: dict[str, ComparedModel] = {}
    base_models = {_base_key(each): each for each in reversed(found) if each.checkpoint is None}
    for model in found:
        base = None
        if model.checkpoint is not None:
            key = _base_key(model)
            base = base_models.setdefault(key, model.base) if bases else base_models.get(key)
        if base is not None and base.name not in entries:
            entries[base.name] = _entry(base, None)
        if model.name not in entries:
            entries[model.name] = _entry(model, base.name if base else None)
    return list(entries.values())


def share_settings(
    first: ModelRef, entries: Sequence[ComparedModel], protocol: ProtocolConfig | None
) -> SharedSettings:
    """Return the first model's settings with the changes of the protocol.

    The notes name the entries whose own settings differ from these.

    Raises:
        ConfigError: The protocol is for other kinds of policies, or sets a sampling key that this kind lacks.
    """
    answers = first.run.config.answers if first.run else AnswersConfig()
    sampling = first.sampling
    if protocol is not None:
        if first.policy.kind not in protocol.suits:
            raise ConfigError(
                f"{protocol.name} is for policies of kind {' or '.join(protocol.suits)}, and {first.name} is of kind "
                f"{first.policy.kind}" + ("" if first.run else ": set the kind of the model with --kind")
            )
        if protocol.task is not None:
            answers = answers.model_copy(update={"task": protocol.task})
        sampling = _with_protocol(sampling, protocol)
    notes: list[str] = []
    bases = {each.base for each in entries}
    for entry in entries:
        if entry.name in bases:
            continue  # a base has the settings of its checkpoints
        own = entry.model
        if isinstance(own.policy, ServedVLMConfig):
            notes.append(f"{entry.name} answers from a server: {LOST}")
        notes += _differences(entry.name, own.sampling.model_dump(), sampling.model_dump(), "samples")
        if own.painter:
            notes += _drawn_otherwise(own, first)
        if own.policy.kind == "vlm":
            own_answers = (own.run.config.answers if own.run else AnswersConfig()).model_dump(exclude={"task"})
            notes += _differences(entry.name, own_answers, answers.model_dump(exclude={"task"}), "is prompted")
            own_media, media = (each.media.model_dump(include={"image", "video"}) for each in (own, first))
            notes += _differences(entry.name, own_media, media, "sees pictures")
    return SharedSettings(sampling, answers, first.media, tuple(dict.fromkeys(notes)))


def _with_protocol(sampling: AnySamplingConfig, protocol: ProtocolConfig) -> AnySamplingConfig:
    try:
        return type(sampling).model_validate({**sampling.model_dump(), **protocol.sampling})
    except ValidationError as err:
        wrong = ", ".join(".".join(map(str, error["loc"])) for error in err.errors())
        raise ConfigError(f"{protocol.name}: sampling: {wrong}: {err.errors()[0]['msg']}") from None


def _differences(name: str, own: dict[str, Any], shared: dict[str, Any], verb: str) -> list[str]:
    mine, here = _differing(own, shared)
    return [f"{name} {verb} by itself with {mine}; here, as all others, with {here}"] if mine else []


def _drawn_otherwise(own: ModelRef, first: ModelRef) -> list[str]:
    """Return a note if a run's painter draws by other settings than that of the first; each keeps its own."""
    mine, theirs = _differing(own.answer_sampling.model_dump(), first.answer_sampling.model_dump())
    note = f"{own.name} draws with {mine}, and {first.name} with {theirs}: each run keeps the settings of its painter"
    return [note] if mine else []


def _differing(own: dict[str, Any], other: dict[str, Any]) -> tuple[str, str]:
    """Return the settings that differ, as texts: `own` ones and the others; empty if none does."""
    keys = [key for key in own if own[key] != other.get(key)]
    mine, theirs = (", ".join(f"{key} {values.get(key)}" for key in keys) for values in (own, other))
    return mine, theirs


def _check_one_kind(models: Sequence[ModelRef]) -> None:
    kinds = {model.name: f"{model.policy.kind}{' with a painter' if model.painter else ''}" for model in models}
    first = next(iter(kinds))
    if others := [f"{name} is of kind {kind}" for name, kind in kinds.items() if kind != kinds[first]]:
        raise ConfigError(
            f"{first} is of kind {kinds[first]}, but {', '.join(others)}: all compared models must answer the same "
            "kind of sample, with the same settings"
        )


def _base_key(model: ModelRef) -> str:
    return model.policy.model_dump_json(exclude=IGNORED_FOR_BASE) + model.drawing


def _entry(model: ModelRef, base: str | None) -> ComparedModel:
    identity = {"policy": model.policy.model_dump(mode="json"), "step": model.step}
    if model.drawing:
        identity["drawing"] = model.drawing
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    if (folder := Path(model.policy.model)).is_dir():
        digest.update(_files_digest(folder))
    if model.checkpoint is not None:
        digest.update(_files_digest(model.checkpoint))
    return ComparedModel(model, digest.hexdigest(), base)


def _files_digest(folder: Path) -> bytes:
    """Return the SHA-256 of the names and contents of a model's files; a trainer's are left out."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith("trainer/"):
            digest.update(name.encode())
            digest.update(bytes.fromhex(file_digest(path)))
    return digest.digest()
