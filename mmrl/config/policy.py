"""The model, and the parameters of it that are trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, PositiveFloat, PositiveInt, Tag

from mmrl.components import Registry
from mmrl.config.section import Section, registered, tag_of
from mmrl.config.servers import ServerUrl

Precision = Literal["float32", "bfloat16", "float16"]
TokenAttention = Literal["auto", "mmrl", "sdpa", "flex", "flash", "xformers"]
PipelineAttention = Literal["auto", "sdpa", "flex", "flash", "xformers"]

IMAGE_TOKEN_MODELS: Registry[Any] = Registry(
    "mmrl.image_token_models",
    "image-token model",
    {
        "janus": "mmrl.generation.image_tokens.janus:Janus",
        "emu3": "mmrl.generation.image_tokens.emu3:Emu3",
        "vq_causal_lm": "mmrl.generation.image_tokens.vq_causal_lm:VQCausalLM",
        "next_scale_lm": "mmrl.generation.image_tokens.next_scale_lm:NextScaleLM",
    },
    base="mmrl.generation.image_tokens.image_token_model:ImageTokenModel",
)
"""The classes of token image generators, by the `model_type` of their configuration; packages add theirs in the
entry-point group `mmrl.image_token_models`."""


class LoraConfig(Section):
    """Low-rank adapters (peft) on the denoiser, or on the language model."""

    rank: PositiveInt = 32
    alpha: PositiveInt = 64
    """The adapter's output is scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers to adapt; empty: the attention projections of each denoiser, or all linear layers of
    the language model."""


FROZEN = LoraConfig(rank=1, alpha=1)
"""The adapter of a pipeline that is not trained: it stays 0, so that no copy of all weights is kept as a reference."""


class PolicyConfig(Section):
    """A diffusion or flow model, which generates images or videos."""

    kind: Literal["pipeline"] = "pipeline"
    """`pipeline`: any diffusers text-to-image or text-to-video pipeline."""
    model: str
    """A folder, a Hugging Face id, or `shapeworld` for the model that ships in the package; others that do are
    `shapeworld:unet`, `shapeworld:edit` and `shapeworld:inpaint` (docs/shapeworld.md)."""
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
    """The precision of the frozen weights and of the denoiser's computation; trained parameters, transitions and
    log-probabilities are always float32. float16 rounds eight times finer than bfloat16, but overflows at 65504; its
    losses are scaled."""
    attention: PipelineAttention = "auto"
    """The attention of the denoisers. `auto`: xformers on a GPU where it is installed and the model is in half
    precision, else torch's sdpa; the run prints the choice and its reason. A name that is not
    supported raises an error."""
    safety_checker: bool = False
    """True keeps a model's built-in filter, which turns the pictures that it flags black; rewards score the black."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    device: str = "auto"
    """`auto`: CUDA where there is one, else the CPU."""


class ModelPartConfig(Section):
    """A part of a vision-language model beside its language model."""

    train: bool = False
    """True trains this part too; with `policy.train: lora`, through separate adapters."""
    lr_scale: PositiveFloat = 1.0
    """Its learning rate, as a share of `optimizer.lr`."""


FP8Format = Literal["e4m3", "e5m2"]


class FP8Config(Section):
    """FP8 numbers in the linear layers of a language model, simulated: they are rounded, and nothing is faster."""

    flow: Literal["unified", "rollout"] = "unified"
    """unified: rollouts, evaluations and updates compute with FP8 numbers (Jet-RL). rollout: rollouts and evaluations
    do, and updates compute in `policy.dtype`."""
    format: FP8Format = "e4m3"
    """The bits of a number: 4 of the exponent and 3 behind the point, or 5 and 2."""
    block: PositiveInt | None = 128
    """The side of the square of weights that share a scale, and the number of features of a token that do. Unset: a
    scale for a whole layer, and one for a token."""


