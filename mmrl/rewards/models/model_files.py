"""Finding weights on disk or on the Hugging Face hub, and reading them without running any code."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.spec import WeightFile

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Precision = Literal["float32", "bfloat16", "float16"]

VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model")
"""Files one of which every tokenizer has."""
_BESIDE_VOCABULARIES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "config.json",  # says of which kind the tokenizer is where tokenizer_config.json does not
)
_TRANSFORMERS_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)

_UNFIT = (
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
class Found:
    """A file that a reward loads."""

    path: Path
    label: str  # a local path, or hub id and file name

    def weight_file(self) -> WeightFile:
        """Its digest; each file is read for it once a process."""
        resolved = self.path.resolve()
        state = resolved.stat()
        return WeightFile(self.label, _sha256(resolved, state.st_mtime_ns, state.st_size))


def find_file(model: str, names: str | Sequence[str], revision: str | None = None) -> Found:
    """The first of `names` that there is in a folder or hub repository. `model` may also be the file itself.

    Raises:
        RewardError: there is none; the message says where it was looked for.
    """
    names = [names] if isinstance(names, str) else names
    for name in names:
        if found := _look_for(model, name, revision):
            return found
    place = Path(model).expanduser()
    wanted = " or ".join(names)
    if place.is_dir():
        raise RewardError(f"the folder {model} has no {wanted}; it has {_listing(place)}")
    raise RewardError(
        f"{model}: no {wanted}. There is no folder of that name here, and neither the hub nor its cache on this "
        f"machine gives it. Where there is a network: hf download {model}; else give a folder's path as model"
    )


def find_weights(model: str, revision: str | None = None) -> tuple[Found, ...]:
    """The files of weights that transformers' `from_pretrained` will read."""
    first = find_file(model, _TRANSFORMERS_WEIGHTS, revision)
    if first.path.suffix != ".json":
        return (first,)
    with explained(first.label):
        shards = json.loads(first.path.read_text(encoding="utf-8"))["weight_map"].values()
        return tuple(find_file(model, shard, revision) for shard in sorted(set(shards)))


def load_pretrained(
    auto: Any, model: str, revision: str | None, dtype: torch.dtype | Literal["auto"]
) -> tuple[Any, tuple[Found, ...]]:
    """A transformers network, and the files that it was read from. `auto` is the class that reads it.

    Raises:
        RewardError: there are no weights, or not all that the network needs.
    """
    files = find_weights(model, revision)
    with explained(model):
        network, report = auto.from_pretrained(
            _place(model),
            revision=revision or "main",
            dtype=dtype,
            use_safetensors=files[0].path.suffix == ".safetensors",
            trust_remote_code=False,  # unset, transformers asks whoever sits at the terminal
            output_loading_info=True,
        )
    if missing := sorted(report["missing_keys"]):  # transformers would fill them with random numbers and go on
        kind = type(network).__name__
        raise RewardError(f"{model}: the weights lack {len(missing)} tensors of a {kind}: {', '.join(missing[:4])}")
    return network, files


def load_part(auto: Any, model: str, revision: str | None, **settings: Any) -> Any:
    """A tokenizer, image processor, processor or configuration, read by transformers' class `auto`."""
    with explained(model):
        return auto.from_pretrained(_place(model), revision=revision or "main", trust_remote_code=False, **settings)


def load_tokenizer(model: str, revision: str | None) -> Any:
    """A tokenizer of transformers, which without the files would make one of three tokens and go on."""
    from transformers import AutoTokenizer

    find_file(model, VOCABULARIES, revision)
    return load_part(AutoTokenizer, model, revision)


def fetch_tokenizer(model: str, revision: str | None) -> None:
    """Brings a tokenizer's files to where the rest of a hub repository lies; a folder only has to have them.

    Raises:
        RewardError: there is no vocabulary.
    """
    find_file(model, VOCABULARIES, revision)
    for name in (*VOCABULARIES, *_BESIDE_VOCABULARIES):
        _look_for(model, name, revision)


def load_tensors(found: Found) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a pickled one that holds nothing else."""
    import torch

    with explained(found.label):
        if found.path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(found.path)
        held = torch.load(found.path, map_location="cpu", weights_only=True)
    held = held.get("state_dict", held) if isinstance(held, dict) else held
    if not isinstance(held, dict) or not all(isinstance(value, torch.Tensor) for value in held.values()):
        raise RewardError(f"{found.label} holds something else than named tensors")
    return held


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Whatever libraries raise when files are missing or unfit becomes one error that names them."""
    from safetensors import SafetensorError

    try:
        yield
    except RewardError:
        raise
    except (*_UNFIT, SafetensorError) as err:
        raise RewardError(f"{what} cannot be loaded: {err}") from err


def torch_dtype(name: str) -> torch.dtype:
    """The number format called `name`."""
    import torch

    if name not in get_args(Precision):
        raise RewardError(f"dtype is {name!r}; it must be one of {', '.join(get_args(Precision))}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def torch_device(name: str) -> torch.device:
    """The device called `name`; "auto" is the GPU if there is one, and otherwise the CPU."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(name)
    except RuntimeError as err:
        raise RewardError(f"device is {name!r}, which torch does not know: {err}") from err


def _look_for(model: str, name: str, revision: str | None) -> Found | None:
    place = Path(model).expanduser()
    if place.is_file():
        return Found(place, model)
    if place.is_dir():
        return Found(place / name, str(Path(model) / name)) if (place / name).is_file() else None
    if place.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise RewardError(f"{model} is neither a folder or file of this machine nor a hub id like owner/name")
    return _look_on_hub(model, name, revision)


def _look_on_hub(model: str, name: str, revision: str | None) -> Found | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        with explained(model):
            return Found(Path(hf_hub_download(model, name, revision=revision)), f"{model}/{name}")
    except RewardError as err:
        if isinstance(err.__cause__, EntryNotFoundError):  # not in the repository, or offline and not in the cache
            return None
        raise


def _place(model: str) -> str:
    place = Path(model).expanduser()
    return str(place) if place.exists() else model


def _listing(folder: Path) -> str:
    return ", ".join(sorted(path.name for path in folder.iterdir())[:12]) or "nothing"


@lru_cache(maxsize=256)
def _sha256(path: Path, modified: int, size: int) -> str:
    """`modified` and `size` are there to notice that the file was replaced."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
