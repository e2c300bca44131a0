"""A cache of the computations around the denoiser (encoders, initial noise): recorded by a rollout, reused by replays.

Prompts, images and initial noise do not change while a denoiser is trained. A rollout records the results of every
encoder, of every `encode_*`, `prepare_*` and `_get_*` method and of the VAE's `encode`, outermost calls only, and the
states of the random generators afterwards. Replays and velocity queries get clones. A call out of order raises: the
replay has left the path of its rollout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers import DiffusionPipeline
from torch import Tensor, nn

from mmrl.errors import ReplayError
from mmrl.generation.diffusion.pytree import clone

_PREPARE = ("encode_", "_encode_", "prepare_", "_get_")
_REWRITE = ("rewire_prompt", "_enhance_", "upsample_prompt", "generate_prior", "get_image_caption")  # language models
METHODS = _PREPARE + _REWRITE
"""Prefixes of the pipeline methods whose results are cached. Methods of `DiffusionPipeline` itself are excluded: they
describe the pipeline."""

Compute = Callable[..., Any]
CallHandler = Callable[[str, Compute], Any]
"""A function that returns the result of a call from its name and a function that computes it."""


@dataclass(frozen=True)
class CachedCall:
    """The record of an outermost call: its name, its result, and the states of the generators afterwards."""

    name: str
    value: Any
    generators: tuple[Tensor, ...]


@dataclass
class CallCache:
    """The recorded calls of one rollout, in order."""

    entries: list[CachedCall] = field(default_factory=list)

    def recorder(self, generators: Sequence[torch.Generator]) -> CallHandler:
        """Return a handler that computes each call and appends it to the cache."""

        def record(name: str, compute: Compute) -> Any:
            value = compute()
            states = tuple(generator.get_state() for generator in generators)
            self.entries.append(CachedCall(name, clone(value), states))
            return value

        return record

    def replayer(self, generators: Sequence[torch.Generator]) -> CallHandler:
        """Return a handler that returns clones of the cached results, in order, and restores the generators."""
        remaining = iter(self.entries)
        position = 0

        def replay(name: str, compute: Compute) -> Any:
            nonlocal position
            entry = next(remaining, None)
            if entry is None or entry.name != name:
                recorded = "no further call" if entry is None else f"{entry.name}()"
                raise ReplayError(f"the call cache is out of step at entry {position}: the rollout made {recorded} "
                                f"here, the replay calls {name}(). Was the pipeline changed since?")  # fmt: skip
            position += 1
            for generator, state in zip(generators, entry.generators, strict=True):
                generator.set_state(state)
            return clone(entry.value)

        return replay


Target = tuple[Any, str, str]
"""A callable to cache: its owner, the attribute, and its name in the cache."""


def cache_targets(pipeline: DiffusionPipeline) -> list[Target]:
    """Return the callables of a pipeline whose results are cached."""
    targets: list[Target] = [(pipeline, method, method) for method in _methods(type(pipeline))]
    for name, component in pipeline.components.items():
        # text_encoder, text_encoder_2, image_encoder, and the prior that some pipelines sample first
        if ("encoder" in name or name.startswith("prior_")) and isinstance(component, nn.Module):
            targets.append((component, "forward", name))
        if name in ("vae", "movq", "vqvae") and hasattr(component, "encode"):
            targets.append((component, "encode", f"{name}.encode"))
    return targets


@contextmanager
def intercept_calls(targets: Sequence[Target], handler: CallHandler) -> Iterator[None]:
    """While open, `handler` provides the result of every outermost call of a target."""
    inside = False

    def through(label: str, original: Compute) -> Compute:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:
                return original(*args, **kwargs)
            inside = True
            try:
                return handler(label, lambda: original(*args, **kwargs))
            finally:
                inside = False

        return call

    with replaced_attributes((owner, name, through(label, getattr(owner, name))) for owner, name, label in targets):
        yield


@contextmanager
def replaced_attributes(replacements: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set instance attributes while open, and restore earlier ones on exit (such as an offloading hook's)."""
    undo: list[tuple[dict[str, Any], str, bool, Any]] = []
    try:
        for owner, name, value in replacements:
            own = vars(owner)  # straight into __dict__: nn.Module and DiffusionPipeline guard their __setattr__
            undo.append((own, name, name in own, own.get(name)))
            own[name] = value
        yield
    finally:
        for own, name, existed, value in reversed(undo):
            if existed:
                own[name] = value
            else:
                del own[name]


def _methods(pipeline: type) -> tuple[str, ...]:
    return tuple(
        name
        for name in dir(pipeline)
        if name.startswith(METHODS)
        and not name.endswith("extra_step_kwargs")  # returns the generators of the call itself
        and callable(getattr(pipeline, name))
        and not hasattr(DiffusionPipeline, name)
    )
