"""A pipeline's components from its configuration files: the real classes of diffusers and transformers, no weights.

The sources of the files, in this order: a local folder, the Hub's local cache, the architectures shipped in this
package (`architectures/`), the Hub. Only JSON files are downloaded. Modules are built on torch's meta device, where
tensors have a shape and a dtype but no memory, so a model of any size is built within seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from huggingface_hub import snapshot_download
from torch import nn

from mmrl.errors import UnsupportedError

SHIPPED = Path(__file__).parent / "architectures"
"""A folder with a JSON file per model: sources, published sizes, model_index.json and each component's config.json."""

_FILES = ("config.json", "scheduler_config.json", "guider_config.json")
_PATTERNS = ["model_index.json", *(f"*/{name}" for name in _FILES)]


class ArchitectureNotFound(LookupError):
    """The configuration files of a model cannot be found or downloaded; the message has the reason."""


@dataclass(frozen=True)
class Architecture:
    """The configuration files of a pipeline."""

    origin: str  # the source of the files, as text
    index: Mapping[str, Any]  # the content of model_index.json
    configs: Mapping[str, Mapping[str, Any]]  # the configuration of each component; tokenizers and processors have none

    @property
    def pipeline(self) -> type[diffusers.DiffusionPipeline]:
        """The pipeline's class."""
        name = self.index.get("_class_name")
        found = getattr(diffusers, str(name), None)
        if found is None:
            raise UnsupportedError(f"the installed diffusers {diffusers.__version__} has no pipeline {name}")
        return found

    def classes(self) -> Iterator[tuple[str, type | None]]:
        """Yield each component with its class, or None if the pipeline leaves it empty."""
        for name, home in self.index.items():
            if isinstance(home, list) and len(home) == 2:
                yield name, _find_class(name, *home)

    def settings(self) -> dict[str, Any]:
        """Return the pipeline's arguments that are not components."""
        return {name: value for name, value in self.index.items() if name[0] != "_" and not isinstance(value, list)}


def find_architecture(model: str, revision: str | None = None) -> Architecture:
    """Return the architecture of a folder or a Hugging Face id.

    Raises:
        ArchitectureNotFound: no source has its files.
    """
    if Path(model).is_dir():
        return _from_folder(Path(model), f"the folder {model}")
    try:
        return _from_hub(model, revision, local_files_only=True)
    except ArchitectureNotFound:
        shipped = SHIPPED / f"{model.replace('/', '--')}.json"
        if revision is None and shipped.is_file():
            facts = json.loads(shipped.read_text(encoding="utf-8"))
            return Architecture("the architectures that ship with mmrl", facts["model_index"], facts["configs"])
        return _from_hub(model, revision, local_files_only=False)


def build_component(architecture: Architecture, name: str, kind: type, dtype: torch.dtype, device: str = "meta") -> Any:
    """Return a component as `from_pretrained(dtype=dtype)` would build it, with random weights."""
    config = dict(architecture.configs.get(name, {}))
    narrow = dtype if device != "meta" else torch.get_default_dtype()  # a real module is never float32 temporarily
    with torch.device(device if issubclass(kind, nn.Module) else "cpu"), _default_dtype(narrow):
        is_diffusers = hasattr(kind, "from_config")  # classes of transformers take a config object
        component = kind.from_config(config) if is_diffusers else kind(kind.config_class.from_dict(config))  # type: ignore[attr-defined]
    return _cast(component, dtype) if isinstance(component, nn.Module) else component


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _cast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast every floating-point tensor to `dtype`, except those that the class keeps in float32."""
    float32 = set(getattr(module, "_keep_in_fp32_modules_strict", None) or ())
    if isinstance(module, diffusers.ModelMixin) or dtype == torch.float16:  # transformers: only in float16
        float32 |= set(getattr(module, "_keep_in_fp32_modules", None) or ())
    for path, owner in module.named_modules():
        for name, tensor in [*owner._parameters.items(), *owner._buffers.items()]:
            if tensor is None or not tensor.is_floating_point():
                continue
            place = f"{path}.{name}".split(".")
            cast = tensor.data.to(torch.float32 if any(each in place for each in float32) else dtype)
            if name in owner._parameters:
                tensor.data = cast
            elif name not in owner._non_persistent_buffers_set:  # loading leaves non-persistent buffers unchanged
                owner._buffers[name] = cast
    return module.eval()


def _find_class(name: str, library: str | None, kind: str | None) -> type | None:
    if kind is None:
        return None
    homes = [getattr(diffusers.pipelines, str(library), None), diffusers, transformers]
    found = next((getattr(home, kind) for home in homes if hasattr(home, kind)), None)
    if found is None:
        raise UnsupportedError(f"the component {name} is a {kind}, which diffusers and transformers do not have")
    return found


def _from_folder(folder: Path, origin: str) -> Architecture:
    index = folder / "model_index.json"
    if not index.is_file():
        raise ArchitectureNotFound(f"{folder} has no model_index.json")
    components = json.loads(index.read_text(encoding="utf-8"))
    configs = {}
    for name in components:
        written = next((folder / name / file for file in _FILES if (folder / name / file).is_file()), None)
        if written is not None:
            configs[name] = json.loads(written.read_text(encoding="utf-8"))
    found = Architecture(origin, components, configs)
    for name, kind in found.classes():
        if kind is not None and issubclass(kind, nn.Module) and name not in configs:  # an incomplete cache
            raise ArchitectureNotFound(f"{folder} has no {name}/config.json")
    return found


def _from_hub(model: str, revision: str | None, local_files_only: bool) -> Architecture:
    try:
        folder = snapshot_download(
            model, revision=revision, allow_patterns=_PATTERNS, local_files_only=local_files_only
        )
    except (OSError, ValueError) as err:  # no network, no such model, no permission, no such folder
        raise ArchitectureNotFound(str(err).partition("\n")[0]) from err
    return _from_folder(Path(folder), f"Hugging Face ({model})")
