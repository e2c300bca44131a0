"""Parameters that stay divided over the processes: each block is gathered for its own computation, and freed again.

Every process makes equally many calls of a placed model, in the same order, forward and backward: each of them gathers
blocks from all processes. Gradients are summed block by block in the backward pass; a parameter that one of the
processes does not reach counts as zero there, and one that none reaches has a gradient of zeros.

Memory for P trained parameters and N processes, in bytes: 16 P / N for the parts, their gradients and two moments of
AdamW, and 8 bytes for each parameter of the largest block. A frozen reference and an old policy are parts too: their
values are exchanged with those of the parameters while they compute. Before it is divided, each process has loaded the
whole model on its device, with a reference for full training.

Gradients of inputs that several blocks share are added up in another order than without blocks. In float32 that is the
last bit; in bfloat16, where such sums are rounded to 8 bits, gradients differ visibly from those of other places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from mmrl.distributed.divided_blocks import all_blocks, clip_parts, divide_in_blocks, mesh_of_processes
from mmrl.distributed.gradients import sum_gradients
from mmrl.distributed.layout import WholeCopy
from mmrl.distributed.tensor_parts import cut, is_divided, joined, on_main_whole


class Strict:
    """Parameters, gradients and optimizer states are divided, also while the policy samples, updates or evaluates."""

    is_whole = False
    gathers_in_calls = True

    def __init__(self) -> None:
        self._models: list[_Model] = []
        self._mesh: DeviceMesh | None = None

    def place(self, modules: Sequence[nn.Module]) -> None:
        for module in modules:
            self._mesh = self._mesh or mesh_of_processes(next(module.parameters()).device)
            self._models.append(_Model(module, self._mesh))

    def whole(self, copies: bool = True) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def saving(self) -> Iterator[None]:
        with ExitStack() as stack:
            for model in self._models:
                stack.enter_context(model.saving())
            yield

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        sum_gradients(parameter for parameter in parameters if not is_divided(parameter))

    def clip_gradients(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        return clip_parts(parameters, max_norm)

    def parameters_changed(self) -> None:
        for model in self._models:
            model.free_gathered()

    def current(self, parameter: nn.Parameter) -> nn.Parameter:
        return parameter

    def keep_whole(self, copy: WholeCopy) -> None: ...

    def divide(self, tensors: Sequence[Tensor]) -> None:
        return None


class _Model:
    """A model that gathers its blocks in each call."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh) -> None:
        self._model, self._class = model, type(model)
        self._blocks = all_blocks(model)
        divide_in_blocks(model, self._blocks, mesh)
        for block in self._blocks:
            block.set_gradient_divide_factor(1.0)
            block.set_force_sum_reduction_for_comms(True)  # gloo has no sum that is scaled on the way
        self._blocks[-1].set_reduce_scatter_unused_params(True)
        model.register_load_state_dict_pre_hook(_divide_state)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """While open, the model of process 0 has its class and state as if it was never divided; frozen parts stay."""
        trained = {name: each for name, each in self._model.named_parameters() if each.requires_grad}
        wholes = on_main_whole({name: each.detach() for name, each in trained.items()})

        def fill_in(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
            state.update({name: whole for name, whole in wholes.items() if name in state})

        hook = self._model.register_state_dict_post_hook(fill_in)
        divided, self._model.__class__ = self._model.__class__, self._class
        try:
            yield
        finally:
            self._model.__class__ = divided
            hook.remove()

    def free_gathered(self) -> None:
        """Free whole parameters that a call may have left, so that the next one gathers the parts as they are now."""
        for block in self._blocks:
            block.reshard()


def _divide_state(model: nn.Module, state: dict[str, Any], *_: Any) -> None:
    """Replace whole tensors of a state that is about to be loaded by this process's parts."""
    likes: Mapping[str, nn.Parameter] = dict(model.named_parameters())
    for name, value in state.items():
        like = likes.get(name)
        if like is not None and is_divided(like) and not is_divided(value):
            state[name] = joined(cut(value, like).to(like.device), like)
