"""Several output layers on one language model, one for each objective, which are blended when it writes.

MAH-DPO (arXiv:2510.01167) trains them together on one trunk, each on the preferences of its objective; at inference the
logits of the heads are added with weights that the user chooses. The layers are linear, so the weighted sum of their
logits is the logits of one layer with the weighted sum of their weights, which costs what one head costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmrl.errors import ConfigError

HEADS_FILE = "heads.safetensors"


class ObjectiveHeads:
    """The output layers of a language model by the names of their objectives; all begin as the layer that it had."""

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        """Give `model` one output layer for each name, in place; it then has no weights tied to its embeddings.

        Raises:
            ConfigError: a name occurs twice, there are fewer than two, or the output layer is not linear.
        """
        layer = model.get_output_embeddings()
        if len(set(names)) != len(names) or len(names) < 2:
            raise ConfigError(
                f"policy.heads: expected the different names of two or more objectives, got {list(names)}"
            )
        if not isinstance(layer, nn.Linear):
            raise ConfigError(f"policy.heads: {type(model).__name__} has no linear output layer that could be repeated")
        for config in (model.config, model.config.get_text_config()):
            config.tie_word_embeddings = False
        self._layer = layer
        start = layer.weight.detach().clone()
        self._original = nn.Parameter(start, requires_grad=False)
        self.weights = {name: nn.Parameter(start.float().clone()) for name in names}
        layer._parameters["weight"] = self._original  # the embeddings keep a weight that was shared with them
        self._chosen = False

    @contextmanager
    def chosen(self, name: str) -> Iterator[None]:
        """While open, the model writes and is trained with the head of one objective alone."""
        with self._in_place(self.weights[name]):
            yield

    @contextmanager
    def blended(self, weights: Mapping[str, float] | None = None) -> Iterator[None]:
        """While open, the logits are the weighted sum of those of the heads; None: of all, in equal parts.

        Gradients reach every head with a weight. Inside of another `chosen` or `blended`, None leaves that one.

        Raises:
            ConfigError: a name is that of no head.
        """
        if weights is None and self._chosen:
            yield
            return
        weights = dict.fromkeys(self.weights, 1 / len(self.weights)) if weights is None else weights
        if unknown := sorted(weights.keys() - self.weights.keys()):
            raise ConfigError(f"heads: there is no head {unknown[0]}; the heads are {', '.join(self.weights)}")
        with self._in_place(sum_of([(weight, self.weights[name]) for name, weight in weights.items()])):
            yield

    @contextmanager
    def original(self) -> Iterator[None]:
        """While open, the model has the output layer that training started from."""
        with self._in_place(self._original):
            yield

    def save(self, folder: Path) -> None:
        """Write all heads into a folder."""
        save_file(
            {name: weight.detach().cpu().contiguous() for name, weight in self.weights.items()}, folder / HEADS_FILE
        )

    def load(self, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            ConfigError: the folder has other heads.
        """
        path = folder / HEADS_FILE
        found = load_file(path) if path.is_file() else {}
        shapes = {name: tuple(weight.shape) for name, weight in found.items()}
        if shapes != {name: tuple(weight.shape) for name, weight in self.weights.items()}:
            raise ConfigError(f"{path} holds other heads than policy.heads names: {shapes or 'none'}")
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(found[name])

    @contextmanager
    def _in_place(self, weight: Tensor) -> Iterator[None]:
        # The tensor is exchanged, not its values: a graph that waits for backward keeps its own.
        before, was = self._layer._parameters["weight"], self._chosen
        self._layer._parameters["weight"] = weight  # type: ignore[assignment]
        self._chosen = True
        try:
            yield
        finally:
            self._layer._parameters["weight"], self._chosen = before, was


def sum_of(parts: Sequence[tuple[float, Tensor]]) -> Tensor:
    """Return the weighted sum of tensors of one shape."""
    total = parts[0][0] * parts[0][1]
    for weight, tensor in parts[1:]:
        total = total + weight * tensor
    return total
