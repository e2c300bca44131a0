"""Tensors that never change, divided evenly over processes and gathered on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from mmrl.distributed import processes
from mmrl.distributed.tensor_parts import all_gather, buckets
from mmrl.errors import RunError


@dataclass(frozen=True)
class _Bucket:
    """This process's equal part of some tensors, laid end to end and padded."""

    part: Tensor  # [n]
    shapes: list[torch.Size]


class FrozenParts:
    """Tensors of which each process keeps an equal part."""

    def __init__(self, tensors: Sequence[Tensor], group: dist.ProcessGroup) -> None:
        """Keep the parts of `tensors`, which are whole and equal in all processes of the group."""
        self._group = group
        self._whole: list[Tensor] | None = None
        self._buckets: list[_Bucket] = []
        order = sorted(range(len(tensors)), key=lambda number: str(tensors[number].dtype))  # few buckets
        self._places = [order.index(number) for number in range(len(order))]
        ordered = [tensors[number] for number in order]
        count, own = dist.get_world_size(group), dist.get_rank(group)
        for numbers in buckets([each.dtype for each in ordered], ordered):
            flat = torch.cat([ordered[number].detach().reshape(-1) for number in numbers])
            size = -(-len(flat) // count)
            part = flat.new_zeros(size)
            rest = flat[own * size : (own + 1) * size]
            part[: len(rest)] = rest
            self._buckets.append(_Bucket(part, [ordered[number].shape for number in numbers]))

    def gather(self) -> None:
        """Make the tensors whole in every process; one collective for each bucket."""
        whole: list[Tensor] = []
        for bucket in self._buckets:
            flat = bucket.part.new_empty(len(bucket.part) * dist.get_world_size(self._group))
            with processes.collective("gather", flat.nbytes):
                all_gather(flat, bucket.part, group=self._group)
            sizes = [shape.numel() for shape in bucket.shapes]
            pieces = torch.split(flat[: sum(sizes)], sizes)
            whole += [piece.view(shape) for piece, shape in zip(pieces, bucket.shapes, strict=True)]
        self._whole = [whole[place] for place in self._places]

    def release(self) -> None:
        """Free the whole tensors."""
        self._whole = None

    def tensors(self) -> list[Tensor]:
        """Return the whole tensors, in order.

        Raises:
            RunError: they are not gathered now.
        """
        if self._whole is None:
            raise RunError("the reference is divided over the processes here: compute with it where it is whole")
        return self._whole
