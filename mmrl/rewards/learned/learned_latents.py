"""`learned_latents`: a reward model on a generator's latents, clean and noisy, that `mmrl train reward` has trained."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mmrl.components import load_reference
from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.latent_reward import LatentReward
from mmrl.rewards.core.reward import Scored
from mmrl.rewards.core.reward_errors import FAULTS, RewardError, ScoringFailed, attempt
from mmrl.rewards.core.reward_io import RewardInput, WeightFile
from mmrl.rewards.learned.feature_scale import FeatureScale
from mmrl.rewards.models.model_files import ResolvedFile

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ENCODER = "mmrl.generation.latent_encoder:GeneratorEncoder"
"""The frozen generator, by its place: generators stand above rewards, which do not import them."""


class LatentEncoder(Protocol):
    """A frozen generator that encodes media, and gives features of noisy latents under a prompt."""

    def encode(self, media: Sequence[Any]) -> Tensor:
        """Return the clean latents [B, ...] of pictures, or of videos as lists of frames."""

    def features(self, latents: Tensor, sigma: float, prompts: Sequence[str]) -> Tensor:
        """Return [B, F] of latents (1 - sigma) x_0 + sigma noise, with gradients in the latents."""

    def prompt_states(self, latents: Tensor, prompts: Sequence[str]) -> Tensor:
        """Return [B, E], the mean of what the generator reads of each prompt."""


def load_latent_encoder(
    model: str, layers: Sequence[str], sampling: Mapping[str, Any], revision: str | None, device: str
) -> LatentEncoder:
    """Return the generator in a folder or hub repository as an encoder."""
    encoder: LatentEncoder = load_reference(ENCODER, RewardError)(model, layers, sampling, revision, device)
    return encoder


class LearnedLatentsReward(LatentReward):
    """The mean score of an ensemble of heads on the latents of pictures or videos, and `learned_latents_spread`.

    Scores are standardised as those of `learned`. A picture or video is encoded by the generator's autoencoder, and
    scored at the lowest noise level that the heads were trained on.
    """

    name, range = "learned_latents", (-math.inf, math.inf)
    source = "Flow-NRG of VideoReward, arXiv:2501.13918; docs/reward-models.md"
    licence = "that of its encoder"
    batch_size = 64

    def __init__(
        self,
        model: str,
        axis: str | None = None,
        weights: Mapping[str, float] | None = None,
        pessimism: float = 0.0,
        device: str = "auto",
    ) -> None:
        """
        Args:
            model: a folder that `mmrl train reward` wrote, with an encoder of the kind `latents`.
            axis: the score that counts; None: the mean of all axes.
            weights: of axes by name, whose weighted sum counts: what a user asks of guidance.
            pessimism: factor of the spread that is subtracted from the mean: above 0, doubtful answers count less.
            device: "auto" is the GPU if there is one.
        """
        from mmrl.rewards.learned.reward_folder import HEADS, read_reward_folder
        from mmrl.rewards.learned.standardised_heads import StandardisedHeads
        from mmrl.rewards.models.model_files import torch_device

        folder = Path(model).expanduser()
        settings, heads, others = read_reward_folder(folder)
        if settings.kind != "latents":
            other = "learned_text" if settings.kind == "text" else "learned"
            raise RewardError(f"{model} is no reward model of latents: load it with the reward {other}")
        place = torch_device(device)
        self.encoder = load_latent_encoder(
            settings.encoder, settings.layers, settings.sampling, settings.revision, str(place)
        )
        self.noise = settings.noise
        self._heads = [head.to(place).requires_grad_(False) for head in heads]
        self._scale = FeatureScale.from_tensors(others)
        self._scores = StandardisedHeads(model, settings, self._heads, axis, pessimism, weights)
        self._file = ResolvedFile(folder / HEADS, str(folder / HEADS)).weight_file()
        self._lock = threading.Lock()  # a pipeline is called once at a time

    def weight_files(self) -> tuple[WeightFile, ...]:
        return (self._file,)

    def score_batch(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Return `learned_latents` and `learned_latents_spread` of each picture or video."""
        import torch

        opened: list[Any] = [attempt(_answer, item, errors=FAULTS) for item in items]
        rows = [row for row, each in enumerate(opened) if not isinstance(each, Exception)]
        if rows:
            with self._lock, torch.no_grad():
                clean = self.encoder.encode([opened[row] for row in rows])
                noisy = noised(clean, self.noise[0], seed=0)
                found = self._scored(noisy, self.noise[0], [items[row] for row in rows])
            for row, *values in zip(rows, *(each.tolist() for each in found), strict=True):
                opened[row] = dict(zip((self.name, f"{self.name}_spread"), values, strict=True))
        return opened

    def score_latents(self, latents: Tensor, sigma: float, batch: Sequence[RewardInput]) -> Tensor:
        with self._lock:
            return self._scored(latents, sigma, batch)[0]

    def _scored(self, noisy: Tensor, sigma: float, items: Sequence[RewardInput]) -> tuple[Tensor, Tensor]:
        prompts = [item.prompt for item in items]
        features, _ = latent_features(self.encoder, noisy, sigma, prompts, self._scale.prompts is not None)
        return self._scores.score_and_spread(self._scale(features))


def latent_features(
    encoder: LatentEncoder, latents: Tensor, sigma: float, prompts: Sequence[str], with_prompts: bool
) -> tuple[Tensor, int]:  # [B, F], or [B, F + E] with the states of prompts
    """Return the features of latents, followed by the states of their prompts if these count, and F."""
    import torch

    features = encoder.features(latents, sigma, prompts)
    count = features.shape[1]
    if with_prompts:
        features = torch.cat([features, encoder.prompt_states(latents, prompts).to(features)], dim=1)
    return features, count


def level_in_part(noise: tuple[float, float], part: int, parts: int, chance: torch.Generator) -> float:
    """Return a noise level drawn evenly from one of `parts` equal parts of a range, which are counted from 0."""
    import torch

    share = (part + torch.rand((), generator=chance).item()) / parts
    return noise[0] + (noise[1] - noise[0]) * share


def noised(clean: Tensor, sigma: float, seed: int) -> Tensor:  # [B, ...]
    """Return (1 - sigma) x_0 + sigma noise; rows have the same noise, so that no score depends on other rows."""
    import torch

    chance = torch.Generator().manual_seed(seed)
    noise = torch.randn(clean.shape[1:], generator=chance, dtype=torch.float32).to(clean)
    return (1 - sigma) * clean + sigma * noise


def _answer(item: RewardInput) -> Any:
    """Return the frames of a video, or a picture, as RGB.

    Raises:
        InvalidAnswer: a picture or frame is malformed.
        ScoringFailed: the answer is neither.
    """
    if item.video is not None:
        return [answer_image(frame) for frame in item.video]
    if item.image is None:
        raise ScoringFailed("the answer has neither image nor video", "missing")
    return answer_image(item.image)
