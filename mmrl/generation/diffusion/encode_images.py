"""Pictures that a policy did not draw just now: their latents, and a recording to ask for velocities with.

A velocity needs what a pipeline computes before its loop (prompts, sizes, the shapes of its denoiser's answers), and
nothing of the loop itself. So the recording of given latents is one of the first step alone.
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
from mmrl.generation.diffusion.scheduler_hook import Step

ENCODABLE = (
    "StableDiffusionPipeline",
    "StableDiffusionXLPipeline",
    "StableDiffusion3Pipeline",
    "FluxPipeline",
)
"""Pipelines whose pictures can be encoded: an `AutoencoderKL`, whose latents the loop takes scaled, shifted and, in
Flux's case, packed. Read in the source of diffusers 0.42."""


class FirstStepLoop(RecordLoop):
    """Records one step, and leaves: enough for `VelocityLoop`, and for a probe of that step."""

    def on_denoiser_call(self) -> None:
        super().on_denoiser_call()
        if self.step:
            raise StopPipeline

    def advance(self, step: Step) -> Tensor:
        following = super().advance(step)
        if self.latent_stream == 0:  # guidance that remembers begins every step as the first
            self.recording.guidance *= len(step.levels)
        return following

    def check_latents(self, clean: Tensor) -> None:
        """
        Raises:
            GenerationError: the latents are not of the loop's shape.
        """
        due = join(self.recording.next_latents[0]).shape
        if clean.shape != due:
            raise GenerationError(f"the given latents are {list(clean.shape)}, the pipeline's own are {list(due)}")


@torch.no_grad()
def encoded(pipeline: DiffusionPipeline, sampling: SamplingConfig, pictures: Sequence[Image.Image]) -> Tensor:
    """[B, ...]: the latents that the pipeline's loop would have ended with, had it drawn these pictures.

    Pictures are scaled to cover the size that is drawn and cropped about their centre. The autoencoder's posterior mean
    is taken, not a draw, so that a picture has one encoding.

    Raises:
        UnsupportedError: latents of this class of pipeline are made in a way that is not known here.
    """
    name, parts = type(pipeline).__name__, pipeline.components
    if name not in ENCODABLE:
        raise UnsupportedError(f"{name}: encoding given pictures is known for {', '.join(ENCODABLE)} alone; other "
                               "pipelines learn from their own pictures (experience from rollouts)")  # fmt: skip
    vae, processor = parts["vae"], vars(pipeline)["image_processor"]
    if vae.config.get("force_upcast") and vae.dtype == torch.float16:
        raise UnsupportedError(f"{name}: its autoencoder overflows in float16: set policy.dtype to float32 or bfloat16")
    if not pictures:
        return torch.empty(0)
    width, height = _size(pipeline, sampling)
    fitted = [ImageOps.fit(picture.convert("RGB"), (width, height)) for picture in pictures]
    pixels = processor.preprocess(fitted).to(vae.device, vae.dtype)
    latents = vae.encode(pixels).latent_dist.mode()
    latents = (latents - (vae.config.get("shift_factor") or 0.0)) * vae.config.scaling_factor
    if name == "FluxPipeline":
        packing: Any = type(pipeline)
        latents = packing._pack_latents(latents, *latents.shape)
    return latents.to(pipeline._execution_device)


def _size(pipeline: Any, sampling: SamplingConfig) -> tuple[int, int]:
    """Width and height of what is drawn, by default the square that the denoiser was made for."""
    side = getattr(pipeline, "default_sample_size", None) or pipeline.unet.config.sample_size
    if not isinstance(side, int):
        raise UnsupportedError(f"{type(pipeline).__name__} draws {side} latents by default: set sampling.height and "
                               "sampling.width to encode pictures")  # fmt: skip
    usual = side * pipeline.vae_scale_factor
    return sampling.width or usual, sampling.height or usual
