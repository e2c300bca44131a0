"""A trained policy as a folder of its own library: what `from_pretrained` of diffusers or transformers reads."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from peft.tuners.lora import LoraLayer
from torch import nn

from mmrl.build.checkpoint_pool import ModelRef
from mmrl.build.policies import AnyPolicy, build_policy
from mmrl.config.policy import ImageTokenConfig, PolicyConfig, Precision, VLMConfig
from mmrl.config.sampling import ImageTokenSamplingConfig, SamplingConfig, TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.export.snippets import pipeline_code, vlm_code
from mmrl.export.snippets_image_tokens import Drawing, composite_code, emu3_code, janus_code

if TYPE_CHECKING:
    from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
    from mmrl.generation.image_tokens import ImageTokenPolicy
    from mmrl.understanding.vlm_policy import VLMPolicy

ROUNDED = 0.01
"""From which share on a card tells that rounding cost some of what was learnt."""


@dataclass(frozen=True)
class Asked:
    """What a folder is made for."""

    name: str  # what its code calls it: a folder's name, or OWNER/NAME
    dtype: Precision | None  # None: as the run computed
    sample: Sample  # what its code asks for: of the run's own data


@dataclass(frozen=True)
class Plain:
    """What a card says of a folder that was written."""

    library: str | None  # as the hub calls it; None: no library loads it whole
    task: str | None  # the hub's pipeline_tag; None: not known
    code: str  # Python that loads it
    dtype: Precision  # that the code computes in
    notes: tuple[str, ...]  # what it does not hold, or holds otherwise than the run's policy


def write_plain(subject: ModelRef, folder: Path, asked: Asked) -> Plain:
    """Write a whole model, adapters merged.

    Raises:
        ConfigError, OSError: the base cannot be loaded, or does not fit the checkpoint.
    """
    assert subject.checkpoint is not None
    whole = subject.policy.train == "full"
    dtype: Precision = asked.dtype or subject.policy.dtype
    # What was trained whole is float32; of one file of weights, the rest has to be so too.
    one_file = not isinstance(subject.policy, PolicyConfig)
    loaded: Precision = "float32" if whole and one_file and asked.dtype is None else dtype
    changes: dict[str, Any] = {"dtype": loaded, "device": "cpu", "attention": "auto", "gradient_checkpointing": False}
    if isinstance(subject.policy, PolicyConfig):
        changes["safety_checker"] = True  # what a model came with stays with it
    policy = build_policy(subject.policy.model_copy(update=changes), subject.sampling, subject.media)
    policy.load(subject.checkpoint)
    notes = _of_full(policy, asked.dtype) if whole else _of_lora(merge_adapters(*_models(policy)), dtype)
    match subject.policy:
        case PolicyConfig():
            return _write_pipeline(cast("PipelinePolicy", policy), subject, folder, asked, dtype, notes)
        case VLMConfig():
            return _write_vlm(cast("VLMPolicy", policy), subject, folder, asked, dtype, notes)
        case ImageTokenConfig():
            return _write_painter(cast("ImageTokenPolicy", policy), subject, folder, asked, dtype, notes)


def pipeline_task(known: Mapping[str, Any], name: str, sample: Sample) -> str:
    """The hub's word for what a pipeline makes of what; `known` are the arguments of its call."""
    made = "video" if "num_frames" in known or "Video" in name else "image"
    given = "video" if "video" in sample.conditions else "image" if _media(sample) else "text"
    return f"{given}-to-{made}"


def _write_pipeline(
    policy: PipelinePolicy, subject: ModelRef, folder: Path, asked: Asked, dtype: Precision, notes: tuple[str, ...]
) -> Plain:
    from mmrl.generation.diffusion.call_arguments import call_arguments, guiders_take_scale

    sampling = cast(SamplingConfig, subject.sampling)
    pipeline = cast(Any, policy.pipeline)
    pipeline.save_pretrained(folder, safe_serialization=True)
    known = inspect.signature(type(pipeline).__call__).parameters
    apart = {"prompt", "output_type", "negative_prompt", "num_images_per_prompt", "num_videos_per_prompt"}
    arguments = {k: v for k, v in call_arguments(pipeline, sampling, []).items() if k not in apart}
    if sampling.negative_prompt is not None:
        arguments["negative_prompt"] = sampling.negative_prompt
    task = pipeline_task(known, type(pipeline).__name__, asked.sample)
    code = pipeline_code(
        asked.name,
        dtype,
        asked.sample.prompt if "prompt" in known else None,
        arguments,
        _media(asked.sample),
        video=task.endswith("video"),
        scale_on_guider=sampling.guidance_scale if guiders_take_scale(pipeline) else None,
    )
    config = cast(PolicyConfig, subject.policy)
    if getattr(pipeline, "safety_checker", None) is not None and not config.safety_checker:
        notes += ("It was trained with the base's safety checker off. Here the checker is on, as it came.",)
    if config.scheduler:
        notes += (f"Its scheduler is {config.scheduler}, as in training, and not the base's.",)
    return Plain("diffusers", task, code, dtype, notes)


