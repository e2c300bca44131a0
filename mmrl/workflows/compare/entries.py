"""Who takes part in a comparison: subjects and their bases, each with a digest of what it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mmrl.benchmarks.protocol import ProtocolConfig
from mmrl.build.checkpoint_pool import Kind, ModelRef, resolve_model
from mmrl.config.answers import AnswersConfig
from mmrl.config.media import MediaConfig
from mmrl.config.sampling import AnySamplingConfig
from mmrl.errors import ConfigError
from mmrl.evaluation.comparison import file_name

IGNORED_FOR_BASE = {"lora": True, "gradient_checkpointing": True}
"""What a base is the same without: bases of runs that differ in nothing else are answered for once."""


@dataclass(frozen=True)
class ComparedModel:
    """A subject of a comparison."""

    subject: ModelRef
    digest: str  # of its configuration, and of the files of its checkpoint
    base: str | None  # the name of the contender that it began as; None: it is a base, or bases are left out

    @property
    def name(self) -> str:
        """What tables call it."""
        return self.subject.name

    @property
    def file(self) -> str:
        """What its files are called."""
        return file_name(self.name, self.digest)


@dataclass(frozen=True)
class Shared:
    """The settings that are one for all, and what must be said about them."""

    sampling: AnySamplingConfig
    answers: AnswersConfig
    media: MediaConfig
    notes: tuple[str, ...]


def find_contenders(texts: Sequence[str], kind: Kind, bases: bool) -> list[ComparedModel]:
    """The subjects that the texts name, each after its base.

    Raises:
        ConfigError: a checkpoint is not there, or they are not all of one kind.
        RunError: a checkpoint is damaged.
    """
    found = [resolve_model(text, kind) for text in dict.fromkeys(texts)]
    _refuse_mixed(found)
    contenders: dict[str, ComparedModel] = {}
    began = {_base_key(each): each for each in reversed(found) if each.checkpoint is None}
    for subject in found:
        base = None
        if subject.checkpoint is not None:
            base = began.setdefault(_base_key(subject), subject.base) if bases else began.get(_base_key(subject))
        if base is not None and base.name not in contenders:
            contenders[base.name] = _contender(base, None)
        if subject.name not in contenders:
            contenders[subject.name] = _contender(subject, base.name if base else None)
    return list(contenders.values())


def share_settings(first: ModelRef, others: Sequence[ComparedModel], protocol: ProtocolConfig | None) -> Shared:
    """The first subject's settings, changed as the protocol says; `notes` name those of `others` that differ.

    Raises:
        ConfigError: the protocol is not for such policies, or sets what their sampling does not have.
    """
    answers = first.run.config.answers if first.run else AnswersConfig()
    sampling = first.sampling
    if protocol is not None:
        if first.policy.kind not in protocol.suits:
            raise ConfigError(
                f"{protocol.name} is for policies of kind {' or '.join(protocol.suits)}, and {first.name} is of kind "
                f"{first.policy.kind}" + ("" if first.run else ": say what the model is with --kind")
            )
        if protocol.task is not None:
            answers = answers.model_copy(update={"task": protocol.task})
        sampling = _changed(sampling, protocol)
    notes: list[str] = []
    bases = {each.base for each in others}
    for other in others:
        if other.name in bases:
            continue  # it is said of what it became
        own = other.subject
        notes += _unlike(other.name, own.sampling.model_dump(), sampling.model_dump(), "samples")
        if own.policy.kind == "vlm":
            mine = (own.run.config.answers if own.run else AnswersConfig()).model_dump(exclude={"task"})
            notes += _unlike(other.name, mine, answers.model_dump(exclude={"task"}), "is asked")
            notes += _unlike(other.name, _budget(own), _budget(first), "is shown pictures")
    return Shared(sampling, answers, first.media, tuple(dict.fromkeys(notes)))


def _changed(sampling: AnySamplingConfig, protocol: ProtocolConfig) -> AnySamplingConfig:
    given = {**sampling.model_dump(), **protocol.sampling}
    try:
        return type(sampling).model_validate(given)
    except ValidationError as err:
        wrong = ", ".join(".".join(map(str, error["loc"])) for error in err.errors())
        raise ConfigError(f"{protocol.name}: sampling: {wrong}: {err.errors()[0]['msg']}") from None


def _unlike(name: str, own: dict[str, Any], shared: dict[str, Any], verb: str) -> list[str]:
    differing = [key for key in own if own[key] != shared.get(key)]
    if not differing:
        return []
    mine, here = (", ".join(f"{key} {given[key]}" for key in differing) for given in (own, shared))
    return [f"{name} {verb} by itself with {mine}; here, as all others, with {here}"]


def _budget(subject: ModelRef) -> dict[str, Any]:
    return subject.media.model_dump(include={"image", "video"})


def _refuse_mixed(subjects: Sequence[ModelRef]) -> None:
    kinds = {subject.name: subject.policy.kind for subject in subjects}
    first = next(iter(kinds))
    if strangers := [f"{name} is of kind {kind}" for name, kind in kinds.items() if kind != kinds[first]]:
        raise ConfigError(
            f"{first} is of kind {kinds[first]}, but {', '.join(strangers)}: all that is compared must answer the same "
            "kind of sample, with the same settings"
        )


def _base_key(subject: ModelRef) -> str:
    return subject.policy.model_dump_json(exclude=IGNORED_FOR_BASE)


def _contender(subject: ModelRef, base: str | None) -> ComparedModel:
    known = {"policy": subject.policy.model_dump(mode="json"), "step": subject.step}
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode())
    if subject.checkpoint is not None:
        digest.update(_files_digest(subject.checkpoint))
    return ComparedModel(subject, digest.hexdigest(), base)


def _files_digest(checkpoint: Path) -> bytes:
    """Of the names and contents of the policy's own files."""
    digest = hashlib.sha256()
    for path in sorted(checkpoint.rglob("*")):
        name = path.relative_to(checkpoint).as_posix()
        if path.is_file() and not name.startswith("trainer/"):
            digest.update(name.encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.digest()
