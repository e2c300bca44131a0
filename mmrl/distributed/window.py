"""Parameters divided over the processes by `fully_shard`, and whole while the policy samples, replays or evaluates.

Outside of `whole`, each process has its part of every parameter, gradient and optimizer state; a model that is then
called, by all processes at once, gathers its blocks one by one. Inside, a model is what it was before it was placed:
its class, its hooks and plain whole parameters. So pipelines, caches, adapters and `save_pretrained` work unchanged,
processes may compute different numbers of batches, and no process waits for another before the gradients are summed.

Memory for P trained parameters and N processes, in bytes: 8 P for whole float32 weights and gradients, and 12 P / N for
the parts and two moments of AdamW. A frozen reference and an old policy lie divided too, and are gathered with the
parameters where `whole` opens with copies: 2 P or 4 P more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from mmrl.distributed import processes
from mmrl.distributed.divided_blocks import all_blocks, clip_parts, divide_in_blocks, mesh_of_processes
from mmrl.distributed.gradients import sum_gradients
from mmrl.distributed.layout import DividedTensors, WholeCopy
from mmrl.distributed.tensor_parts import all_gather, buckets, fill, is_divided, joined, sum_to_parts
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


_HOOKS = (
    *("_forward_pre_hooks", "_forward_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
"""The kinds of hooks that `fully_shard` registers. Inside `whole` they are taken off: those of the forward pass would
keep count of calls that a replay skips, and those of the state divide the parameters again."""


class Window:
    """Parameters, gradients and optimizer states are divided; parameters are whole while `whole` is open."""

    gathers_in_calls = False

    def __init__(self) -> None:
        self.is_whole = False
        self._models: list[_DividedModel] = []
        self._copies: list[WholeCopy] = []
        self._gathered: list[WholeCopy] = []
        self._mesh: DeviceMesh | None = None

    def place(self, modules: Sequence[nn.Module]) -> None:
        for module in modules:
            self._models.append(_DividedModel(module, self._mesh_on(next(module.parameters()).device)))

    @contextmanager
    def whole(self, copies: bool = True) -> Iterator[None]:
        if self.is_whole:
            self._gather_copies(copies)
            yield
            return
        try:
            for model in self._models:
                model.open()
            self.is_whole = True
            self._gather_copies(copies)
            yield
        finally:
            self.is_whole = False
            for copy in self._gathered:
                copy.release()
            self._gathered = []
            for model in self._models:
                model.close()

    def saving(self) -> AbstractContextManager[None]:
        return self.whole(copies=False)

    @torch.no_grad()
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        trained = list(parameters)
        divided = [parameter for parameter in trained if is_divided(parameter)]
        gradients = [self._whole_of(parameter).grad for parameter in divided]
        reached = torch.tensor([float(gradient is not None) for gradient in gradients])
        processes.sum_in_place([reached])
        likes = [parameter for parameter, count in zip(divided, reached.tolist(), strict=True) if count]
        wholes = [
            torch.zeros_like(self._whole_of(parameter)) if gradient is None else gradient
            for parameter, gradient, count in zip(divided, gradients, reached.tolist(), strict=True)
            if count
        ]
        for parameter in divided:
            self._whole_of(parameter).grad = parameter.grad = None
        for parameter, part in zip(likes, sum_to_parts(wholes, likes), strict=True):
            parameter.grad = joined(part, parameter)
        sum_gradients(parameter for parameter in trained if not is_divided(parameter))

    def clip_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        return clip_parts(parameters, max_norm)

    def parameters_changed(self) -> None:
        if self.is_whole:
            for model in self._models:
                model.keep_changes()

    def current(self, parameter: nn.Parameter) -> nn.Parameter:
        return self._whole_of(parameter) if self.is_whole else parameter

    def keep_whole(self, copy: WholeCopy) -> None:
        self._copies.append(copy)

    def divide(self, tensors: Sequence[Tensor]) -> DividedTensors:
        mesh = self._mesh_on(tensors[0].device)
        parts = FrozenParts(tensors, mesh.get_group(mesh.ndim - 1))
        self._copies.append(parts)
        return parts

    def _whole_of(self, parameter: nn.Parameter) -> nn.Parameter:
        return next((model.wholes[parameter] for model in self._models if parameter in model.wholes), parameter)

    def _gather_copies(self, wanted: bool) -> None:
        for copy in self._copies if wanted and not self._gathered else []:
            copy.gather()
            self._gathered.append(copy)

    def _mesh_on(self, device: torch.device) -> DeviceMesh:
        self._mesh = self._mesh or mesh_of_processes(device)
        return self._mesh


class _DividedModel:
    """A model whose parameters are divided, and its whole parameters by their parts."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh) -> None:
        before = {(module, kind): set(getattr(module, kind)) for module in model.modules() for kind in _HOOKS}
        blocks = all_blocks(model)
        self._classes = [(block, type(block)) for block in blocks]
        divide_in_blocks(model, blocks, mesh)
        parts = dict(model.named_parameters())
        self._bytes = sum(parameter.numel() * parameter.element_size() for parameter in parts.values())
        self._divided: list[tuple[Any, type]] = [(block, type(block)) for block in blocks]
        self._hooks: list[tuple[nn.Module, str, int, Any]] = []
        self.open()
        wholes = dict(model.named_parameters())
        self.wholes = {parts[name]: wholes[name] for name in parts if is_divided(parts[name])}
        self._hooks = [
            (module, kind, key, hook)
            for (module, kind), known in before.items()
            for key, hook in getattr(module, kind).items()
            if key not in known
        ]
        self.close()

    def open(self) -> None:
        """Make the parameters whole, and the modules what they were before they were divided."""
        with processes.collective("gather", self._bytes):
            for block, _ in reversed(self._divided):
                block.unshard()
        for module, kind, key, _ in self._hooks:
            getattr(module, kind).pop(key)
        for block, known in self._classes:
            block.__class__ = known

    def close(self) -> None:
        """Free the whole parameters; also after an `open` that failed half-way."""
        for block, divided in self._divided:
            block.__class__ = divided
        for module, kind, key, hook in self._hooks:
            hooks = getattr(module, kind)
            if key not in hooks:
                hooks[key] = hook
                if kind == "_forward_pre_hooks":
                    hooks.move_to_end(key, last=False)
        for block, _ in self._divided:
            block.reshard()

    def keep_changes(self) -> None:
        """Copy values of the whole parameters into the parts."""
        for part, whole in self.wholes.items():
            fill(part, whole.detach())
