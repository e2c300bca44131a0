"""A pipeline from its configuration files alone: the real classes of diffusers and transformers, without weights.

Where the files come from, in this order: a local folder, the hub's local cache, the architectures that ship in this
package (`architectures/`), the hub. Only JSON is ever fetched. Modules are built on torch's meta device, where
tensors have a shape and a type and take no memory, so that a model of any size is there in a second.
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
"""One JSON file a model: where its facts come from, published sizes, model_index.json, each component's config.json."""

_FILES = ("config.json", "scheduler_config.json", "guider_config.json")
_PATTERNS = ["model_index.json", *(f"*/{name}" for name in _FILES)]


class ArchitectureNotFound(LookupError):
    """The configuration files of a model cannot be had here and now; the message is why."""


@dataclass(frozen=True)
class Architecture:
    """What a pipeline is made of."""

    origin: str
    """Where the files came from, for people to read."""
    index: Mapping[str, Any]
    """model_index.json."""
    configs: Mapping[str, Mapping[str, Any]]
    """By component, its configuration; tokenizers and processors have none."""

    @property
    def pipeline(self) -> type[diffusers.DiffusionPipeline]:
        """The pipeline's class."""
        name = self.index.get("_class_name")
        found = getattr(diffusers, str(name), None)
        if found is None:
            raise UnsupportedError(f"the installed diffusers {diffusers.__version__} has no pipeline {name}")
        return found

    def classes(self) -> Iterator[tuple[str, type | None]]:
        """Each component with its class, or None where the pipeline leaves it empty."""
        for name, home in self.index.items():
            if isinstance(home, list) and len(home) == 2:
                yield name, _find_class(name, *home)

    def settings(self) -> dict[str, Any]:
        """What the pipeline is given beside its components."""
        return {name: value for name, value in self.index.items() if name[0] != "_" and not isinstance(value, list)}


def find_architecture(model: str, revision: str | None = None) -> Architecture:
    """The architecture of a folder or a Hugging Face id.

    Raises:
        ArchitectureNotFound: it is nowhere to be had.
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
    """One component as `from_pretrained(dtype=dtype)` would make it, with random weights where there are any."""
    config = dict(architecture.configs.get(name, {}))
    narrow = dtype if device != "meta" else torch.get_default_dtype()  # a real one should not be float32 on its way
    with torch.device(device if issubclass(kind, nn.Module) else "cpu"), _default_dtype(narrow):
        ours = hasattr(kind, "from_config")  # a class of diffusers; those of transformers take a config object
        made = kind.from_config(config) if ours else kind(kind.config_class.from_dict(config))  # type: ignore[attr-defined]
    return _cast(made, dtype) if isinstance(made, nn.Module) else made


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _cast(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Every floating-point tensor in `dtype`, but for those that the class keeps in float32."""
    kept = set(getattr(module, "_keep_in_fp32_modules_strict", None) or ())
    if isinstance(module, diffusers.ModelMixin) or dtype == torch.float16:  # transformers: in float16 alone
        kept |= set(getattr(module, "_keep_in_fp32_modules", None) or ())
    for path, owner in module.named_modules():
        for name, tensor in [*owner._parameters.items(), *owner._buffers.items()]:
            if tensor is None or not tensor.is_floating_point():
                continue
            place = f"{path}.{name}".split(".")
            cast = tensor.data.to(torch.float32 if any(each in place for each in kept) else dtype)
            if name in owner._parameters:
                tensor.data = cast
            elif name not in owner._non_persistent_buffers_set:  # those are no weights: loading leaves them alone
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
        raise ArchitectureNotFound(f"{folder} holds no model_index.json")
    components = json.loads(index.read_text(encoding="utf-8"))
    configs = {}
    for name in components:
        written = next((folder / name / file for file in _FILES if (folder / name / file).is_file()), None)
        if written is not None:
            configs[name] = json.loads(written.read_text(encoding="utf-8"))
    found = Architecture(origin, components, configs)
    for name, kind in found.classes():
        if kind is not None and issubclass(kind, nn.Module) and name not in configs:  # a cache that is not complete
            raise ArchitectureNotFound(f"{folder} holds no {name}/config.json")
    return found


def _from_hub(model: str, revision: str | None, local_files_only: bool) -> Architecture:
    try:
        folder = snapshot_download(
            model, revision=revision, allow_patterns=_PATTERNS, local_files_only=local_files_only
        )
    except (OSError, ValueError) as err:  # no network, no such model, no permission, no such folder
        raise ArchitectureNotFound(str(err).partition("\n")[0]) from err
    return _from_folder(Path(folder), f"Hugging Face ({model})")
