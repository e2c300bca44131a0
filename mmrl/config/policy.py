"""What is trained, and which of its parameters."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from mmrl.config.section import Section

Precision = Literal["float32", "bfloat16", "float16"]


class LoraConfig(Section):
    """Low-rank adapters (peft) on the denoiser."""

    rank: PositiveInt = 32
    alpha: PositiveInt = 64
    """The adapter's output is scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers to adapt; empty: the attention projections of each denoiser."""


class PolicyConfig(Section):
    """The model that learns."""

    kind: Literal["pipeline"] = "pipeline"
    """`pipeline`: any diffusers text-to-image or text-to-video pipeline."""
    model: str
    """A folder, a Hugging Face id, or `shapeworld` for the model that ships in the package."""
    revision: str | None = None
    scheduler: str | None = None
    """A scheduler of diffusers by its class's name, with the settings of the pipeline's own: `DDIMScheduler` where that
    is PNDM or another that cannot be trained through. Unset: the pipeline's own."""
    train: Literal["lora", "full"] = "lora"
    """`lora`: adapters alone, the reference is the model with adapters off. `full`: all denoiser weights,
    the reference is a frozen copy."""
    lora: LoraConfig = LoraConfig()
    denoisers: tuple[str, ...] = ()
    """Pipeline components to train; empty: every denoiser (`transformer`, `transformer_2` or `unet`)."""
    dtype: Precision = "float32"
    """Of the frozen weights and of the denoiser's computation; trained parameters, transitions and log-probabilities
    are always float32. float16 rounds eight times finer than bfloat16, but overflows at 65504; its losses are
    scaled."""
    safety_checker: bool = False
    """Whether a model's own filter stays on: it turns the pictures that it flags black, and rewards score the black."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    device: str = "auto"
    """`auto`: CUDA where there is one, else the CPU."""
