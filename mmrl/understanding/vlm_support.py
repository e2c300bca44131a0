"""The vision-language models of the installed transformers that can be trained, and the reasons why others cannot.

    proven    a test rolls out, replays and trains a tiny model of this type, beside transformers alone
    expected  nothing is known against it, and no test has run it
    refused   it cannot work; `load_vlm` raises before weights are read

A model type is what `config.json` calls `model_type`; several may have one class. `proven_vlms.yaml` holds what the
tests saw of each, and a test compares both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

FACTS = Path(__file__).with_name("proven_vlms.yaml")
VLMState = Literal["proven", "expected", "refused"]

_CROSS = "its language model looks at images by cross-attention, with a mask that a rollout does not extend"
_DISCRETE = "it turns images into discrete tokens, through which no gradient passes: nothing shows that they are used"
_OCR = "its processor reads pages and takes no conversation"
_APART = "its images have no tokens in the prompt"
_QUESTION = "its Q-Former reads the prompt a second time, with other tokens"
REFUSED: dict[str, str] = {
    **dict.fromkeys(("idefics", "blip"), _CROSS),
    **dict.fromkeys(("chameleon", "emu3"), _DISCRETE),
    **dict.fromkeys(("got_ocr2", "pp_chart2table"), _OCR),
    **dict.fromkeys(("git", "kosmos-2", "kosmos-2.5"), _APART),
    **dict.fromkeys(("instructblip", "instructblipvideo"), _QUESTION),
    "blip-2": "its forward pass takes no cache",
    "unlimited_ocr": "its cache holds the prompt apart from a window of the answer",
    "fuyu": "its processor puts images before the text itself, and takes no conversation",
    "diffusion_gemma": "it writes blocks of tokens at once by diffusion, so that no token has its own probability",
    "evolla": "it reads proteins, no images",
    "mistral4": "it reads text alone",
    "pi0": "it predicts the actions of a robot, no text",
    "shieldgemma2": "its processor writes the prompt itself, from its own policies",
}
"""{model type that cannot run, or would be trained wrongly without an error: the reason}."""


@dataclass(frozen=True)
class ProvenVLM:
    """The properties of a model type that the tests saw."""

    images: Literal["one", "several"]
    videos: bool
    mixes: bool
    """True if one prompt may hold images and a video."""
    causal: bool
    """True if no token of a prompt attends to a later one."""
    unshared: str
    """The reason why answers do not share one copy of their prompt; empty: they do."""
    adapters: tuple[str, ...]
    """The parts with linear layers for an adapter."""
    frozen: tuple[str, ...]
    """The parts without: full training alone can change them."""
    space: str
    """The coordinate space of the boxes in its answers."""
    trained_space: bool
    """True if its makers published that they trained it in this space."""
    served: str = "not compared with a server"
    """The part of its rollouts that cannot be served, or is not known to be as in process; empty: a test saw that all
    are."""


@dataclass(frozen=True)
class VLMSupport:
    """The state of a model type."""

    model_type: str
    class_name: str
    state: VLMState
    reason: str = ""
    facts: ProvenVLM | None = None


@cache
def proven() -> Mapping[str, ProvenVLM]:
    """Return {model type: what the tests saw}."""
    rows = yaml.safe_load(FACTS.read_text(encoding="utf-8"))
    return {
        name: ProvenVLM(**row | {key: tuple(row[key]) for key in ("adapters", "frozen")}) for name, row in rows.items()
    }


def list_vlms() -> list[VLMSupport]:
    """Return the state of every model type that the installed transformers maps, sorted by name."""
    return [vlm_support(name) for name in sorted(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)]


def vlm_support(model_type: str) -> VLMSupport:
    """Return the state of a model type, by its default configuration."""
    name = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[model_type]
    name = name if isinstance(name, str) else name[0]
    if facts := proven().get(model_type):
        return VLMSupport(model_type, name, "proven", facts=facts)
    if reason := refused_reason(CONFIG_MAPPING[model_type]()):
        return VLMSupport(model_type, name, "refused", reason)
    return VLMSupport(model_type, name, "expected")


def refused_reason(config: Any) -> str | None:
    """Return the reason why no model of this configuration can be trained, or None."""
    if reason := REFUSED.get(config.model_type):
        return reason
    if config.is_encoder_decoder or config.get_text_config().is_encoder_decoder:
        return "it is an encoder-decoder: an answer does not continue its prompt"
    return None
