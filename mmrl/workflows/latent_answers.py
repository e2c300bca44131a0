"""Judged pictures and videos as features of a frozen generator, at noise levels drawn for each batch of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmrl.config.reward_model import LatentNoiseConfig, RewardModelConfig
from mmrl.data.media.decode import load_image, load_video
from mmrl.data.media.sample_media import is_video
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.rewards.learned.feature_scale import FeatureScale
from mmrl.rewards.learned.head_training import JudgedPairs, RatedAnswers
from mmrl.rewards.learned.learned_latents import LatentEncoder, latent_features, level_in_part
from mmrl.seeds import fold_in

BATCH = 128
"""Answers that are encoded at once, and that have one noise level."""
MEASURED = 5
"""Noise levels of the card."""


@dataclass(frozen=True)
class LatentAnswers:
    """Training answers and further ones, in units of the training answers' features."""

    data: JudgedPairs | RatedAnswers
    unseen: Mapping[float, JudgedPairs | RatedAnswers]
    """The further answers at each noise level of the card."""
    scale: FeatureScale
    """From features to these units."""

    def all_unseen(self) -> JudgedPairs | RatedAnswers:
        """Return the further answers at all levels."""
        return _joined(list(self.unseen.values()))


def check_latent_recipe(config: RewardModelConfig) -> None:
    """Raise ConfigError if the recipe has a key that heads on latents do not know."""
    for name in ("raters", "goals"):
        if getattr(config, name) is not None:
            raise ConfigError(f"{name}: heads on latents have none: leave it out, or choose encoder.name: clip")
    if config.factors:
        raise ConfigError("factors: heads on latents have none: leave them out, or choose encoder.name: clip")


def latent_answers(
    config: RewardModelConfig,
    encoder: LatentEncoder,
    train: Sequence[Sample],
    validation: Sequence[Sample],
    targets: Sequence[Tensor],  # [N, A] of both: sides of pairs, or scores
) -> LatentAnswers:
    """Return the features of all answers, each training answer at `noise.draws` levels.

    Raises:
        DataError: a sample has no pictures or videos to compare.
    """
    noise = config.encoder.noise
    parts, counts = zip(*(
        _features(config, encoder, train, targets[0], (place, place + 1), fold_in(config.seed, 11, place))
        for place in range(noise.draws)
    ), strict=True)  # fmt: skip
    data = _joined(parts)
    levels = measured_levels(noise)
    unseen = {
        sigma: _features(config, encoder, validation, targets[1], sigma, fold_in(config.seed, 12, place))[0]
        for place, sigma in enumerate(levels)
    }
    every = data.features if isinstance(data, RatedAnswers) else torch.cat([data.chosen, data.rejected])
    scale = FeatureScale.fit(every, counts[0], config.encoder.prompt_components)
    return LatentAnswers(_scaled(data, scale), {sigma: _scaled(each, scale) for sigma, each in unseen.items()}, scale)


def measured_levels(noise: LatentNoiseConfig) -> list[float]:
    """Return noise levels from the lowest to the highest; one if these are equal."""
    if noise.low == noise.high:
        return [noise.low]
    return [round(noise.low + (noise.high - noise.low) * place / (MEASURED - 1), 4) for place in range(MEASURED)]


def level_of_batch(noise: LatentNoiseConfig, draw: int, chance: torch.Generator) -> float:
    """Return a noise level drawn evenly from the `draw`-th of `noise.draws` equal parts of the range."""
    return level_in_part((noise.low, noise.high), draw, noise.draws, chance)


def _features(
    config: RewardModelConfig,
    encoder: LatentEncoder,
    samples: Sequence[Sample],
    targets: Tensor,
    at: float | tuple[int, int],  # a level, or the number of a draw and the next one
    seed: int,
) -> tuple[JudgedPairs | RatedAnswers, int]:
    """Return the features of all answers, with the same noise level in a batch, and how many are not of the prompt."""
    chance = torch.Generator().manual_seed(seed % 2**63)
    with_prompts = config.encoder.prompt_components > 0
    found, count = [], 0
    for start in range(0, len(samples), BATCH):
        some = samples[start : start + BATCH]
        sigma = at if isinstance(at, float) else level_of_batch(config.encoder.noise, at[0], chance)
        prompts = [sample.prompt for sample in some]
        sides = []
        for answers in _answers(config, some):
            clean = encoder.encode(answers)
            noise = torch.randn(clean.shape, generator=chance).to(clean)
            with torch.no_grad():
                noisy = (1 - sigma) * clean + sigma * noise
                features, count = latent_features(encoder, noisy, sigma, prompts, with_prompts)
            sides.append(features.cpu())
        own = targets[start : start + BATCH]
        found.append(RatedAnswers(sides[0], own) if len(sides) == 1 else JudgedPairs(sides[0], sides[1], own))
    return _joined(found), count


def _answers(config: RewardModelConfig, samples: Sequence[Sample]) -> list[list[Any]]:
    """Return the media of samples: of pairs those of both sides, of rated answers one list."""
    if config.head.kind == "pointwise":
        return [[_medium((*each.images, *each.videos)[0] if each.images or each.videos else None, each)
                 for each in samples]]  # fmt: skip
    return [[_medium(getattr(each, side), each) for each in samples] for side in ("chosen", "rejected")]


def _medium(answer: Any, sample: Sample) -> Any:
    """Return a picture, or a video as a list of frames, from a path or from the pictures of all frames.

    Raises:
        DataError: it is neither.
    """
    if isinstance(answer, str):
        return load_video(answer, sample.id) if is_video("image", answer) else load_image(answer, sample.id)
    if isinstance(answer, list | tuple) and answer and all(isinstance(each, str) for each in answer):
        return [load_image(each, sample.id) for each in answer]
    raise DataError(
        f"sample {sample.id!r}: heads on latents need pictures or videos in chosen and rejected (for pointwise: in "
        f"images or videos), as paths or as lists of frames; this is {answer!r:.60}"
    )


def _joined(parts: Sequence[JudgedPairs | RatedAnswers]) -> JudgedPairs | RatedAnswers:
    pairs = [each for each in parts if isinstance(each, JudgedPairs)]
    if pairs:
        return JudgedPairs(*(torch.cat([getattr(each, name) for each in pairs])
                             for name in ("chosen", "rejected", "sides")))  # fmt: skip
    rated = [each for each in parts if isinstance(each, RatedAnswers)]
    return RatedAnswers(torch.cat([each.features for each in rated]), torch.cat([each.scores for each in rated]))


def _scaled(answers: JudgedPairs | RatedAnswers, scale: FeatureScale) -> JudgedPairs | RatedAnswers:
    if isinstance(answers, RatedAnswers):
        return replace(answers, features=scale(answers.features))
    return replace(answers, chosen=scale(answers.chosen), rejected=scale(answers.rejected))
