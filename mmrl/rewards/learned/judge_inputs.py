"""The inputs of a judge beside a picture: a text that the picture is compared with, a region, and a query.

A judge of several tasks needs the task and the criterion by which it is to decide (OneReward, arXiv:2508.21066): the
same picture wins for one query and loses for another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from PIL.Image import Resampling

from mmrl.data.media.decode import load_mask
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.rewards.learned.pair_features import joint_features

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from mmrl.config.reward_model import RewardEncoderConfig
    from mmrl.rewards.learned.reward_folder import RewardModelSettings
    from mmrl.rewards.models.clip_encoder import Encoder

Facts = Mapping[str, Any]
"""A sample's metadata and conditions, and its `prompt` and `task`; each part of a query is one text."""


@dataclass(frozen=True)
class JudgeInputs:
    """The keys of a sample's facts that heads see beside a picture."""

    prompt: str = "prompt"
    """The text that a picture is compared with."""
    region: str | None = None
    """The mask whose square surroundings are seen too, cropped; None: the picture alone."""
    query: tuple[str, ...] = ()
    """The texts that say by what to judge; a list of texts makes as many queries."""

    @classmethod
    def of(cls, settings: RewardEncoderConfig | RewardModelSettings) -> JudgeInputs:
        """Return those that a configuration, or a folder of heads, names."""
        return cls(settings.prompt, settings.region, settings.query)

    @property
    def plain(self) -> bool:
        """True if heads see a picture and its prompt alone."""
        return self == JudgeInputs()

    def queries(self, sample: Sample) -> list[Facts]:
        """Return the facts of a sample for each of its queries, of which there is one if nothing is a list.

        Raises:
            DataError: the sample lacks a text of the query, the text that pictures are compared with, or the mask.
        """
        facts = {**sample.metadata, **sample.conditions, "prompt": sample.prompt, "task": sample.task}
        choices = []
        for key in self.query:
            value = facts.get(key)
            texts = list(value) if isinstance(value, list | tuple) else [value]
            if not texts or not all(isinstance(text, str) and text for text in texts):
                raise DataError(f"sample {sample.id!r}: {key} is {value!r:.60}; the judge's query needs it: add a text")
            choices.append(texts)
        for key in [self.prompt] if self.region is None else [self.prompt, self.region]:
            if not isinstance(facts.get(key), str):
                raise DataError(f"sample {sample.id!r}: {key} is {facts.get(key)!r:.60}; the judge needs it: add it")
        return [{**facts, **dict(zip(self.query, texts, strict=True))} for texts in product(*choices)]


def picture_features(
    encoder: Encoder, pictures: Sequence[Image.Image], prompts: Sequence[str], batch: int = 256
) -> Tensor:  # [N, 3 D] float32
    """Return the features of N pictures and their prompts, without gradients, `batch` at a time."""
    return query_features(encoder, pictures, [{"prompt": prompt} for prompt in prompts], JudgeInputs(), batch)


def query_features(
    encoder: Encoder,
    pictures: Sequence[Image.Image],
    facts: Sequence[Facts],  # of one query for each picture
    inputs: JudgeInputs,
    batch: int = 256,
) -> Tensor:  # [N, 3 D + D Q] float32, or [N, 6 D + D Q] with a region; Q parts of a query
    """Return what heads see of N pictures and queries, without gradients, `batch` at a time.

    Raises:
        DataError: a mask cannot be read, or marks nothing.
    """
    import torch

    device = next(encoder.network.parameters()).device
    found = []
    with torch.inference_mode():
        for start in range(0, len(pictures), batch):
            some, of_some = list(pictures[start : start + batch]), facts[start : start + batch]
            texts = encoder.embed_texts([str(each[inputs.prompt]) for each in of_some])
            views = [some]
            if inputs.region is not None:
                masks = [load_mask(each[inputs.region]) for each in of_some]
                views.append([cropped(picture, mask) for picture, mask in zip(some, masks, strict=True)])
            parts = [joint_features(encoder.embed_pixels(encoder.pixels(each).to(device)), texts) for each in views]
            for key in inputs.query:
                words = encoder.embed_texts([str(each[key]) for each in of_some])
                parts.append(words * math.sqrt(words.shape[1]))
            found.append(torch.cat(parts, dim=1))
    return torch.cat(found).clone()


def cropped(picture: Image.Image, mask: Image.Image) -> Image.Image:
    """Return the smallest square around the box of a mask that lies in the picture, scaled to the picture's size.

    The mask may be of another size than the picture.

    Raises:
        DataError: the mask marks nothing.
    """
    width, height = picture.size
    box = mask.resize((width, height), Resampling.NEAREST).getbbox()
    if box is None:
        raise DataError("the mask of the region marks nothing: its pixels are all black")
    side = min(max(box[2] - box[0], box[3] - box[1]), width, height)
    left = min(max(0, (box[0] + box[2] - side) // 2), width - side)
    top = min(max(0, (box[1] + box[3] - side) // 2), height - side)
    return picture.crop((left, top, left + side, top + side)).resize((width, height))
