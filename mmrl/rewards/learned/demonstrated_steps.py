"""A reward from a few demonstrations: their steps, and the features of a frozen encoder that tell each step apart.

Sermanet, Xu and Levine, "Unsupervised Perceptual Rewards for Imitation Learning" (arXiv:1612.06699). No step is
labelled: a demonstration is a sequence of images, which is cut where the parts vary least. For each step the features
are kept whose means inside and outside of it lie far apart, compared with their spread. An image that looks like a
later step in these features scores more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mmrl.rewards.core.image_input import reference_image
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.clip_encoder import load_encoder
from mmrl.rewards.models.model_reward import PixelReward

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

Floats = NDArray[np.float64]
CONTRAST = 5.0
"""The weight of the distance of two means against the sum of their deviations, of the paper."""
LEAST_DEVIATION = 0.1
"""The least deviation inside a step, as a share of the feature's over all frames: few frames may agree by chance."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class TaskStep:
    """A step of a task, by the features that tell it apart."""

    features: NDArray[np.int64]  # [M], columns
    mean: Floats  # [M], inside the step
    deviation: Floats  # [M], inside the step, above 0


def split_steps(frames: Floats, steps: int) -> list[int]:  # [T, D]
    """Return where each step but the first begins: the cuts with the least sum of squares inside of the parts.

    The exact optimum, by dynamic programming, where the paper cuts in two again and again.

    >>> split_steps(np.array([[0.0], [0.1], [5.0], [5.1], [9.0]]), 3)
    [2, 4]

    Raises:
        ValueError: there are fewer frames than steps.
    """
    count = len(frames)
    if not 0 < steps <= count:
        raise ValueError(f"{count} frames cannot be split into {steps} steps")
    sums = np.vstack([np.zeros(frames.shape[1]), frames.cumsum(0)])
    squares = np.concatenate([[0.0], np.square(frames).sum(1).cumsum()])

    def cost(begin: int, end: int) -> float:
        return float(squares[end] - squares[begin] - np.square(sums[end] - sums[begin]).sum() / (end - begin))

    best = [[0.0 if end == 0 else np.inf for end in range(count + 1)]]
    cuts: list[list[int]] = []
    for _ in range(steps):
        row, chosen = [np.inf] * (count + 1), [0] * (count + 1)
        for end in range(1, count + 1):
            totals = [best[-1][begin] + cost(begin, end) for begin in range(end)]
            chosen[end] = int(np.argmin(totals))
            row[end] = totals[chosen[end]]
        best.append(row)
        cuts.append(chosen)
    found, end = [], count
    for chosen in reversed(cuts):
        end = chosen[end]
        found.append(end)
    return found[::-1][1:]


def discriminative_features(
    inside: Floats,  # [N, D]
    outside: Floats,  # [O, D]
    count: int,
) -> NDArray[np.int64]:  # [count]
    """Return the columns with the largest 5 |μ⁺ − μ⁻| − (σ⁺ + σ⁻), the best first."""
    distance = np.abs(inside.mean(0) - outside.mean(0))
    score = CONTRAST * distance - (inside.std(0) + outside.std(0))
    return np.argsort(-score, kind="stable")[:count]


def learn_steps(demonstrations: Sequence[Floats], steps: int, count: int | None) -> list[TaskStep]:
    """Return the steps of demonstrations [T, D]; `count` features a step, None for all.

    Raises:
        ValueError: a demonstration has fewer frames than steps.
    """
    parts: list[list[Floats]] = [[] for _ in range(steps)]
    for frames in demonstrations:
        for number, part in enumerate(np.split(frames, split_steps(frames, steps))):
            parts[number].append(part)
    joined = [np.concatenate(each) for each in parts]
    overall = np.concatenate(joined).std(0)
    found = []
    for number, inside in enumerate(joined):
        columns = np.arange(inside.shape[1])
        if count is not None and steps > 1:
            others = np.concatenate([each for other, each in enumerate(joined) if other != number])
            columns = discriminative_features(inside, others, count)
        floor = LEAST_DEVIATION * overall[columns] + 1e-6
        found.append(TaskStep(columns, inside.mean(0)[columns], np.maximum(inside.std(0)[columns], floor)))
    return found


