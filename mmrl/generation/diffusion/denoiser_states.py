"""Intermediate states of a denoiser at any noisy latents, with gradients in the latents.

What a frozen generator computes on its way to a velocity tells how well noisy latents suit a prompt, at a noise level
at which no picture can be read yet. Heads of reward models are trained on it (`mmrl.generation.latent_encoder`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.errors import ConfigError, UnsupportedError
from mmrl.generation.diffusion.denoiser_hook import Guiders
from mmrl.generation.diffusion.loops import StopPipeline, VelocityLoop
from mmrl.generation.diffusion.pytree import map_leaves
from mmrl.generation.diffusion.recording import Recording


class StatesLoop(VelocityLoop):
    """A loop that stops in the denoiser, once the last of some of its modules has run at (x_t, sigma).

    Gradients, where they are enabled, flow from the states to `noisy`.
    """

    def __init__(
        self, guiders: Guiders, recording: Recording, noisy: Tensor, sigma: float, modules: Sequence[nn.Module]
    ) -> None:
        super().__init__(guiders, recording, noisy, sigma)
        self.states: list[Any] = [None] * len(modules)
        self._modules = modules

    def needs_grad(self) -> bool:
        return True  # what pipelines do with x_t before they call the denoiser belongs to the graph

    def denoise(self, compute: Callable[[], Any], arguments: Any) -> Any:
        if not self.is_computed(self.step):
            return super().denoise(compute, arguments)
        hooks = [each.register_forward_hook(self._keep(place)) for place, each in enumerate(self._modules)]
        try:
            compute()
        finally:
            for hook in hooks:
                hook.remove()
        raise UnsupportedError("the denoiser does not call the modules of encoder.layers at this noise level")

    def _keep(self, place: int) -> Callable[[nn.Module, Any, Any], None]:
        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            self.states[place] = output
            if all(each is not None for each in self.states):
                raise StopPipeline

        return keep


def find_modules(denoiser: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Return the modules of a denoiser by their names in it, such as `transformer_blocks.2` or `mid_block`.

    Raises:
        ConfigError: there is no such module. The message lists those that the denoiser itself holds.
    """
    known = dict(denoiser.named_modules())
    for name in names:
        if not name or name not in known:
            parts = [each for each, module in denoiser.named_children() if not isinstance(module, nn.ModuleList)]
            lists = [f"{each}.0 to {each}.{len(module) - 1}" for each, module in denoiser.named_children()
                     if isinstance(module, nn.ModuleList) and len(module)]  # fmt: skip
            raise ConfigError(f"encoder.layers: {type(denoiser).__name__} has no {name!r}: name one of "
                              f"{', '.join([*lists, *parts])}, or a module in one of them")  # fmt: skip
    return [known[name] for name in names]


def row_states(output: Any, rows: int) -> Tensor:  # [B, N, D]
    """Return what a module outputs as N positions of each row: in the order of time, height, width.

    A module may return a tensor [B, N, D], [B F, D, H, W] or [B, D, F, H, W], or several, of which the one with the
    most positions counts: that of the latents, not that of the prompt.

    Raises:
        UnsupportedError: it returns no such tensor.
    """
    found: list[Tensor] = []
    map_leaves(Tensor, found.append, output)
    candidates = [each for each in map(lambda leaf: _positions(leaf, rows), found) if each is not None]
    if not candidates:
        shapes = ", ".join(str(list(each.shape)) for each in found) or type(output).__name__
        raise UnsupportedError(f"a layer gives {shapes} for {rows} rows: expected states of positions, [B, N, D] or "
                               "[B, D, H, W]; name another in encoder.layers")  # fmt: skip
    return max(candidates, key=lambda states: states.shape[1])


def _positions(states: Tensor, rows: int) -> Tensor | None:
    if states.ndim < 3 or states.shape[0] % rows or not states.is_floating_point():
        return None
    if states.ndim > 3:
        states = states.flatten(2).transpose(1, 2)
    return states.reshape(rows, -1, states.shape[-1])


def pooled_states(states: Tensor, waves: int = 3) -> Tensor:  # [B, N, D] -> [B, (waves + 1) D]
    """Return averages over the positions, and the root of the mean square.

    The averages are weighted by cos(pi k n / N), k = 0 .. waves - 1: of time in a video and of height in a picture they
    keep what comes first and what comes last.
    """
    places = torch.linspace(0, torch.pi, states.shape[1], dtype=states.dtype, device=states.device)
    weights = torch.stack([(number * places).cos() for number in range(waves)])  # [waves, N]
    averages = torch.einsum("kn,bnd->bkd", weights, states) / states.shape[1]
    spread = (states.square().mean(1) + 1e-6).sqrt()
    return torch.cat([averages.flatten(1), spread], dim=1)
