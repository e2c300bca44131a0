"""Write a trained policy as a folder that `from_pretrained` of diffusers or transformers reads, adapters merged."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from mmrl.build.model_references import ModelRef
from mmrl.build.policies import build_policy
from mmrl.config.policy import ImageTokenConfig, PolicyConfig, Precision, VLMConfig
from mmrl.config.sampling import ImageTokenSamplingConfig, SamplingConfig, TokenSamplingConfig
from mmrl.data.media.sample_media import media_kind
from mmrl.data.sample import Sample
from mmrl.export.extrapolation import extrapolated_changes
from mmrl.export.snippets import pipeline_code, vlm_code
from mmrl.finetuning.weight_trajectories import adapted_layers, adapter_changes

ROUNDED = 0.01
"""The share of a LoRA's change, lost by rounding, from which the card reports it."""


@dataclass(frozen=True)
class ExportRequest:
    """The name, precision and example prompt of an export, and by how much its weights go on."""

    name: str  # the folder's name or OWNER/NAME, as the code of the card names it
    dtype: Precision | None  # the dtype of the weights; None: that of the run
    sample: Sample  # a sample of the run's data, for the code of the card
    ahead: int = 0  # checkpoints by which the weights go on from the model's


@dataclass(frozen=True)
class ExportedModel:
    """The facts about a written folder that its card states."""

    library: str | None  # the library's name on the hub; None: no library loads the folder as a whole
    task: str | None  # the hub's pipeline_tag; None: unknown
    code: str  # python that loads the model
    dtype: Precision  # the dtype in which this code computes
    notes: tuple[str, ...]  # differences between the folder and the run's policy


@dataclass(frozen=True)
class MergeResult:
    """The number of merged layers, and the loss by rounding."""

    layers: int
    rounded: float
    """The norm of what the weights' dtype rounds away, as a share of the norm of all changes: near 0 in float32. In
    bfloat16 small changes of large weights are lost."""


def write_merged(model: ModelRef, folder: Path, request: ExportRequest) -> ExportedModel:
    """Write a whole model, adapters merged.

    Raises:
        ConfigError, OSError: The base cannot be loaded, or does not fit the checkpoint.
    """
    assert model.checkpoint is not None
    whole = model.policy.train == "full"
    dtype: Precision = request.dtype or model.policy.dtype
    # Fully trained weights are float32; a model in one file of weights has one dtype.
    one_file = not isinstance(model.policy, PolicyConfig)
    loaded: Precision = "float32" if whole and one_file and request.dtype is None else dtype
    changes: dict[str, Any] = {"dtype": loaded, "device": "cpu", "attention": "auto", "gradient_checkpointing": False}
    if isinstance(model.policy, PolicyConfig):
        changes["safety_checker"] = True  # the export keeps the base's checker
    policy: Any = build_policy(model.policy.model_copy(update=changes), model.sampling, model.media)
    policy.load(model.checkpoint)
    if whole:
        notes = _round_weights(policy, request.dtype)
    else:
        models = _models(policy)
        moved = extrapolated_changes(policy, models, model, request.ahead) if request.ahead else None
        notes = _merge_notes(merge_adapters(*models, changes=moved), dtype) + _ahead_notes(model, request.ahead)
    match model.policy:
        case PolicyConfig():
            return _write_pipeline(policy.pipeline, model, folder, request, dtype, notes)
        case VLMConfig():
            with policy.head_in_place():
                notes += _blend_notes(policy)
                policy.vlm.model.save_pretrained(folder)
            policy.vlm.processor.save_pretrained(folder)
            longest = cast(TokenSamplingConfig, model.sampling).max_new_tokens
            code = vlm_code(request.name, dtype, request.sample.prompt, bool(request.sample.images), longest)
            return ExportedModel("transformers", "image-text-to-text", code, dtype, notes)
        case ImageTokenConfig():
            from mmrl.generation.image_tokens.image_token_model import SnippetRequest

            image_model = policy.image_model
            image_model.save(folder)
            sampling = cast(ImageTokenSamplingConfig, model.sampling)
            code = image_model.snippet(SnippetRequest(request.name, dtype, request.sample.prompt, sampling))
            return ExportedModel(image_model.library, "text-to-image", code, dtype, notes + image_model.export_notes)


def pipeline_task(known: Mapping[str, Any], name: str, sample: Sample) -> str:
    """Return the hub's `pipeline_tag`, such as text-to-image, of a class with this name and `known` call arguments."""
    output = "video" if "num_frames" in known or "Video" in name else "image"
    source = "video" if "video" in sample.conditions else "image" if _media(sample) else "text"
    return f"{source}-to-{output}"


