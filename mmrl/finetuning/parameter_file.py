"""The file of a network that a run trains beside its policy: all trained parameters by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mmrl.errors import ConfigError


def save_parameters(parameters: Mapping[str, nn.Parameter], file: Path) -> None:
    """Write parameters by name as safetensors."""
    save_file({name: p.detach().contiguous() for name, p in parameters.items()}, file)


@torch.no_grad()
def read_parameters(parameters: Mapping[str, nn.Parameter], file: Path, what: str) -> None:
    """Copy what `save_parameters` wrote into the parameters of the same names; `what` names the model in the error.

    Raises:
        ConfigError: the file has parameters of other names.
    """
    state = load_file(file)
    if odd := sorted(state.keys() ^ parameters.keys())[:3]:
        raise ConfigError(f"{file} holds another {what}; they differ in {', '.join(odd)}")
    for name, parameter in parameters.items():
        parameter.copy_(state[name])
