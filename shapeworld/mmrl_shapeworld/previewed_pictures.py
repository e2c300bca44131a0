"""An experiment for studies of reward models that score half-denoised pictures of the embedded pipeline.

The preview after k steps is the picture that the model then expects to end at, x - sigma v, decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, StableDiffusion3Pipeline
from PIL import Image
from torch import Tensor

from mmrl.rewards.learned.judge_inputs import picture_features
from mmrl.rewards.models.clip_encoder import load_encoder
from mmrl_shapeworld import splits
from mmrl_shapeworld.captions import Caption
from mmrl_shapeworld.checker import judge
from mmrl_shapeworld.partial_runs import WrittenPictures, goal_scores
from mmrl_shapeworld.shipped_models import CLIP, PIPELINE

STEPS, SIZE, BATCH = 10, 32, 128
PREVIEWS = (4, 6)
"""The steps that are finished at each preview; the finished picture is the last state."""
TRAINING = ("train", 0, 1000, 2)
JUDGED = {"development": ("development", 0, 96, 4), "validation": ("validation", 256, 192, 4)}
"""The split of captions, the first of them, their number, and pictures of each."""


class PreviewScheduler(FlowMatchEulerDiscreteScheduler):
    """The scheduler of the pipeline, which keeps what the model expects the picture to be at each step."""

    def step(self, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Take a step as the parent does, and keep its preview."""
        if self.step_index is None:
            self._init_step_index(timestep)
            self.previews: list[Tensor] = []
        self.previews.append(sample - self.sigmas[self.step_index] * model_output)
        return super().step(model_output, timestep, sample, *args, **kwargs)


def preview_scores(
    seed: int, on: str, weight: float, prune: bool = True, state: int = 1, pairs: int = 400, hidden: int = 128
) -> dict[str, Sequence[float]]:
    """Train a head on pairs of pictures, and ask how well it tells right from wrong ones by their previews.

    Args:
        seed: of the pairs that are drawn, and of the head.
        on: the pictures that are judged, development or validation.
        weight: of the contrast with goals; 0: finished pictures alone.
        prune: of the four pictures of a caption, only the two that score highest in that state are finished.
        state: the place in PREVIEWS of the preview that is judged.
        pairs: training pairs.
        hidden: units of the hidden layer.

    Returns:
        `auc`: the probability that the preview of a right picture has a higher score than that of a wrong one.
        `finished`: the same of finished pictures. `quality`: the checker's score of the finished picture that scores
        highest.
    """
    written, judged = previewed_pictures(*TRAINING, 0), previewed_pictures(*JUDGED[on], 7)
    return goal_scores(written, judged, seed, weight, prune, state, pairs, hidden)


@cache
def previewed_pictures(split: str, start: int, count: int, each: int, seed: int) -> WrittenPictures:
    """Return `each` pictures of `count` captions of a split, from the caption `start` on, in their states."""
    samples = splits.samples(split)[start : start + count]
    prompts = [sample.prompt for sample in samples for _ in range(each)]
    answers = [Caption.from_dict(sample.answer) for sample in samples for _ in range(each)]
    encoder = load_encoder("learned", str(CLIP))
    features, verdicts = [], []
    for begin in range(0, len(prompts), BATCH):
        texts = prompts[begin : begin + BATCH]
        states = pictures_with_previews(texts, seed + begin)
        features.append(torch.stack([picture_features(encoder, state, texts) for state in states], dim=1))
        verdicts += [judge(*pair) for pair in zip(states[-1], answers[begin : begin + BATCH], strict=True)]
    return WrittenPictures(
        torch.cat(features).view(count, each, len(PREVIEWS) + 1, -1),
        torch.tensor([verdict.score for verdict in verdicts]).view(count, each),
        torch.tensor([verdict.strict for verdict in verdicts]).view(count, each),
    )


def pictures_with_previews(prompts: Sequence[str], seed: int) -> list[list[Image.Image]]:
    """Return the previews of pictures, a list for each of `PREVIEWS`, and the finished pictures as the last list."""
    pipeline = _pipeline()
    with torch.no_grad():
        finished = pipeline(
            list(prompts),
            num_inference_steps=STEPS,
            guidance_scale=1.0,
            generator=torch.Generator().manual_seed(seed),
            max_sequence_length=1,
            height=SIZE,
            width=SIZE,
        ).images
        config = pipeline.vae.config
        latents = [pipeline.scheduler.previews[done] for done in PREVIEWS]
        decoded = [pipeline.vae.decode(each / config.scaling_factor + config.shift_factor).sample for each in latents]
    return [*(pipeline.image_processor.postprocess(each, output_type="pil") for each in decoded), finished]


@cache
def _pipeline() -> StableDiffusion3Pipeline:
    pipeline = StableDiffusion3Pipeline.from_pretrained(PIPELINE)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.scheduler = PreviewScheduler.from_config(pipeline.scheduler.config)
    return pipeline
