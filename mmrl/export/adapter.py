"""Write the adapters of a checkpoint, for `load_lora_weights` of diffusers or `PeftModel` of peft."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from mmrl.build.model_references import ModelRef
from mmrl.build.policies import resolve_model_path
from mmrl.build.schemes import folder_in_package, scheme_of
from mmrl.config.policy import AnyPolicyConfig, PolicyConfig, VLMConfig
from mmrl.export.merged_model import ExportedModel, ExportRequest, pipeline_task
from mmrl.export.scrub_paths import without_folders
from mmrl.export.snippets import from_package, pipeline_lora_code, token_lora_code, vlm_lora_code

PIPELINE_FILE = "pytorch_lora_weights.safetensors"
PEFT_FILE, PEFT_CONFIG = "adapter_model.safetensors", "adapter_config.json"


def write_adapter(model: ModelRef, folder: Path, request: ExportRequest) -> ExportedModel:
    """Copy the adapters of a checkpoint; no model is loaded.

    They stay float32, as they were trained, unless the request sets another dtype.
    """
    base, notes = _base(model.policy)
    written = _write(model, base, notes, folder, request)
    if scheme_of(model.policy.model) and "/" in base:
        return replace(written, code=from_package(written.code, base))
    return written


def _write(model: ModelRef, base: str, notes: tuple[str, ...], folder: Path, request: ExportRequest) -> ExportedModel:
    checkpoint, policy = model.checkpoint, model.policy
    assert checkpoint is not None
    folder.mkdir(parents=True, exist_ok=True)
    if request.dtype not in (None, "float32"):
        notes += (f"The adapter was rounded from float32 to {request.dtype}.",)
    if isinstance(policy, PolicyConfig):
        return _write_pipeline(checkpoint, policy, base, folder, request, notes)
    _copy(checkpoint / PEFT_FILE, folder / PEFT_FILE, request)
    config: dict[str, Any] = json.loads((checkpoint / PEFT_CONFIG).read_text(encoding="utf-8"))
    config |= {"base_model_name_or_path": base, "revision": policy.revision}
    (folder / PEFT_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if isinstance(policy, VLMConfig):
        code = vlm_lora_code(base, request.name, policy.revision, policy.dtype)
        return ExportedModel("peft", "image-text-to-text", code, policy.dtype, notes)
    kind = str((config.get("auto_mapping") or {}).get("base_model_class", "AutoModelForCausalLM"))
    code = token_lora_code(kind, base, request.name, policy.revision)
    return ExportedModel("peft", "text-to-image", code, policy.dtype, notes)


def _write_pipeline(
    checkpoint: Path, policy: PolicyConfig, base: str, folder: Path, request: ExportRequest, notes: tuple[str, ...]
) -> ExportedModel:
    main = (checkpoint / PIPELINE_FILE).is_file()
    separate = sorted(path.parent.name for path in checkpoint.glob(f"*/{PIPELINE_FILE}"))
    for name in ([""] if main else []) + separate:
        (folder / name).mkdir(exist_ok=True)
        _copy(checkpoint / name / PIPELINE_FILE, folder / name / PIPELINE_FILE, request)
    by_pipeline = [name for name in separate if _prefixed(folder / name / PIPELINE_FILE)]
    code = pipeline_lora_code(
        base,
        request.name,
        policy.revision,
        policy.dtype,
        main=main,
        others=by_pipeline,
        alone=[name for name in separate if name not in by_pipeline],
    )
    return ExportedModel("diffusers", _task(policy, request), code, policy.dtype, notes)


def _base(policy: AnyPolicyConfig) -> tuple[str, tuple[str, ...]]:
    """Return the base's name for the card's code, without folders of this machine, and a note on how to find it."""
    if scheme_of(policy.model):
        name = folder_in_package(policy.model, policy.kind)
        return name, (f"Its base is in an installed package, as `{name}`: install that package.",)
    name = without_folders(policy.model)
    note = f"Its base is a local folder, `{name}`: put the path of that folder into the code above."
    return name, (note,) if name != policy.model else ()


def _task(policy: PolicyConfig, request: ExportRequest) -> str | None:
    """Return the base's `pipeline_tag`, or None if its configuration files are not on this machine."""
    from mmrl.generation.memory.architecture import ArchitectureNotFound, find_architecture

    try:
        found = find_architecture(resolve_model_path(policy).model, policy.revision).pipeline
    except ArchitectureNotFound:
        return None
    return pipeline_task(inspect.signature(found.__call__).parameters, found.__name__, request.sample)


def _copy(source: Path, target: Path, request: ExportRequest) -> None:
    with safe_open(source, framework="pt") as file:
        metadata = file.metadata()  # contains diffusers' alpha
    tensors = load_file(source)
    if request.dtype is not None:
        tensors = {name: tensor.to(getattr(torch, request.dtype)) for name, tensor in tensors.items()}
    save_file(tensors, target, metadata)


def _prefixed(path: Path) -> bool:
    """Return whether the tensors' names begin with a component's name, so that the pipeline's loader reads them."""
    with safe_open(path, framework="pt") as file:
        return all(name.startswith(("transformer.", "unet.")) for name in file.keys())  # noqa: SIM118
