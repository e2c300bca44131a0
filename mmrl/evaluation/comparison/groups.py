"""Samples that belong together: of one task, one source, or under one tag (a clause, a dimension, a skill)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmrl.data.sample import Sample
from mmrl.evaluation.comparison.bootstrap import Ints

BY = ("task", "source", "tag")


def groups_of(samples: Sequence[Sample]) -> dict[str, dict[str, Ints]]:
    """{"source": {"maths": numbers of its samples}, ...}; without a division that leaves all samples together.

    A sample has one task and one source, and any number of tags (`metadata["tags"]`).
    """
    names: dict[str, list[Sequence[str]]] = {
        "task": [(sample.task,) if sample.task else () for sample in samples],
        "source": [(sample.source,) for sample in samples],
        "tag": [tags_of(sample) for sample in samples],
    }
    found = {by: _gathered(column) for by, column in names.items()}
    return {by: groups for by, groups in found.items() if any(len(each) < len(samples) for each in groups.values())}


def tags_of(sample: Sample) -> list[str]:
    """What a sample is counted under, each once."""
    given = sample.metadata.get("tags", ())
    listed = [given] if isinstance(given, str) else given if isinstance(given, list | tuple) else []
    return list(dict.fromkeys(str(tag) for tag in listed))


def _gathered(column: Sequence[Sequence[str]]) -> dict[str, Ints]:
    members: dict[str, list[int]] = {}
    for number, names in enumerate(column):
        for name in names:
            members.setdefault(name, []).append(number)
    return {name: np.array(numbers) for name, numbers in sorted(members.items())}
