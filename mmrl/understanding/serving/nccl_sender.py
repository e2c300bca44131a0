"""The trainer's end of vLLM's `nccl` weight transfer: one broadcast for each parameter, from the trainer's GPU.

NEVER RUN: this project is tested without GPUs. It is written from the sources of vLLM 0.33.0
(`vllm/distributed/weight_transfer/nccl_common.py` and `nccl_engine.py`), and needs vllm beside the trainer for its NCCL
communicator. The server is started with `--weight-transfer-config '{"backend": "nccl"}'`. Its weights are proven
before they are learnt from, as those of every route.
"""

from __future__ import annotations

import importlib
import importlib.util
import socket
from typing import Any, Self
from urllib.parse import urlsplit

import torch
from torch import nn

from mmrl.errors import ConfigError


class NcclSender:
    """The sender of a model's parameters to the workers of one server."""

    def __init__(self, model: nn.Module, url: str) -> None:
        """
        Raises:
            ConfigError: vllm is not installed beside the trainer.
        """
        if importlib.util.find_spec("vllm") is None:
            raise ConfigError("run.servers.weights: nccl needs vllm beside the trainer (pip install vllm)")
        self._model, self._host = model, str(urlsplit(url).hostname)
        self._group: Any = None
        self._rendezvous: dict[str, Any] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the sender itself: a communicator cannot be copied."""
        return self

    def init_info(self, world_size: int) -> dict[str, object]:
        """Return what the workers need to join: the trainer is rank 0 of 1 + `world_size`."""
        self._rendezvous = {
            "master_address": _own_address(self._host),
            "master_port": _free_port(),
            "world_size": 1 + world_size,
        }
        return self._rendezvous | {"rank_offset": 1, "packed": False}

    def join(self) -> None:
        """Join the group as rank 0, while the workers do."""
        common = importlib.import_module("vllm.distributed.weight_transfer.nccl_common")
        self._group = common.trainer_init(self._rendezvous)

    def update_info(self) -> dict[str, object]:
        """Return the names, dtypes and shapes of all parameters, in the order of `send`."""
        named = list(self._model.named_parameters())
        return {
            "names": [name for name, _ in named],
            "dtype_names": [str(parameter.dtype).removeprefix("torch.") for _, parameter in named],
            "shapes": [list(parameter.shape) for _, parameter in named],
        }

    @torch.no_grad()
    def send(self) -> None:
        """Broadcast the parameters, while the workers receive them."""
        stream = torch.cuda.current_stream()
        for _, parameter in self._model.named_parameters():
            self._group.broadcast(parameter.detach().contiguous(), src=0, stream=stream)
        stream.synchronize()


def _own_address(host: str) -> str:
    """Return the address of this machine from which `host` is reached."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])
