"""The result of a comparison, in memory and as result.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from mmrl.atomic_io import replace_text
from mmrl.errors import ResultError
from mmrl.evaluation.comparison.estimates import Estimate, MetricDifference

FORMAT: Literal[1] = 1
RESULT = "result.json"


@dataclass(frozen=True)
class Against:
    """The differences of a subject from the one called `name`, by the label of a metric."""

    name: str
    numbers: Mapping[str, MetricDifference]


@dataclass(frozen=True)
class Group:
    """The numbers and differences to the base over some of the samples, by the label of a metric."""

    samples: int
    numbers: Mapping[str, Estimate]
    difference: Mapping[str, MetricDifference] = field(default_factory=dict)


@dataclass(frozen=True)
class SubjectResult:
    """The numbers of one subject."""

    file: str  # the name of its rows, samples and pictures
    model: str
    step: int  # training iterations; 0: a base
    checkpoint: str | None  # the folder; None: a base
    digest: str  # SHA-256 of its configuration and of the files of its checkpoint
    base: str | None  # the name of its base, if that was evaluated too; None: it is a base
    samples: int
    draws: int
    numbers: Mapping[str, Estimate]  # by the label of a metric
    against_base: Against | None = None
    against_best: Against | None = None  # None: it is the best, or a base
    groups: Mapping[str, Mapping[str, Group]] = field(default_factory=dict)  # {"task", "source" or "tag": {name: ..}}
    diversity: Estimate | None = None  # mean distance between the answers to one sample; None: one draw
    drift: Estimate | None = None  # mean distance to the base's answer with the same seed; None: a base
    tokens: float | None = None  # mean length of answers in text
    unscored: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # {value: {reason: rows}}; in no number
    invalid: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # likewise; answers that scored the worst


@dataclass(frozen=True)
class MetricInfo:
    """A metric that every subject has."""

    label: str
    direction: Literal["higher", "lower"]
    config: Mapping[str, Any]  # a MetricConfig


@dataclass(frozen=True)
class Result:
    """A comparison: the settings that all subjects share, and the numbers of each."""

    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]  # date, versions, device
    notes: tuple[str, ...]  # caveats for the reader
    metrics: tuple[MetricInfo, ...]  # the first is the headline
    distance: str  # the measure of diversity and drift, in words
    subjects: Mapping[str, SubjectResult]
    best: str | None = None  # the trained subject with the best headline
    failed: Mapping[str, str] = field(default_factory=dict)  # {subject: the error that left it without numbers}
    format: Literal[1] = FORMAT

    @property
    def headline(self) -> MetricInfo:
        """The metric that says most."""
        return self.metrics[0]


_RESULT = TypeAdapter(Result)


def write_result(result: Result, folder: Path) -> Path:
    """Write result.json atomically and return its path."""
    text = _RESULT.dump_json(result, indent=1)
    return replace_text(folder / RESULT, text.decode() + "\n", errors="backslashreplace")


def read_result(path: Path) -> Result:
    """Read result.json, or the one in a folder.

    Raises:
        ResultError: it is missing, damaged, or was written by another version.
    """
    file = path / RESULT if path.is_dir() else path
    try:
        content = file.read_bytes()
    except OSError as err:
        hint = ": the comparison is unfinished, or this is no folder of one" if path.is_dir() else ""
        raise ResultError(f"{file}: cannot be read ({err.strerror}){hint}") from None
    try:
        return _RESULT.validate_json(content)
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        at = ".".join(map(str, first["loc"])) or "the file"
        raise ResultError(
            f"{file}: is no result of this version of mmrl: {at}: {first['msg']}; run the comparison again"
        ) from None
