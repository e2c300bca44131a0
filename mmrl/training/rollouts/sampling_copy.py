"""A copy of a policy that samples in another thread; it shares all parameters but the trained ones."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from mmrl.policy import Policy

P = TypeVar("P", bound=Policy)

_PLAIN = (str, bytes, int, float, complex, bool, type(None), type)


def sampling_copy(policy: P) -> P:
    """Return a copy of the policy with its own modules, in which the trained parameters alone are copied.

    The copy records what the original can replay. An object that two threads cannot share, or that cannot be copied,
    such as a connection to a server, defines `__deepcopy__`.
    """
    trained = {id(parameter) for parameter in policy.parameters_to_train().values()}
    shared: dict[int, Any] = {id(tensor): tensor for tensor in _module_tensors(policy) if id(tensor) not in trained}
    return copy.deepcopy(policy, shared)


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