class VLMConfig(Section):
    """A vision-language model, which writes text."""

    kind: Literal["vlm"] = "vlm"
    """`vlm`: any model that transformers loads with `AutoModelForImageTextToText`."""
    model: str
    """A folder, a Hugging Face id, or `shapeworld` for the model that ships in the package."""
    revision: str | None = None
    train: Literal["lora", "full"] = "lora"
    """`lora`: adapters alone, the reference is the model with adapters off. `full`: all weights of the language model,
    the reference is a frozen copy."""
    lora: LoraConfig = LoraConfig()
    heads: tuple[str, ...] = ()
    """Output layers by the names of their objectives, which the algorithm mah_dpo trains and which are blended when the
    model writes, in equal parts unless `evaluation.heads` says otherwise; empty: the model's own output layer."""
    heads_lr_scale: PositiveFloat = 1.0
    """The learning rate of the heads, as a share of `optimizer.lr`. Objectives that pull the trunk apart need a slow
    trunk and fast heads."""
    vision: ModelPartConfig = ModelPartConfig()
    """The vision tower."""
    connector: ModelPartConfig = ModelPartConfig()
    """The part that turns the tower's features into the language model's tokens (projector, merger, resampler)."""
    dtype: Precision = "float32"
    """The precision of the frozen weights and of the computation; trained parameters and log-probabilities are always
    float32."""
    fp8: FP8Config | None = None
    """Set: the linear layers of the language model multiply FP8 numbers; its output layer, adapters, the vision tower
    and the connector do not. Unset: all compute in `dtype`."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time. Without `attention: mmrl` a
    prompt is then computed once for each of its answers."""
    attention: TokenAttention = "auto"
    """The attention of the language model. `mmrl`: a group's answers share one copy of their prompt, in rollouts and in
    updates; the others are those of transformers, with a copy of the prompt's keys for each answer. `auto`: mmrl where
    the model allows it, else sdpa; the run prints the choice and its reason."""
    fused_log_probs: Literal["auto"] | bool = "auto"
    """True computes log-probabilities a few rows at a time, and again in the backward pass, so that the logits of all
    tokens are never in memory. `auto`: True where those would take more than a quarter of a GiB."""
    device: str = "auto"
    """`auto`: CUDA where there is one, else the CPU."""


class ServedVLMConfig(VLMConfig):
    """A vision-language model behind an OpenAI-style server, for comparisons: it answers, and is never trained."""

    model: str
    """The name by which the server knows the model (`GET /v1/models`)."""
    url: ServerUrl
    """The address of the server, without `/v1`."""
    api_key_env: str = ""
    """The environment variable that has the server's key. Empty: it needs none."""


class ImageTokenConfig(Section):
    """An autoregressive model, which generates an image token by token."""

    kind: Literal["image_tokens"] = "image_tokens"
    """`image_tokens`: Janus, Emu3, or a folder of a causal language model and a codec (docs/image-tokens.md)."""
    model: str
    """A folder, a Hugging Face id, or `shapeworld` for the model that ships in the package."""
    revision: str | None = None
    architecture: Annotated[str, registered(IMAGE_TOKEN_MODELS)] | None = None
    """The class that loads the model: `janus`, `emu3`, `vq_causal_lm`, `next_scale_lm`, an installed one, or
    `path/to/file.py:Name`. Unset: the class that is registered for the folder's `model_type`."""
    train: Literal["lora", "full"] = "lora"
    """`lora`: adapters alone, the reference is the model with adapters off. `full`: all weights that generate, the
    reference is a frozen copy. The decoder of codes and the vision encoder are never trained."""
    lora: LoraConfig = LoraConfig()
    size: tuple[PositiveInt, PositiveInt] | None = None
    """Height and width in pixels, of models that draw several sizes (Emu3, next_scale_lm). Unset: the model's own."""
    dtype: Precision = "float32"
    """The precision of the frozen weights and of the computation; trained parameters and log-probabilities are always
    float32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    attention: TokenAttention = "auto"
    """The attention of the language model. `mmrl`: a group's answers share one copy of their prompt, in rollouts and in
    updates; the others are those of transformers, with a copy of the prompt's keys for each answer. `auto`: mmrl where
    the model allows it, else sdpa; the run prints the choice and its reason."""
    fused_log_probs: Literal["auto"] | bool = "auto"
    """True computes log-probabilities a few rows at a time, and again in the backward pass, so that the logits of all
    tokens are never in memory. `auto`: True where those would take more than a quarter of a GiB."""
    device: str = "auto"
    """`auto`: CUDA where there is one, else the CPU."""


AnyPolicyConfig = Annotated[
    Annotated[PolicyConfig, Tag("pipeline")]
    | Annotated[VLMConfig, Tag("vlm")]
    | Annotated[ImageTokenConfig, Tag("image_tokens")],
    Discriminator(tag_of("kind", "pipeline")),
]
