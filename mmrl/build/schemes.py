"""Models, data sets and benchmark files that installed packages provide, named `SCHEME` or `SCHEME:NAME`.

A package offers them as entry points; the entry point's name is the scheme. ShapeWorld, which is installed with mmrl,
is one such package (see pyproject.toml), and another package does the same:

    [project.entry-points."mmrl.models"]            # policy.model: my_world, my_world:large
    my_world = "my_package:model_folder"            # (name, policy kind) -> Path of a local folder

    [project.entry-points."mmrl.datasets"]          # data.path: my_world:train
    my_world = "my_package:samples"                 # split -> list of Sample

    [project.entry-points."mmrl.image_embedders"]   # distances between images in `mmrl evaluate`
    my_world = "my_package:image_embedder"          # () -> Embedder, for the models of the same scheme

    [project.entry-points."mmrl.benchmark_data"]    # mmrl evaluate --protocol NAME --data my_world
    my_world = "my_package:BENCHMARK_DATA"          # a BenchmarkData

Providers raise KeyError with a message for a name that they do not know. No package is imported before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mmrl.components import Registry
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.statistics.distances import Embedder

P = TypeVar("P")
_SCHEME = re.compile(r"[A-Za-z][\w-]+(?=:)")  # two characters or more, because C: is a drive


class BenchmarkData(Protocol):
    """Generated samples in the file formats of public benchmarks."""

    @property
    def validation(self) -> Mapping[str, str]:
        """The `data.path` that a policy of each kind is evaluated on if no protocol is named."""

    def write(self, format: str, folder: Path, count: int, seed: int) -> None:
        """Write `count` samples in a format of `mmrl.benchmarks.readers`; the same arguments write the same bytes."""

    def overrides(self, protocol: str) -> Mapping[str, Any]:
        """Return other values for keys of a protocol: `rewards` and `metrics`, and `ask` for models of this scheme."""


MODELS: Registry[Callable[[str, str], Path]] = Registry("mmrl.models", "model provider", {})
DATASETS: Registry[Callable[[str], list[Sample]]] = Registry("mmrl.datasets", "data provider", {})
IMAGE_EMBEDDERS: Registry[Callable[[], Embedder]] = Registry("mmrl.image_embedders", "image embedder", {})
BENCHMARK_DATA: Registry[BenchmarkData] = Registry("mmrl.benchmark_data", "benchmark data", {})


def scheme_of(text: str, registry: Registry[Any] = MODELS) -> str | None:
    """Return the scheme of a model or a data set that an installed package provides; None if none provides it."""
    scheme = text.partition(":")[0]
    return scheme if scheme in registry.names() else None


def provided_model(model: str, kind: str) -> str | None:
    """Return the local folder of the `policy.model` that an installed package provides; None for a folder or a hub id.

    Raises:
        ConfigError: No package provides the scheme, or its package has no such model.
    """
    found = _provider(MODELS, model, "policy.model")
    return None if found is None else str(_call(found[0], found[1], kind, key="policy.model"))


def provided_samples(path: str) -> list[Sample] | None:
    """Return the samples of a split that an installed package provides; None for data of another origin.

    Raises:
        ConfigError: No package provides the scheme, or its package has no such split.
    """
    if ":" not in path or path.startswith("hf:"):  # hf:owner/name is a data set of the hub
        return None
    found = _provider(DATASETS, path, "data")
    return None if found is None else _call(found[0], found[1], key=path)


def folder_in_package(model: str, kind: str) -> str:
    """Return the folder of a provided model relative to its package's parent: the same text on every machine."""
    folder, scheme = provided_model(model, kind), scheme_of(model)
    assert folder is not None and scheme is not None
    spec = find_spec(MODELS.place(scheme).partition(".")[0].partition(":")[0])
    for package in (spec.submodule_search_locations or ()) if spec else ():
        if Path(folder).is_relative_to(Path(package).parent):
            return Path(folder).relative_to(Path(package).parent).as_posix()
    return Path(folder).name


def _provider(registry: Registry[P], text: str, key: str) -> tuple[P, str] | None:
    """Return the provider of `SCHEME:NAME` and NAME; None if the text is a path or a hub id."""
    if scheme := scheme_of(text, registry):
        return registry.load(scheme), text[len(scheme) + 1 :]
    if _SCHEME.match(text) and not Path(text).exists() and not Path(text.rpartition(":")[0]).exists():
        known = ", ".join(registry.names()) or "none"
        raise ConfigError(f"{key}: no installed package provides {text} (as a {registry.kind}); known: {known}")
    return None


def _call(provider: Callable[..., P], *arguments: str, key: str) -> P:
    try:
        return provider(*arguments)
    except KeyError as err:
        raise ConfigError(f"{key}: {err.args[0]}") from err
