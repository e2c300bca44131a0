"""Parts of tensors: every process of a group has equally many rows of each, the last ones fewer.

Row here means a slice along the first dimension, as `fully_shard` divides parameters. Parts travel in buckets: one
collective for many tensors, and no more memory than a bucket beside the tensors themselves. Functions that take a
tensor as it comes return or change plain tensors as they are, without importing anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mmrl.distributed import processes

BUCKET = 2**25
"""The most elements of a whole bucket, 128 MiB in float32; a larger tensor has a bucket to itself."""

# The names since torch 2.13, where the earlier ones warn.
all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def is_divided(tensor: Tensor) -> bool:
    """Return True if this process has only a part of the tensor (it is a DTensor)."""
    return hasattr(tensor, "device_mesh")


def own_part(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, which shares its memory and has no gradient; a whole tensor itself."""
    if not is_divided(tensor):
        return tensor.detach()
    part: Tensor = _dtensor(tensor).to_local().detach()
    return part


def cut(whole: Tensor, like: Tensor) -> Tensor:
    """Return the part of a whole tensor that this process has of `like`, as a view of it; else the tensor itself."""
    if not is_divided(like):
        return whole
    mesh = _dtensor(like).device_mesh
    rows = -(-like.shape[0] // mesh.size(mesh.ndim - 1))
    start = min(like.shape[0], rows * mesh.get_local_rank(mesh.ndim - 1))
    return whole[start : start + rows]


def joined(part: Tensor, like: Tensor) -> Tensor:
    """Return the tensor of which each process has this part, divided as `like` is; the part itself if that is whole."""
    if not is_divided(like):
        return part
    from torch.distributed.tensor import DTensor

    known = _dtensor(like)
    return DTensor.from_local(
        part, known.device_mesh, known.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


@torch.no_grad()
def fill(tensor: Tensor, whole: Tensor) -> None:
    """Copy whole values into a tensor, of which this process may have a part."""
    own_part(tensor).copy_(cut(whole, tensor))


def on_main_whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the whole values of tensors by name, in process 0; tensors that are whole already are returned themselves.

    Divided tensors come to the CPU. Where any is divided, all processes call this, and all but process 0 get nothing.
    """
    divided = {name: tensor for name, tensor in tensors.items() if is_divided(tensor)}
    if not divided:
        return dict(tensors)
    parts = [own_part(tensor) for tensor in divided.values()]
    found: dict[str, Tensor] = {}
    for name, whole in zip(divided, gather_parts(parts, list(divided.values())), strict=True):
        if processes.is_main():
            found[name] = whole.to("cpu", copy=True)
    return {name: found.get(name, tensor) for name, tensor in tensors.items()} if processes.is_main() else {}


@torch.no_grad()
def gather_parts(parts: Sequence[Tensor], likes: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield whole tensors in order, from each process's parts, which lie as `likes` do; plain ones as they are.

    Tensors of a bucket are gathered together, just before the first of them is yielded.
    """
    for numbers in buckets([part.dtype for part in parts], likes):
        if not is_divided(likes[numbers[0]]):
            yield from (parts[number] for number in numbers)
            continue
        group, count = _shard_group(likes[numbers[0]])
        sizes = [_padded_size(likes[number], count) for number in numbers]
        row = parts[numbers[0]].new_zeros(sum(sizes))
        for number, place in zip(numbers, torch.split(row, sizes), strict=True):
            place[: parts[number].numel()] = parts[number].reshape(-1)
        rows = row.new_empty(count * len(row))
        with processes.collective("gather", rows.nbytes):
            all_gather(rows, row, group=group)
        for number, column in zip(numbers, torch.split(rows.view(count, -1), sizes, dim=1), strict=True):
            like = likes[number]
            yield column.reshape(-1)[: like.numel()].view(like.shape)


@torch.no_grad()
def sum_to_parts(wholes: Sequence[Tensor], likes: Sequence[Tensor]) -> Iterator[Tensor]:
    """Yield this process's part of each sum of whole tensors over all processes; `likes` are all divided."""
    for numbers in buckets([whole.dtype for whole in wholes], likes):
        first = _dtensor(likes[numbers[0]])
        group, count = _shard_group(first)
        sizes = [_padded_size(likes[number], count) for number in numbers]
        rows = wholes[numbers[0]].new_zeros(count, sum(sizes))
        for number, column in zip(numbers, torch.split(rows, sizes, dim=1), strict=True):
            whole = wholes[number].reshape(-1)
            padded = torch.cat([whole, whole.new_zeros(column.numel() - len(whole))])
            column.copy_(padded.view(column.shape))
        row = rows.new_empty(rows.shape[1])
        with processes.collective("sum", rows.nbytes):
            _reduce_scatter(row, rows.view(-1), group=group)
            if first.device_mesh.ndim == 2:  # parts are divided within a node, and every node has all of them
                dist.all_reduce(row, group=first.device_mesh.get_group(0))
        for number, place in zip(numbers, torch.split(row, sizes), strict=True):
            own = own_part(likes[number])
            yield place[: own.numel()].view(own.shape)


def norm_of_parts(tensors: Iterable[Tensor]) -> Tensor:
    """Return the 2-norm of all values of some tensors, whole or divided; equal in all processes."""
    found = list(tensors)
    plain = [tensor for tensor in found if not is_divided(tensor)]
    divided = [tensor for tensor in found if is_divided(tensor)]
    square = torch.zeros(()) if not plain else torch.nn.utils.get_total_norm(plain).square()
    if divided:
        own = torch.nn.utils.get_total_norm([own_part(tensor) for tensor in divided]).square()
        with processes.collective("sum"):
            dist.all_reduce(own, group=_shard_group(divided[0])[0])
        square = own + square.to(own.device)
    return square.sqrt()


def buckets(dtypes: Sequence[torch.dtype], likes: Sequence[Tensor]) -> Iterator[list[int]]:
    """Yield numbers of neighbours that travel together: of one dtype and device, at most `BUCKET`."""
    bucket: list[int] = []
    kind, size = None, 0
    for number, (dtype, like) in enumerate(zip(dtypes, likes, strict=True)):
        now = dtype, like.device, is_divided(like)
        if bucket and (now != kind or size + like.numel() > BUCKET):
            yield bucket
            bucket, size = [], 0
        kind, size = now, size + like.numel()
        bucket.append(number)
    if bucket:
        yield bucket


def _shard_group(like: Tensor) -> tuple[dist.ProcessGroup, int]:
    """Return the processes among which a tensor is divided, and their number."""
    mesh = _dtensor(like).device_mesh
    return mesh.get_group(mesh.ndim - 1), mesh.size(mesh.ndim - 1)


def _padded_size(like: Tensor, count: int) -> int:
    """Return the number of elements of the largest part."""
    return -(-like.shape[0] // count) * (like.numel() // max(1, like.shape[0]))


def _dtensor(tensor: Tensor) -> Any:
    return tensor
