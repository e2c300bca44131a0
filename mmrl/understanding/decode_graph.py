"""A CUDA graph of one decoding step: the kernels of a forward pass are recorded once, and replayed for every token.

A language model of 36 layers with adapters launches some thousands of small kernels for a token, which take the CPU
longer to launch than the GPU to compute. A graph launches all of them at once. Its shapes and addresses are fixed:
tokens, positions and the place in the cache are tensors that each replay reads, and attention reads the whole room of
the cache with the places masked that have not been written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from mmrl.distributed.divided_blocks import is_divided
from mmrl.tokens.kv_cache import SharedCache

_log = logging.getLogger(__name__)

FEWEST_TOKENS = 16
"""A graph is recorded for at least this many tokens: recording takes as long as about three steps without it."""

_REJECTED: WeakSet[Any] = WeakSet()
"""Models whose step could not be recorded, because its forward pass waits for the GPU."""

Compute = Callable[[Tensor, Tensor, Any], Tensor]
"""A forward pass: tokens [B, 1], their positions [B] and the attention mask give logits [B, 1, V]."""


def worth_recording(model: Any, cache: SharedCache) -> bool:
    """Return True on CUDA if there is room for enough further tokens."""
    on_gpu, written = cache.branches.prompt_of.is_cuda, cache.written
    return on_gpu and written.room - written.get_seq_length() >= FEWEST_TOKENS and model not in _REJECTED


class DecodeGraph:
    """Compute one more token of each row that continues a prompt, in fixed shapes; `record` makes it a graph."""

    def __init__(self, compute: Compute, cache: SharedCache, position: Tensor) -> None:
        """`position` [B] is that of the next token."""
        self._compute, self._cache, self._written = compute, cache, cache.written.get_seq_length()
        self._position = position.clone()
        self._tokens = position.new_zeros(len(position), 1)
        self._place = position.new_full((1,), self._written)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: Tensor | None = None
        cache.written.write_at(self._place)

    def record(self, model: Any) -> bool:
        """Record the step; return False if the model's forward pass cannot be recorded."""
        if is_divided(model):  # its hooks gather parameters that they free again
            return self._reject(model)
        graph = torch.cuda.CUDAGraph()
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side), _without_cast_cache():  # what is made once must not be made in the graph
                self._forward()
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph), _without_cast_cache():
                self._logits = self._forward()
        except RuntimeError as err:
            _log.warning("tokens are decoded without a CUDA graph, which is slower: %s", str(err).splitlines()[0])
            return self._reject(model)
        self._graph = graph
        return True

    def __call__(self, tokens: Tensor) -> Tensor:
        """Compute tokens [B, 1]: return logits [B, 1, V], which the next call overwrites if it was recorded."""
        self._tokens.copy_(tokens)
        if self._graph is None:
            logits = self._forward()
        else:
            self._graph.replay()
            assert self._logits is not None
            logits = self._logits
        self._written += 1
        self._position += 1
        self._place += 1
        return logits

    def release(self) -> None:
        """Let the cache grow by itself again, from the tokens that were written."""
        self._cache.written.write_at(None)
        self._cache.written.count(self._written)

    def _reject(self, model: Any) -> bool:
        _REJECTED.add(model)
        self.release()
        return False

    def _forward(self) -> Tensor:
        return self._compute(self._tokens, self._position, self._cache.masked_behind(self._place))


def _without_cast_cache() -> AbstractContextManager[Any]:
    """Return a context in which autocast keeps no copies: a graph would read one that is freed when autocast ends."""
    if not torch.is_autocast_enabled("cuda"):
        return nullcontext()
    return torch.autocast("cuda", dtype=torch.get_autocast_dtype("cuda"), cache_enabled=False)
