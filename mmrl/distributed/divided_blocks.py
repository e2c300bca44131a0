"""Models whose parameters `fully_shard` divides over the processes, block by block."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from mmrl.distributed import processes
from mmrl.distributed.sharding_plan import blocks_to_shard
from mmrl.distributed.tensor_parts import norm_of_parts, own_part
from mmrl.errors import ConfigError


def mesh_of_processes(device: torch.device) -> DeviceMesh:
    """Return the processes, or with several nodes of several processes a table with a row for each node.

    Parameters are then divided within a node, and each node has all of them.
    """
    size = processes.size()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    table = (size // local, local) if 1 < local < size and size % local == 0 else (size,)
    return init_device_mesh(device.type, table, mesh_dim_names=("nodes", "parts")[-len(table) :])


def divide_in_blocks(model: nn.Module, blocks: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Divide the parameters of a model in place; `blocks` are gathered one at a time, the model itself is the last.

    Raises:
        ConfigError: blocks share parameters.
    """
    scalars = {parameter for parameter in model.parameters() if not parameter.ndim}  # stay whole
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()
    count = len(list(model.parameters()))
    for block in blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True, ignored_params=scalars)
    if len(list(model.parameters())) != count:
        raise ConfigError(f"run.place: blocks of {type(model).__name__} share parameters; choose replicas")


def all_blocks(model: nn.Module) -> list[Any]:
    """Return the blocks of a model that are gathered by themselves, inner ones first, and the model itself."""
    return [*blocks_to_shard(model), model]


@torch.no_grad()
def clip_parts(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale all gradients down to a norm of `max_norm`, if theirs is larger; return the norm before that."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = norm_of_parts(gradients)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        part = own_part(gradient)
        part.mul_(factor.to(part.device))
    return norm


def is_divided(model: nn.Module) -> bool:
    """Return True if processes share parameters, so that a forward pass of one process waits for the others."""
    return any(isinstance(module, FSDPModule) for module in model.modules())
