"""The experience of a decoder that repeats true pictures: samples alone, for nothing is sampled or scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from mmrl.data.media.decode import load_image
from mmrl.data.media.sample_media import answer_image
from mmrl.data.prompts import PromptSource
from mmrl.data.sample import Sample
from mmrl.distributed import processes
from mmrl.errors import DataError
from mmrl.rollout import Rollout
from mmrl.training.experience import Experience, MicroBatch
from mmrl.training.run.timers import Phases


@dataclass
class TruePictures:
    """A source of samples whose demonstrated pictures an objective reads."""

    prompts: PromptSource
    micro_batch: int  # samples of one call

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Return the samples of an iteration as rollouts without decisions, each of which one process learns from."""
        samples = self.prompts.next()
        starts = range(0, len(samples), self.micro_batch)
        rollouts = [
            _without_decisions(samples[start : start + self.micro_batch], remote=not processes.owns(number))
            for number, start in enumerate(starts)
        ]
        batches = [MicroBatch.of_rows(rollout, torch.ones(rollout.rows)) for rollout in rollouts]
        return Experience(batches, {}, gap=0.0)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the prompts."""
        return {"prompts": self.prompts.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.prompts.load_state_dict(state["prompts"])


def true_pictures(samples: Sequence[Sample]) -> list[Image.Image]:
    """Return the first demonstrated picture of each sample.

    Raises:
        DataError: a sample has none, or it cannot be read.
    """
    check_pictures(samples)
    return [load_image(_path(sample) or "", sample.id) for sample in samples]


def check_pictures(samples: Sequence[Sample]) -> None:
    """Raise unless every sample has a true picture as its demonstration.

    Raises:
        DataError: samples have none; the message has their number and the first one's id.
    """
    if lacking := [sample.id for sample in samples if _path(sample) is None]:
        raise DataError(
            f"{len(lacking)} of {len(samples)} samples lack a true picture, {{image: path}} as 'demonstration'; the "
            f"first is {lacking[0]!r}"
        )


def _path(sample: Sample) -> str | None:
    """Return the path of the first demonstrated picture, which `with_answer_paths` may have made a text."""
    pictures = sample.demonstration
    first = pictures[0] if isinstance(pictures, list | tuple) and pictures else pictures
    return first if isinstance(first, str) and first else answer_image(first)


def _without_decisions(samples: Sequence[Sample], remote: bool) -> Rollout:
    rows = len(samples)
    return Rollout(
        samples=list(samples),
        group_index=torch.arange(rows),
        log_probs=torch.zeros(rows, 1),
        mask=torch.zeros(rows, 1, dtype=torch.bool),
        channel=torch.zeros(rows, 1, dtype=torch.long),
        media=[None] * rows,
        policy_version=0,
        remote=remote,
    )