def step_progress(features: Tensor, steps: Sequence[TaskStep]) -> Tensor:  # [B, D] -> [B]
    """Return Σ 2^i R_i / Σ 2^i over all steps i but the first, in [0, 1].

    R_i = exp(−d_i / 2), with d_i the mean over the step's features of the squared distance from its mean, in
    deviations. Later steps weigh twice as much, so that the reward grows with the task, as in the paper.
    """
    import torch

    total, weights = features.new_zeros(len(features)), 0.0
    for number, step in enumerate(steps[1:]):
        mean, deviation = (torch.as_tensor(each).to(features) for each in (step.mean, step.deviation))
        columns = torch.as_tensor(step.features, device=features.device)
        distance = ((features[:, columns] - mean) / deviation).square().mean(-1)
        total = total + 2.0**number * torch.exp(-distance / 2)
        weights += 2.0**number
    return total / weights


class DemonstratedSteps(PixelReward):
    """Progress of an image through the steps of a task, learnt from a few demonstrations without labels.

    In [0, 1]; an image that looks like the last step scores most. The demonstrations are folders of images in the order
    of their names. Features are the units of all layers of a frozen encoder, as `layer_features` gives them.

        load("demonstrated_steps", demonstrations="door-opening", steps=3)
    """

    name, range = "demonstrated_steps", (0.0, 1.0)
    source = "Perceptual rewards, arXiv:1612.06699"
    licence = "of the encoder"

    def __init__(
        self,
        demonstrations: str,
        steps: int = 3,
        features: int | None = 32,
        model: str = "openai/clip-vit-base-patch32",
        processor: str | None = None,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        """
        Args:
            demonstrations: a folder with one folder of images for each demonstration.
            steps: the number of steps, at least 2.
            features: the features that are kept for each step, the most discriminative; None for all.
        """
        if steps < 2 or (features is not None and features < 1):
            raise RewardError(f"{self.name}: steps is {steps} and features {features}; at least 2, and at least 1")
        sequences = _image_files(Path(demonstrations).expanduser(), steps)
        self.encoder = load_encoder(self.name, model, processor, revision, dtype)
        super().__init__(self.encoder.network, self.encoder.files, device)
        self.tensor_preprocess = self.encoder.tensor_preprocess
        seen = [self._features([reference_image(str(file), "demonstrations") for file in each]) for each in sequences]
        self.steps = learn_steps(seen, steps, features)
        """The steps in order."""

    def pixels(self, images: Sequence[Image.Image]) -> Tensor:
        return self.encoder.pixels(images)

    def score_pixels(self, pixels: Tensor, items: Sequence[RewardInput]) -> Tensor:
        return step_progress(self.encoder.layer_features(pixels), self.steps)

    def fingerprint(self) -> str:
        """Return the digest of the settings, the encoder, and what was learnt from the demonstrations."""
        digest = hashlib.sha256(super().fingerprint().encode())
        for step in self.steps:
            for part in (step.features, step.mean.round(5), step.deviation.round(5)):
                digest.update(part.tobytes())
        return digest.hexdigest()

    def _features(self, images: Sequence[Image.Image]) -> Floats:
        import torch

        with torch.inference_mode():
            found = self.encoder.layer_features(self.pixels(images).to(self.device))
        return np.asarray(found.double().cpu().numpy())


def _image_files(folder: Path, steps: int) -> list[list[Path]]:
    """Return the images of each demonstration, by name."""
    if not folder.is_dir():
        raise RewardError(f"demonstrations: {folder}: no such folder; relative paths count from {Path.cwd()}")
    found = {
        each: sorted(file for file in each.iterdir() if file.suffix.lower() in SUFFIXES)
        for each in sorted(folder.iterdir())
        if each.is_dir()
    }
    if not found:
        raise RewardError(f"demonstrations: {folder} has no folders: it needs one of images for each demonstration")
    if short := [each for each, files in found.items() if len(files) < steps]:
        raise RewardError(f"demonstrations: {short[0]} has {len(found[short[0]])} images, and there are {steps} steps")
    return list(found.values())