def _write_vlm(
    policy: VLMPolicy, subject: ModelRef, folder: Path, asked: Asked, dtype: Precision, notes: tuple[str, ...]
) -> Plain:
    sampling = cast(TokenSamplingConfig, subject.sampling)
    policy.vlm.model.save_pretrained(folder)
    policy.vlm.processor.save_pretrained(folder)
    picture = bool(asked.sample.images)
    code = vlm_code(asked.name, dtype, asked.sample.prompt, picture, sampling.max_new_tokens)
    return Plain("transformers", "image-text-to-text", code, dtype, notes)


def _write_painter(
    policy: ImageTokenPolicy, subject: ModelRef, folder: Path, asked: Asked, dtype: Precision, notes: tuple[str, ...]
) -> Plain:
    from mmrl.generation.image_tokens.codecs import PATCHES
    from mmrl.generation.image_tokens.emu3 import Emu3
    from mmrl.generation.image_tokens.vq_causal_lm import VQCausalLM

    family = policy.image_model
    family.network.save_pretrained(family.weights(folder))
    family.save_other_files(folder)
    drawing = Drawing(asked.name, dtype, asked.sample.prompt, cast(ImageTokenSamplingConfig, subject.sampling))
    if isinstance(family, VQCausalLM):
        told = (
            "No one class of a library loads it whole: transformers loads `language_model/` and `tokenizer/`, and the "
            "code above, which needs no mmrl, writes codes with them and makes pixels of the codes.",
        )
        return Plain(None, "text-to-image", composite_code(drawing, (folder / PATCHES).exists()), dtype, notes + told)
    if isinstance(family, Emu3):
        return Plain("transformers", "text-to-image", emu3_code(drawing, *family.grid), dtype, notes)
    template = (folder / "chat_template.jinja").exists()
    return Plain("transformers", "text-to-image", janus_code(drawing, template), dtype, notes)


def _models(policy: AnyPolicy) -> list[Any]:
    """The modules that adapters may be in."""
    if hasattr(policy, "vlm"):
        return [policy.vlm.model]
    if hasattr(policy, "image_model"):
        return [policy.image_model.network]
    components = cast("PipelinePolicy", policy).pipeline.components.values()
    return [component for component in components if isinstance(component, torch.nn.Module)]


def _of_full(policy: AnyPolicy, dtype: Precision | None) -> tuple[str, ...]:
    """The trained weights are float32, and stay so unless another dtype is asked for."""
    if dtype is None or dtype == "float32":
        return ()
    for parameter in policy.parameters_to_train().values():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    return (f"The trained weights were rounded from float32 to {dtype}.",)


def _of_lora(merged: Merged, dtype: Precision) -> tuple[str, ...]:
    told = f"The LoRA is merged into {merged.layers} layers"
    if merged.rounded < ROUNDED:
        return (f"{told}.",)
    return (
        f"{told}. Rounding the sums to {dtype} lost {merged.rounded:.0%} of what was learnt, by its norm; with "
        "`--dtype float32` or `--lora-only` an export loses nothing.",
    )


def _media(sample: Sample) -> dict[str, Any]:
    """The pictures and videos that a sample gives a pipeline, and their kinds."""
    from mmrl.data.media.conditions import media_kind

    kinds = {name: media_kind(name) for name in sample.conditions}
    return {name: kind for name, kind in kinds.items() if kind}


# Adapters into the weights that they adapt, so that a model needs no peft.


@dataclass(frozen=True)
class Merged:
    """What became of the adapters."""

    layers: int
    rounded: float
    """How much of what was learnt the weights' dtype rounds away: the norm of what is lost, as a share of the norm of
    all changes. Near 0 in float32; in bfloat16 small changes of large weights are lost."""


@torch.no_grad()
def merge_adapters(*models: Any) -> Merged:
    """Add every LoRA to its layer, in float32, and put the plain layer in its place.

    The weights keep the dtype that they have.
    """
    layers, lost, learnt = 0, 0.0, 0.0
    for model in models:
        for path, layer in list(model.named_modules()):
            if not isinstance(layer, LoraLayer):
                continue
            plain: Any = layer.get_base_layer()
            for adapter in layer.active_adapters:
                change = layer.get_delta_weight(adapter).float()
                exact = plain.weight.float() + change
                plain.weight.data = exact.to(plain.weight.dtype)
                lost += float((plain.weight.float() - exact).square().sum(dtype=torch.float64))
                learnt += float(change.square().sum(dtype=torch.float64))
            _replace(model, path, plain)
            layers += 1
        for trace in ("peft_config", "_hf_peft_config_loaded"):  # else the model is saved as an adapter
            vars(model).pop(trace, None)
    return Merged(layers, (lost / learnt) ** 0.5 if learnt else 0.0)


def _replace(model: nn.Module, path: str, layer: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, layer)
