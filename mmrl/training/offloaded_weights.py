"""`OffloadedWeights`: frozen weights that lie in the CPU's memory, and are on a device only while they are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn


class OffloadedWeights:
    """The frozen parameters and buffers of some networks, of which a device has a copy between `load` and `release`.

    They never change, so nothing is copied back: `release` frees the copy, and costs no transfer. On a machine with
    CUDA the CPU's memory is page-locked, from which a transfer is fastest.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        """Move the weights to the CPU's memory, in place; the device where they are now is the one that uses them.

        Raises:
            ValueError: a parameter is trained.
        """
        self._tensors = list(tensors_of(networks).values())
        if any(each.requires_grad for each in self._tensors):
            raise ValueError("weights that are trained change, and have to stay on their device")
        self._devices = [each.device for each in self._tensors]
        self._resting = [_to_host(each.data) for each in self._tensors]
        self.loaded = True
        self.release()

    @property
    def nbytes(self) -> int:
        """The bytes of the weights."""
        return sum(each.nbytes for each in self._resting)

    def load(self) -> None:
        """Copy the weights to the device, unless they are there."""
        if not self.loaded:
            for tensor, resting, device in zip(self._tensors, self._resting, self._devices, strict=True):
                tensor.data = resting.to(device, non_blocking=True, copy=True)
            self.loaded = True

    def release(self) -> None:
        """Free the device's copy."""
        if self.loaded:
            for tensor, resting in zip(self._tensors, self._resting, strict=True):
                tensor.data = resting
            self.loaded = False

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Load the weights, which stay after this context until `release`: several calls share a transfer."""
        self.load()
        yield


def tensors_of(networks: Sequence[nn.Module]) -> dict[int, Tensor]:
    """Return all parameters and buffers, each once, by what Python identifies them with."""
    return {id(each): each for network in networks for each in [*network.parameters(), *network.buffers()]}


def _to_host(tensor: Tensor) -> Tensor:
    host = tensor.to("cpu")
    return host.pin_memory() if tensor.is_cuda else host
