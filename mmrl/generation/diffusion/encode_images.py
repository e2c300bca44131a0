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
    if vae.config.get("force_upcast") and vae.dtype == torch.float16:
        raise UnsupportedError(f"{name}: its autoencoder overflows in float16: set policy.dtype to float32 or bfloat16")
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


def _size(pipeline: Any, sampling: SamplingConfig) -> tuple[int, int]:
    """Return the sampling width and height, by default the denoiser's sample size."""
    side = getattr(pipeline, "default_sample_size", None) or pipeline.unet.config.sample_size
    if not isinstance(side, int):
        raise UnsupportedError(f"{type(pipeline).__name__} has {side} latents by default: set sampling.height and "
                               "sampling.width to encode pictures")  # fmt: skip
    default = side * pipeline.vae_scale_factor
    return sampling.width or default, sampling.height or default
