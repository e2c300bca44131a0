"""From a description to a pipeline: the one place where tiny pipelines are made.

A component is `(class name, configuration)` of diffusers or transformers, by its dotted name where it is not public;
a configuration may hold further components, as a processor holds its tokenizer. `WORD_TOKENIZER` names a real tokenizer
that knows a few words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

import diffusers
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tests.generation.tiny_pipelines.components import (
    ALLOW_ALL,
    CHAT,
    EOS,
    MARKS,
    VOCABULARY,
    WORD_TOKENIZER,
    Component,
)


@dataclass(frozen=True)
class Tiny:
    """A pipeline class as data."""

    pipeline: str
    components: Mapping[str, Component]
    sampling: Mapping[str, Any]  # with guidance, where there is any
    unguided: Mapping[str, Any] | None = None  # changes of `sampling` that turn guidance off; None: it has none
    conditions: Mapping[str, Any] = field(default_factory=dict)  # of a sample; (width, height) of a picture to be made,
    # (width, height, frames) of a video
    prompts: tuple[str, str] = ("a red circle", "a big blue square")
    tokenizers: tuple[str, ...] = ("tokenizer",)
    empty: tuple[str, ...] = ()  # components that are None
    settings: Mapping[str, Any] = field(default_factory=dict)  # further arguments of the pipeline
    attributes: Mapping[str, Any] = field(default_factory=dict)  # set on it afterwards: lengths fixed in its code
    bfloat16: tuple[str, ...] = ()  # components that must be, since their pipeline casts what it hands them
    reads_prompt: bool = True
    own_rows: bool = True  # False: by diffusers' own arithmetic a row depends on the longest prompt of its call
    rows: int = 2  # of the calls that tests make; 1: a call of the class makes no more
    slow: bool = False  # tested under the marker `slow`
    heavy: bool = False  # tested under the marker `breadth`, even if it is the only one of its features


def make(tiny: Tiny, seed: int = 0) -> diffusers.DiffusionPipeline:
    """A pipeline with random weights; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]), _marked_memory():
        torch.manual_seed(seed)
        parts: dict[str, Any] = {part: component(described) for part, described in tiny.components.items()}
    parts |= {part: word_tokenizer() for part in tiny.tokenizers} | dict.fromkeys(tiny.empty)
    pipeline = getattr(diffusers, tiny.pipeline)(**parts, **tiny.settings)
    for part in tiny.bfloat16:
        getattr(pipeline, part).to(torch.bfloat16)
    for name, value in tiny.attributes.items():
        setattr(pipeline, name, value)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def component(described: Component) -> Any:
    """An object of diffusers or transformers."""
    name, config = described
    if name == WORD_TOKENIZER[0]:
        return word_tokenizer(**config)
    if described == ALLOW_ALL:
        return AllowAll()
    kind = resolve_name(name) if "." in name else getattr(diffusers, name, None) or getattr(transformers, name)
    settings = {key: component(each) if _is_component(each) else each for key, each in config.items()}
    made = kind(kind.config_class(**settings)) if issubclass(kind, transformers.PreTrainedModel) else kind(**settings)
    if isinstance(made, torch.nn.Module):
        _wake(made.eval())
    return made


def word_tokenizer(padding_side: str = "right") -> transformers.PreTrainedTokenizerFast:
    """A real tokenizer that knows a few words."""
    backend = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", EOS)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="</s>",
        model_max_length=16,
        padding_side=padding_side,
        additional_special_tokens=MARKS.split(),
        chat_template=CHAT,
    )


class AllowAll:
    """A replacement for the guardrail of Cosmos, a separate package with weights: every prompt and image passes."""

    def to(self, device: Any) -> AllowAll:
        return self

    def check_text_safety(self, prompt: str) -> bool:
        return True

    def check_video_safety(self, frames: Any) -> Any:
        return frames


def _wake(module: torch.nn.Module) -> None:
    """Random numbers where a model begins with zeros (control branches, adaptive norms): all of it takes part.

    So do parameters that checkpoints alone fill: their memory holds anything.
    """
    for name, parameter in module.named_parameters():
        if not name.endswith("bias") and not (parameter.any() and parameter.isfinite().all()):
            torch.nn.init.normal_(parameter, std=0.02)


@contextmanager
def _marked_memory() -> Iterator[None]:
    """While open, uninitialised memory is NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _is_component(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], dict)
