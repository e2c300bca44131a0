"""The adapters of a checkpoint alone: what `load_lora_weights` of diffusers or `PeftModel` of peft reads."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import mmrl
from mmrl.build.checkpoint_pool import ModelRef
from mmrl.build.policies import resolve_model_path
from mmrl.config.policy import AnyPolicyConfig, PolicyConfig, VLMConfig
from mmrl.export.merged_model import Asked, Plain, pipeline_task
from mmrl.export.scrub_paths import without_folders
from mmrl.export.snippets import pipeline_lora_code, token_lora_code, vlm_lora_code

PIPELINE_FILE = "pytorch_lora_weights.safetensors"
PEFT_FILE, PEFT_CONFIG = "adapter_model.safetensors", "adapter_config.json"


def write_adapter(subject: ModelRef, folder: Path, asked: Asked) -> Plain:
    """Copy the adapters of a checkpoint; no model is loaded.

    They are float32, as they were trained, unless another dtype is asked for.
    """
    checkpoint, policy = subject.checkpoint, subject.policy
    assert checkpoint is not None
    folder.mkdir(parents=True, exist_ok=True)
    model, notes = _base(policy)
    if asked.dtype not in (None, "float32"):
        notes += (f"The adapter was rounded from float32 to {asked.dtype}.",)
    if isinstance(policy, PolicyConfig):
        return _of_pipeline(checkpoint, policy, model, folder, asked, notes)
    _copy(checkpoint / PEFT_FILE, folder / PEFT_FILE, asked)
    told: dict[str, Any] = json.loads((checkpoint / PEFT_CONFIG).read_text(encoding="utf-8"))
    told |= {"base_model_name_or_path": model, "revision": policy.revision}
    (folder / PEFT_CONFIG).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    if isinstance(policy, VLMConfig):
        code = vlm_lora_code(model, asked.name, policy.revision, policy.dtype)
        return Plain("peft", "image-text-to-text", code, policy.dtype, notes)
    kind = str((told.get("auto_mapping") or {}).get("base_model_class", "AutoModelForCausalLM"))
    code = token_lora_code(kind, model, asked.name, policy.revision)
    return Plain("peft", "text-to-image", code, policy.dtype, notes)


def _of_pipeline(
    checkpoint: Path, policy: PolicyConfig, model: str, folder: Path, asked: Asked, notes: tuple[str, ...]
) -> Plain:
    main = (checkpoint / PIPELINE_FILE).is_file()
    apart = sorted(path.parent.name for path in checkpoint.glob(f"*/{PIPELINE_FILE}"))
    for name in ([""] if main else []) + apart:
        (folder / name).mkdir(exist_ok=True)
        _copy(checkpoint / name / PIPELINE_FILE, folder / name / PIPELINE_FILE, asked)
    by_pipeline = [name for name in apart if _prefixed(folder / name / PIPELINE_FILE)]
    code = pipeline_lora_code(
        model,
        asked.name,
        policy.revision,
        policy.dtype,
        main=main,
        others=by_pipeline,
        alone=[name for name in apart if name not in by_pipeline],
    )
    return Plain("diffusers", _task(policy, asked), code, policy.dtype, notes)


def _base(policy: AnyPolicyConfig) -> tuple[str, tuple[str, ...]]:
    """What the code calls the base, and what is to be said of it."""
    located_policy: AnyPolicyConfig = resolve_model_path(policy)  # type: ignore[type-var]
    place, name = located_policy.model, without_folders(policy.model)
    if place != policy.model:
        name = f"mmrl/{Path(place).relative_to(Path(mmrl.__file__).parent).as_posix()}"
        return name, (f"Its base ships inside mmrl, as `{name}`: put the path of that folder into the code above.",)
    if name != policy.model:
        return name, (f"Its base is a local folder, `{name}`: put the path of that folder into the code above.",)
    return name, ()


def _task(policy: PolicyConfig, asked: Asked) -> str | None:
    """Of the base, as far as its configuration files are at hand."""
    from mmrl.generation.memory.architecture import ArchitectureNotFound, find_architecture

    try:
        found = find_architecture(resolve_model_path(policy).model, policy.revision).pipeline
    except ArchitectureNotFound:
        return None
    return pipeline_task(inspect.signature(found.__call__).parameters, found.__name__, asked.sample)


def _copy(source: Path, target: Path, asked: Asked) -> None:
    with safe_open(source, framework="pt") as file:
        metadata = file.metadata()  # diffusers keeps alpha there
    tensors = load_file(source)
    if asked.dtype is not None:
        tensors = {name: tensor.to(getattr(torch, asked.dtype)) for name, tensor in tensors.items()}
    save_file(tensors, target, metadata)


def _prefixed(path: Path) -> bool:
    """Whether a pipeline's own loader reads it: its names begin with a component's."""
    with safe_open(path, framework="pt") as file:
        return all(name.startswith(("transformer.", "unet.")) for name in file.keys())  # noqa: SIM118
