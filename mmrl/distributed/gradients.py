"""Gradients and parameters of processes that all have the whole model: the first are summed, the second compared."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from mmrl.distributed import processes
from mmrl.distributed.tensor_parts import is_divided
from mmrl.errors import RunError


@torch.no_grad()
def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace each gradient by its sum over the processes; one reduction for each device and dtype.

    A parameter that no process has a gradient of keeps none, as with one process, so that the optimizer leaves it as it
    is. The order of additions differs from that of one process, and with it the last bit.
    """
    if processes.size() == 1:
        return
    trained = list(parameters)
    reached = torch.tensor([float(parameter.grad is not None) for parameter in trained])
    gradients = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach() for parameter in trained
    ]
    counts, *gradients = processes.sums([reached, *gradients])  # their memory, to spare a copy
    for parameter, count, gradient in zip(trained, counts.tolist(), gradients, strict=True):
        parameter.grad = gradient if count else None


@torch.no_grad()
def check_replicas(parameters: Iterable[nn.Parameter]) -> None:
    """Check that every process has the same values, by a sum in float64; parameters that are divided are left out.

    Raises:
        RunError: they differ, naming the processes that have other values than process 0.
    """
    if processes.size() == 1:
        return
    sums = [parameter.detach().double().sum() for parameter in parameters if not is_divided(parameter)]
    first, *others = processes.gather(torch.stack(sums).cpu().tolist() if sums else [])
    if odd := [str(rank) for rank, other in enumerate(others, start=1) if other != first]:
        raise RunError(
            f"process {', '.join(odd)} has other parameters than process 0: something changed them outside of the "
            "optimizer, or the processes compute differently. No checkpoint was written with them"
        )
