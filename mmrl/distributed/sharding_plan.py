"""The blocks of a model that are divided and gathered one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from mmrl.errors import ConfigError

LARGE = 100_000_000
"""Models with fewer parameters are never refused: even in one piece, gathering them takes little memory."""
LEAST_SHARE = 0.9
"""The share of a large model's parameters, embeddings left out, that its blocks must have. `fully_shard` gathers a
block into a buffer beside its parameters, and all that is outside of blocks into another one: with this share, the
buffer is at most a tenth of the model. Of 38 classes of diffusers and transformers, at their default sizes, all but one
(`UNetMotionModel`, 50 %) have 96 % and more."""


def blocks_to_shard(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model, inner ones first, without the model itself.

    Blocks are the modules of the classes that diffusers and transformers name as such (`_repeated_blocks` and
    `_no_split_modules`, which complement one another); of a model that names none, the elements of its lists.

    Raises:
        ConfigError: in a large model, too many parameters are outside of blocks.
    """
    named = {
        name
        for module in model.modules()
        for attribute in ("_repeated_blocks", "_no_split_modules")
        for name in getattr(module, attribute, None) or ()
    }
    blocks = [module for module in model.modules() if module is not model and type(module).__name__ in named]
    blocks = (blocks or list(_elements_of_lists(model)))[::-1]
    total = sum(parameter.numel() for parameter in model.parameters())
    # The matrix of a vocabulary is one parameter, which no choice of blocks could divide further.
    whole = [*blocks, *(module for module in model.modules() if isinstance(module, nn.Embedding)), *_heads(model)]
    inside = {id(parameter) for module in whole for parameter in module.parameters()}
    outside = sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in inside)
    if total >= LARGE and outside > (1 - LEAST_SHARE) * total:
        raise ConfigError(
            f"run.place: models are divided block by block, but {outside / total:.0%} of the parameters of "
            f"{type(model).__name__} are outside of its blocks ({', '.join(sorted(named)) or 'it names none'}); "
            "choose replicas"
        )
    return blocks


def _elements_of_lists(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the elements of the outermost lists of modules, in the order of the model."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from (each for each in child if not isinstance(each, nn.ModuleList | nn.ModuleDict))
        else:
            yield from _elements_of_lists(child)


def _heads(model: nn.Module) -> list[nn.Module]:
    """Return the output layer over a vocabulary, if the model has one."""
    find: Any = getattr(model, "get_output_embeddings", None)
    head = None if find is None else find()
    return [head] if isinstance(head, nn.Module) else []
