"""From a sample and what a policy made of it to what a reward takes."""

from __future__ import annotations

from typing import Any

from PIL import Image

from mmrl.data.sample import Sample
from mmrl.rewards.base import RewardError, RewardInput


def reward_input(
    sample: Sample,
    media: Any,  # a PIL image, a video as a list of PIL images, or a text
    group: int,
    id: str,
) -> RewardInput:
    """One answer to `sample`, ready to score.

    `references` holds the sample's conditions (a picture to edit, by path), its metadata, and its `answer`, if any.
    """
    references = {**sample.metadata, **sample.conditions}
    if sample.answer is not None:
        references["answer"] = sample.answer
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
        prompt=sample.prompt,
        image=image,
        video=video,
        text=text,
        references=references,
        metadata={"task": sample.task, "source": sample.source},
    )