def _write_pipeline(
    pipeline: Any, model: ModelRef, folder: Path, request: ExportRequest, dtype: Precision, notes: tuple[str, ...]
) -> ExportedModel:
    from mmrl.generation.diffusion.call_arguments import call_arguments, guiders_take_scale

    sampling = cast(SamplingConfig, model.sampling)
    pipeline.save_pretrained(folder, safe_serialization=True)
    known = inspect.signature(type(pipeline).__call__).parameters
    separate = {"prompt", "output_type", "negative_prompt", "num_images_per_prompt", "num_videos_per_prompt"}
    arguments = {k: v for k, v in call_arguments(pipeline, sampling, []).items() if k not in separate}
    if sampling.negative_prompt is not None:
        arguments["negative_prompt"] = sampling.negative_prompt
    task = pipeline_task(known, type(pipeline).__name__, request.sample)
    code = pipeline_code(
        request.name,
        dtype,
        request.sample.prompt if "prompt" in known else None,
        arguments,
        _media(request.sample),
        video=task.endswith("video"),
        scale_on_guider=sampling.guidance_scale if guiders_take_scale(pipeline) else None,
    )
    config = cast(PolicyConfig, model.policy)
    if getattr(pipeline, "safety_checker", None) is not None and not config.safety_checker:
        notes += ("It was trained with the base's safety checker off. Here the checker is on.",)
    if config.scheduler:
        notes += (f"Its scheduler is {config.scheduler}, as in training, and not the base's.",)
    return ExportedModel("diffusers", task, code, dtype, notes)


def _models(policy: Any) -> list[Any]:
    """Return the modules that may contain adapters."""
    if hasattr(policy, "vlm"):
        return [policy.vlm.model]
    if hasattr(policy, "image_model"):
        return [policy.image_model.network]
    return [component for component in policy.pipeline.components.values() if isinstance(component, nn.Module)]


def _round_weights(policy: Any, dtype: Precision | None) -> tuple[str, ...]:
    """Convert the trained float32 weights to another dtype if one is set, and return the note about it."""
    if dtype is None or dtype == "float32":
        return ()
    for parameter in policy.parameters_to_train().values():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    return (f"The trained weights were rounded from float32 to {dtype}.",)


def _merge_notes(merged: MergeResult, dtype: Precision) -> tuple[str, ...]:
    note = f"The LoRA is merged into {merged.layers} layers"
    if merged.rounded < ROUNDED:
        return (f"{note}.",)
    return (
        f"{note}. Rounding the sums to {dtype} lost {merged.rounded:.0%} of what was learnt, by its norm; with "
        "`--dtype float32` or `--lora-only` an export loses nothing.",
    )


def _blend_notes(policy: Any) -> tuple[str, ...]:
    """Give the blended output layer the dtype of the model's own, if there are heads, and return the note about it."""
    if policy.heads is None:
        return ()
    layer: Any = policy.vlm.model.get_output_embeddings()
    layer._parameters["weight"] = layer.weight.detach().to(policy.vlm.model.get_input_embeddings().weight.dtype)
    names = ", ".join(policy.heads.weights)
    return (f"Its output layer is the mean of those that were trained, one for each of {names}.",)


def _ahead_notes(model: ModelRef, ahead: int) -> tuple[str, ...]:
    if not ahead:
        return ()
    assert model.run is not None and model.run.config.training.keep_every is not None
    distance = ahead * model.run.config.training.keep_every
    return (f"Its weights were not trained up to where they are: from iteration {model.step} they go on for the "
            f"distance of {distance} iterations, as a predictor continues their trajectory (NExt, arXiv:2604.11446). "
            "The results on this card are those before.",)  # fmt: skip


def _media(sample: Sample) -> dict[str, Any]:
    """Return the kind of every picture and video among a sample's conditions."""
    return {name: kind for name in sample.conditions if (kind := media_kind(name))}


@torch.no_grad()
def merge_adapters(*models: Any, changes: Iterable[tuple[str, Tensor]] | None = None) -> MergeResult:
    """Add every LoRA to its layer's weight, in float32, and replace the LoRA layer by the plain one.

    The weights keep their dtype. `changes` are added in place of what the LoRAs hold, [M, N] float32 by the names of
    `adapted_layers`.
    """
    layers, lost, learnt = adapted_layers(*models), 0.0, 0.0
    for name, change in adapter_changes(*models) if changes is None else changes:
        plain: Any = layers[name].get_base_layer()
        exact = plain.weight.float() + change.view_as(plain.weight)
        plain.weight.data = exact.to(plain.weight.dtype)
        lost += float((plain.weight.float() - exact).square().sum(dtype=torch.float64))
        learnt += float(change.square().sum(dtype=torch.float64))
        number, _, path = name.partition(".")
        parent, _, own = path.rpartition(".")
        setattr(models[int(number)].get_submodule(parent), own, plain)
    for model in models:
        for trace in ("peft_config", "_hf_peft_config_loaded"):  # else the model is saved as an adapter
            vars(model).pop(trace, None)
    return MergeResult(len(layers), (lost / learnt) ** 0.5 if learnt else 0.0)
