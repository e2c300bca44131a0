"""The sum of gradients over processes that all have the whole model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from mmrl.distributed import processes


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
    processes.sum_in_place([reached, *gradients])
    for parameter, count, gradient in zip(trained, reached.tolist(), gradients, strict=True):
        parameter.grad = gradient if count else None
