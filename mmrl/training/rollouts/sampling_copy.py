"""A copy of a policy that samples in another thread; it shares all parameters but the trained ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mmrl.errors import ConfigError
from mmrl.policy import Policy

P = TypeVar("P", bound=Policy)

ALIGNMENT = 64
"""The bytes of a cache line, which vector instructions begin at."""
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type)


def sampling_copy(policy: P) -> P:
    """Return a copy of the policy with its own modules, in which the trained parameters alone are copied.

    The copy records what the original can replay. An object that cannot be copied, such as a connection to a server,
    defines `__deepcopy__`.

    Raises:
        ConfigError: a part of the policy cannot be copied.
    """
    known: dict[int, Any] = {id(tensor): tensor for tensor in _module_tensors(policy)}
    known |= {id(parameter): _aligned_copy(parameter) for parameter in policy.parameters_to_train().values()}
    try:
        return copy.deepcopy(policy, known)
    except TypeError as err:
        raise ConfigError(
            f"run.overlap: {type(policy).__name__} cannot be copied for the sampling thread ({err}): leave it out, or "
            "define __deepcopy__ in the class of that part"
        ) from err


def _aligned_copy(parameter: nn.Parameter) -> nn.Parameter:
    """Return a copy at an address with the same alignment: on CPUs, the rounding of a product depends on it."""
    values = parameter.detach().clone()
    size, unit = values.nbytes, values.element_size()
    if (
        values.device.type == "cpu"
        and values.is_contiguous()
        and (parameter.data_ptr() - values.data_ptr()) % ALIGNMENT
    ):
        room = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
        start = (parameter.data_ptr() - room.data_ptr()) % ALIGNMENT
        if start % unit == 0:
            values = room[start : start + size].view(values.dtype).view(values.shape).copy_(values)
    return nn.Parameter(values, requires_grad=parameter.requires_grad)


def _module_tensors(root: Any) -> Iterator[Tensor]:
    """Yield the parameters, and the buffers of the modules, that can be reached from an object."""
    seen: set[int] = set()
    pending: list[Any] = [root]
    while pending:
        each = pending.pop()
        if isinstance(each, _PLAIN) or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, nn.Parameter):
            yield each
        elif isinstance(each, Mapping):
            pending += each.values()
        elif isinstance(each, list | tuple | set | frozenset):
            pending += each
        elif not isinstance(each, Tensor) and hasattr(each, "__dict__"):
            if isinstance(each, nn.Module):
                yield from each.buffers(recurse=False)
            pending += vars(each).values()
