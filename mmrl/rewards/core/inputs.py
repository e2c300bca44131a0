"""From a sample and what a policy made of it to what a reward takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from mmrl.data.sample import Sample
from mmrl.rewards.core.base import RewardError, RewardInput, RewardOutput, Status

ASKED = "rewards"
"""Where an input's metadata says which rewards its sample asks for; without it, those of the run."""


def reward_input(
    sample: Sample,
    media: Any,  # a PIL image, a video as a list of PIL images, or a text
    group: int,
    id: str,
    tokens: Sequence[int] | None = None,  # what a text was written with
) -> RewardInput:
    """One answer to `sample`, ready to score.

    `references` holds the pictures and videos that were shown (`images`, `videos`) and the sample's conditions (a
    picture to edit), as paths or data URIs, its metadata, and its `answer`, if any. `metadata` holds task, source, the
    `tokens` of a text, and the rewards that the sample itself asks for.
    """
    references: dict[str, Any] = {**sample.metadata, **sample.conditions}
    references |= {key: list(shown) for key, shown in (("images", sample.images), ("videos", sample.videos)) if shown}
    if sample.answer is not None:
        references["answer"] = sample.answer
    metadata: dict[str, Any] = {"task": sample.task, "source": sample.source}
    if tokens is not None:
        metadata["tokens"] = list(tokens)
    if sample.rewards:
        metadata[ASKED] = sample.rewards
    image, video, text = None, None, None
    if isinstance(media, Image.Image):
        image = media
    elif isinstance(media, str):
        text = media
    elif isinstance(media, list | tuple) and media and all(isinstance(frame, Image.Image) for frame in media):
        video = list(media)
    else:
        raise RewardError(
            f"sample {sample.id!r}: cannot score a {type(media).__name__}; "
            "a reward takes a PIL image, a video as a non-empty list of PIL images, or a text"
        )
    return RewardInput(
        id=id,
        group=group,
        prompt=sample.prompt or _last_request(sample.messages),
        image=image,
        video=video,
        text=text,
        references=references,
        metadata=metadata,
    )


def _last_request(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of a conversation's last message by the user; "" where there is none."""
    content = next((each.get("content", "") for each in reversed(messages) if each.get("role") == "user"), "")
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list | tuple) else []
    return "\n".join(str(part["text"]) for part in parts if part.get("type") == "text" and "text" in part)


# Some rows of an output, and rows put behind it.


def rows_of(output: RewardOutput, rows: Sequence[int]) -> RewardOutput:
    """Some rows of an output, in that order."""
    index = np.asarray(rows, np.intp)
    return RewardOutput(
        values={name: column[index] for name, column in output.values.items()},
        status={name: [column[row] for row in rows] for name, column in output.status.items()},
        detail=[output.detail[row] for row in rows],
        events=[output.events[row] for row in rows] if output.events else [],
        seconds=output.seconds,
        failures=[output.failures[row] for row in rows] if output.failures else [],
    )


def with_rows(output: RewardOutput, added: Sequence[Mapping[str, float]]) -> RewardOutput:
    """An output with rows behind its own, of which nothing is known but values: {name: value}, each of them finite.

    A name that an added row lacks is one that was not asked for there.
    """
    names = list(output.values)
    missing = [[row.get(name, math.nan) for row in added] for name in names]
    return RewardOutput(
        values={
            name: np.concatenate([output.values[name], np.asarray(column, np.float32)])
            for name, column in zip(names, missing, strict=True)
        },
        status={
            name: [*output.status[name], *(Status.OK if name in row else Status.NOT_APPLICABLE for row in added)]
            for name in names
        },
        detail=[*output.detail, *({} for _ in added)],
        events=[*output.events, *([] for _ in added)] if output.events else [],
        seconds=output.seconds,
        failures=[*output.failures, *({} for _ in added)] if output.failures else [],
    )
