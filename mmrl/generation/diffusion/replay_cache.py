"""What a pipeline computes before and beside its denoiser, recorded once and played back.

Prompts, images and initial noise do not change while a denoiser learns. A rollout records what every encoder,
`encode_*`, `prepare_*` and `_get_*` method and the VAE's `encode` returned, outermost calls only, and where the
random generators stood afterwards; replays and velocity queries get clones of it. A call that comes out of turn
raises: the replay has left the path of its rollout.
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
_WRITE = ("rewire_prompt", "_enhance_", "upsample_prompt", "generate_prior", "get_image_caption")  # language models do
METHODS = _PREPARE + _WRITE
"""Prefixes of pipeline methods that return the same for the same rollout. Those of `DiffusionPipeline` itself are not
among them: they describe the pipeline."""

Compute = Callable[..., Any]
CallHandler = Callable[[str, Compute], Any]
"""Answers a call, given its name and a way to compute it."""


@dataclass(frozen=True)
class CachedCall:
    """One outermost call: its name, what it returned, and where the generators stood afterwards."""

    name: str
    value: Any
    generators: tuple[Tensor, ...]


@dataclass
class CallCache:
    """The recorded calls of one rollout, in order."""

    entries: list[CachedCall] = field(default_factory=list)

    def recorder(self, generators: Sequence[torch.Generator]) -> CallHandler:
        """A deck that appends each call."""

        def record(name: str, compute: Compute) -> Any:
            value = compute()
            states = tuple(generator.get_state() for generator in generators)
            self.entries.append(CachedCall(name, clone(value), states))
            return value

        return record

    def player(self, generators: Sequence[torch.Generator]) -> CallHandler:
        """A deck that answers each call from the tape, without computing it."""
        coming = iter(self.entries)
        position = 0

        def play(name: str, compute: Compute) -> Any:
            nonlocal position
            entry = next(coming, None)
            if entry is None or entry.name != name:
                due = "no further call" if entry is None else f"{entry.name}()"
                raise ReplayError(f"the tape is out of step at entry {position}: the rollout made {due} here, "
                                f"the replay calls {name}(). Was the pipeline changed since?")  # fmt: skip
            position += 1
            for generator, state in zip(generators, entry.generators, strict=True):
                generator.set_state(state)
            return clone(entry.value)

        return play


Target = tuple[Any, str, str]
"""Something to tape: its owner, the attribute, and the name it has on the tape."""


def cache_targets(pipeline: DiffusionPipeline) -> list[Target]:
    """What belongs on a tape of this pipeline."""
    targets: list[Target] = [(pipeline, method, method) for method in _methods(type(pipeline))]
    for name, component in pipeline.components.items():
        # text_encoder, text_encoder_2, image_encoder, and the prior that some pipelines draw first
        if ("encoder" in name or name.startswith("prior_")) and isinstance(component, nn.Module):
            targets.append((component, "forward", name))
        if name in ("vae", "movq", "vqvae") and hasattr(component, "encode"):
            targets.append((component, "encode", f"{name}.encode"))
    return targets


@contextmanager
def intercept_calls(targets: Sequence[Target], deck: CallHandler) -> Iterator[None]:
    """While open, every outermost call of a target goes through `deck`."""
    inside = False

    def through(label: str, original: Compute) -> Compute:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:
                return original(*args, **kwargs)
            inside = True
            try:
                return deck(label, lambda: original(*args, **kwargs))
            finally:
                inside = False

        return call

    with replaced_attributes((owner, name, through(label, getattr(owner, name))) for owner, name, label in targets):
        yield


@contextmanager
def replaced_attributes(replacements: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Instance attributes set while open. An earlier instance attribute (an offloading hook's) comes back after."""
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
        and not name.endswith("extra_step_kwargs")  # hands over the call's own generators
        and callable(getattr(pipeline, name))
        and not hasattr(DiffusionPipeline, name)
    )
