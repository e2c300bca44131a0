"""Weights on disk or on the Hugging Face hub: finding them, and reading them without running any code."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from mmrl.file_digest import file_digest
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import WeightFile

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Precision = Literal["float32", "bfloat16", "float16"]

VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model")
"""Names of vocabulary files; every tokenizer has one of them."""
_TOKENIZER_FILES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "config.json",  # has the tokenizer's class where tokenizer_config.json does not
)
_TRANSFORMERS_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

_LOADING_ERRORS = (
    OSError,
    ValueError,
    RuntimeError,
    LookupError,
    TypeError,
    AttributeError,
    ImportError,
    pickle.UnpicklingError,
)


@dataclass(frozen=True)
class ResolvedFile:
    """A file that a reward loads."""

    path: Path
    label: str  # a local path, or hub id and file name

    def weight_file(self) -> WeightFile:
        """Return the file with its digest; each file is read for it once per process."""
        return WeightFile(self.label, file_digest(self.path))


def find_file(model: str, names: str | Sequence[str], revision: str | None = None) -> ResolvedFile:
    """Return the first of `names` in a folder or hub repository. `model` may also be the file itself.

    Raises:
        RewardError: there is none; the message names the places that were searched.
    """
    names = [names] if isinstance(names, str) else names
    if found := next(_resolved(model, names, revision), None):
        return found
    path = Path(model).expanduser()
    expected = " or ".join(names)
    if path.is_dir():
        raise RewardError(f"the folder {model} has no {expected}; it has {_listing(path)}")
    raise RewardError(
        f"{model}: no {expected}. There is no folder of that name, and the file is neither on the hub nor in its cache "
        f"on this machine. With a network: hf download {model}; else set model to the path of a folder"
    )


def find_weights(model: str, revision: str | None = None) -> tuple[ResolvedFile, ...]:
    """Return the weight files that transformers' `from_pretrained` reads."""
    first = find_file(model, _TRANSFORMERS_WEIGHTS, revision)
    if first.path.suffix != ".json":
        return (first,)
    with loading_errors(first.label):
        shards = json.loads(first.path.read_text(encoding="utf-8"))["weight_map"].values()
        return tuple(find_file(model, shard, revision) for shard in sorted(set(shards)))


def load_pretrained(
    auto: Any, model: str, revision: str | None, dtype: torch.dtype | Literal["auto"]
) -> tuple[Any, tuple[ResolvedFile, ...]]:
    """Return a transformers network, loaded by the class `auto`, and its weight files.

    Raises:
        RewardError: there are no weights, or some that the network needs are missing.
    """
    files = find_weights(model, revision)
    with loading_errors(model):
        network, report = auto.from_pretrained(
            _path_or_id(model),
            revision=revision or "main",
            dtype=dtype,
            use_safetensors=files[0].path.suffix == ".safetensors",
            trust_remote_code=False,  # by default, transformers prompts on the terminal
            output_loading_info=True,
        )
    if missing := sorted(report["missing_keys"]):  # transformers would initialise them at random
        kind = type(network).__name__
        raise RewardError(f"{model}: the weights lack {len(missing)} tensors of a {kind}: {', '.join(missing[:4])}")
    return network, files


def load_component(auto: Any, model: str, revision: str | None, **settings: Any) -> Any:
    """Return a tokenizer, image processor, processor or configuration, loaded by transformers' class `auto`."""
    with loading_errors(model):
        return auto.from_pretrained(
            _path_or_id(model), revision=revision or "main", trust_remote_code=False, **settings
        )


def load_tokenizer(model: str, revision: str | None) -> Any:
    """Return a tokenizer of transformers, which without its files would silently have three tokens."""
    from transformers import AutoTokenizer

    find_file(model, VOCABULARIES, revision)
    return load_component(AutoTokenizer, model, revision)


def fetch_tokenizer(model: str, revision: str | None) -> None:
    """Download a tokenizer's files to the cache of its hub repository; for a folder, check that it has them.

    Raises:
        RewardError: there is no vocabulary.
    """
    find_file(model, VOCABULARIES, revision)
    list(_resolved(model, (*VOCABULARIES, *_TOKENIZER_FILES), revision))


def load_tensors(found: ResolvedFile) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, or of a pickled file that has only tensors."""
    import torch

    with loading_errors(found.label):
        if found.path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(found.path)
        content = torch.load(found.path, map_location="cpu", weights_only=True)
    content = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise RewardError(f"{found.label} has other content than named tensors")
    return content


@contextmanager
def loading_errors(label: str) -> Iterator[None]:
    """Convert the errors of libraries about missing or invalid files to a `RewardError` that names `label`."""
    from safetensors import SafetensorError

    try:
        yield
    except RewardError:
        raise
    except (*_LOADING_ERRORS, SafetensorError) as err:
        raise RewardError(f"{label} cannot be loaded: {err}") from err


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of a name."""
    import torch

    if name not in get_args(Precision):
        raise RewardError(f"dtype is {name!r}; it must be one of {', '.join(get_args(Precision))}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def torch_device(name: str) -> torch.device:
    """Return the device of a name; "auto" is CUDA if available, else the CPU."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError as err:
        raise RewardError(f"device is {name!r}, which is unknown to torch: {err}") from err


def _resolved(model: str, names: Sequence[str], revision: str | None) -> Iterator[ResolvedFile]:
    """Yield those of `names` that are found. Once the hub gave no answer, only its cache is searched."""
    cached_only = False
    for name in names:
        try:
            found = _resolve(model, name, revision, cached_only)
        except _HubUnreachable:
            cached_only, found = True, None  # each further request would be repeated for half a minute
        if found is not None:
            yield found


class _HubUnreachable(Exception):
    """The hub gave no answer, and its cache on this machine lacks the file."""


def _resolve(model: str, name: str, revision: str | None, cached_only: bool) -> ResolvedFile | None:
    path = Path(model).expanduser()
    if path.is_file():
        return ResolvedFile(path, model)
    if path.is_dir():
        return ResolvedFile(path / name, str(Path(model) / name)) if (path / name).is_file() else None
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise RewardError(f"{model} is neither a folder or file on this machine nor a hub id like owner/name")
    return _resolve_on_hub(model, name, revision, cached_only)


def _resolve_on_hub(model: str, name: str, revision: str | None, cached_only: bool) -> ResolvedFile | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        with loading_errors(model):
            path = hf_hub_download(model, name, revision=revision, local_files_only=cached_only)
            return ResolvedFile(Path(path), f"{model}/{name}")
    except RewardError as err:
        if isinstance(err.__cause__, LocalEntryNotFoundError) and not cached_only:
            raise _HubUnreachable from err
        if isinstance(err.__cause__, EntryNotFoundError):  # not in the repository, or offline and not in the cache
            return None
        raise


def _path_or_id(model: str) -> str:
    path = Path(model).expanduser()
    return str(path) if path.exists() else model


def _listing(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"
