"""Encode existing images to latents, and record one step so that velocity losses can be computed on them.

A velocity depends on the computations before a pipeline's loop (prompts, sizes, the structure of its denoiser's
outputs) and on nothing in the loop itself. So the recording for existing latents contains the first step only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import DiffusionPipeline
from PIL import Image, ImageOps
from torch import Tensor

from mmrl.config.sampling import SamplingConfig
from mmrl.errors import GenerationError, UnsupportedError
from mmrl.generation.diffusion.loops import RecordLoop, StopPipeline
from mmrl.generation.diffusion.recording import join
from mmrl.generation.diffusion.scheduler_hook import SchedulerStep

ENCODABLE = (
    *("StableDiffusionPipeline", "StableDiffusionXLPipeline", "StableDiffusion3Pipeline", "FluxPipeline"),
    *("StableDiffusionInstructPix2PixPipeline", "StableDiffusionXLInstructPix2PixPipeline"),
)
"""Pipelines whose images can be encoded: they have an `AutoencoderKL`, whose latents the loop takes scaled, shifted
and, for Flux, packed. Those of the editing classes are of the size of the picture to edit. Read off the source of
diffusers 0.42."""

ENCODABLE_CLIPS = ("AnimateDiffPipeline", "WanPipeline", "WanVACEPipeline")
"""Pipelines whose videos can be encoded. That of AnimateDiff has an `AutoencoderKL` for each frame, whose latents the
loop takes scaled and not shifted; those of Wan have one of videos, whose channels have a mean and a deviation each. The
loop of Wan VACE has the latents of reference images before those of the video: encode each as a video of one frame.
Read off the source of diffusers 0.42."""


class FirstStepLoop(RecordLoop):
    """A loop that records one step and stops, enough for `VelocityLoop` and for a probe of that step."""

    def on_denoiser_call(self) -> None:
        super().on_denoiser_call()
        if self.step:
            raise StopPipeline

    def advance(self, step: SchedulerStep) -> Tensor:
        following = super().advance(step)
        if self.latent_stream == 0:  # every later step starts from the guiders' first state
            self.recording.guidance *= len(step.levels)
        return following

    def check_latents(self, clean: Tensor) -> None:
        """Raise GenerationError unless the latents have the loop's shape."""
        expected = join(self.recording.next_latents[0]).shape
        if clean.shape != expected:
            raise GenerationError(f"the latents are {list(clean.shape)}, the pipeline's own are {list(expected)}")


@torch.no_grad()
def encode_images(pipeline: DiffusionPipeline, sampling: SamplingConfig, images: Sequence[Image.Image]) -> Tensor:
    """Return the final latents [B, ...] of the pipeline's loop that correspond to these images.

    Images are resized to cover the sampling size and centre-cropped. The latents are the mean of the autoencoder's
    posterior, not a sample, so the encoding is deterministic.

    Raises:
        UnsupportedError: the pipeline is not in `ENCODABLE`, or overflows in float16.
    """
    name, parts = type(pipeline).__name__, pipeline.components
    if name not in ENCODABLE:
        raise UnsupportedError(f"{name}: existing images can be encoded for {', '.join(ENCODABLE)} only; other "
                               "pipelines train on rollouts (experience: rollouts)")  # fmt: skip
    vae, processor = parts["vae"], vars(pipeline)["image_processor"]
    _check_precision(name, vae)
    if not images:
        return torch.empty(0)
    width, height = _size(pipeline, sampling)
    fitted = [ImageOps.fit(image.convert("RGB"), (width, height)) for image in images]
    pixels = processor.preprocess(fitted).to(vae.device, vae.dtype)
    latents = vae.encode(pixels).latent_dist.mode()
    latents = (latents - (vae.config.get("shift_factor") or 0.0)) * vae.config.scaling_factor
    if name == "FluxPipeline":
        packing: Any = type(pipeline)
        latents = packing._pack_latents(latents, *latents.shape)
    return latents.to(pipeline._execution_device)


@torch.no_grad()
def encode_clips(
    pipeline: DiffusionPipeline, sampling: SamplingConfig, clips: Sequence[Sequence[Image.Image]]
) -> Tensor:
    """Return the final latents [B, C, F, h, w] of the pipeline's loop that correspond to these videos.

    Frames are resized and cropped as by `encode_images`, and so are latents the mean of the posterior. The autoencoder
    of Wan makes one latent frame of the first and of each further four, or as many as its configuration says.

    Raises:
        UnsupportedError: the pipeline is not in `ENCODABLE_CLIPS`, or overflows in float16.
        ValueError: the videos have different numbers of frames.
    """
    name, parts = type(pipeline).__name__, pipeline.components
    if name not in ENCODABLE_CLIPS:
        raise UnsupportedError(f"{name}: existing videos can be encoded for {', '.join(ENCODABLE_CLIPS)} only; other "
                               "pipelines train on rollouts (experience: rollouts)")  # fmt: skip
    if not clips:
        return torch.empty(0)
    if len(counts := {len(clip) for clip in clips}) > 1:
        raise ValueError(f"videos of one batch have {min(counts)} to {max(counts)} frames; expected as many in all")
    vae, processor = parts["vae"], vars(pipeline)["video_processor"]
    _check_precision(name, vae)
    width, height = _size(pipeline, sampling)
    frames = [ImageOps.fit(frame.convert("RGB"), (width, height)) for clip in clips for frame in clip]
    pixels = processor.preprocess(frames).to(vae.device, vae.dtype)
    if name == "AnimateDiffPipeline":
        latents = vae.encode(pixels).latent_dist.mode() * vae.config.scaling_factor
        latents = latents.unflatten(0, (len(clips), -1)).transpose(1, 2)
    else:
        latents = vae.encode(pixels.unflatten(0, (len(clips), -1)).transpose(1, 2)).latent_dist.mode()
        mean, deviation = (
            torch.tensor(vae.config[each]).view(1, -1, 1, 1, 1).to(latents) for each in ("latents_mean", "latents_std")
        )
        latents = (latents - mean) / deviation
    found: Tensor = latents.to(pipeline._execution_device)
    return found


def _check_precision(name: str, vae: Any) -> None:
    if vae.config.get("force_upcast") and vae.dtype == torch.float16:
        raise UnsupportedError(f"{name}: its autoencoder overflows in float16: set policy.dtype to float32 or bfloat16")


def _size(pipeline: Any, sampling: SamplingConfig) -> tuple[int, int]:
    """Return the sampling width and height, by default the denoiser's sample size."""
    if sampling.width and sampling.height:
        return sampling.width, sampling.height
    unet = getattr(pipeline, "unet", None)
    side = getattr(pipeline, "default_sample_size", None) or (unet and unet.config.sample_size)
    if not isinstance(side, int):
        raise UnsupportedError(f"{type(pipeline).__name__} has {side} latents by default: set sampling.height and "
                               "sampling.width to encode pictures")  # fmt: skip
    default = side * pipeline.vae_scale_factor
    return sampling.width or default, sampling.height or default
