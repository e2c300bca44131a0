"""The checks of every tiny family, whose model types are those that `mmrl doctor --vlms` calls proven.

A family is built once for all checks, with every part trained. What it is compared with is transformers alone: its
own processor, its own forward pass over one prompt, and `generate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from transformers import AutoModelForImageTextToText, AutoProcessor
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from mmrl.config.policy import LoraConfig, ModelPartConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.tokens.log_probs import linear_head
from mmrl.understanding.vlm import is_linear, part_of
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl.understanding.vlm_replay import packed_scores
from tests.understanding import reference_scores as plain
from tests.understanding import tiny_vlms as tiny
from tests.understanding.media import as_gif, as_png, frames, picture

TEMPERATURE = 0.7
EXACT = 1e-4
TOKENS = 6
PICTURES = {"one": [picture(1)], "two": [picture(2, 48, 32), picture(3)], "both": [picture(4)]}
VIDEOS = {"clip": [frames(5, 4)], "both": [frames(7, 4)]}
TEXTS = {
    "one": "What is it?",
    "two": "And of these two, which is the larger?",
    "clip": "What moves?",
    "both": "Alike?",
    "words": "Two and two?",
}


@dataclass(frozen=True)
class BuiltVLM:
    """A family whose every part is trained, what it wrote, and the same model loaded by transformers alone."""

    name: str
    folder: Path
    policy: VLMPolicy
    rollout: Rollout
    model: Any
    processor: Any

    @property
    def never(self) -> list[int]:
        return self.policy.vlm.suppressed.tolist()

    def alone(
        self, key: str, pictures: Sequence[Image.Image] | None = None, videos: Sequence[np.ndarray] | None = None
    ) -> dict[str, Any]:
        """Return the inputs of a prompt, encoded by transformers; `pictures` and `videos` replace its own."""
        images = PICTURES.get(key, []) if pictures is None else pictures
        clips = VIDEOS.get(key, []) if videos is None else videos
        encoded = plain.encode(self.processor, TEXTS[key], images, clips, tiny.TAKES[self.name].requested)
        return {name: value.float() if value.is_floating_point() else value for name, value in encoded.items()}

    def scores(self, encoded: dict[str, Any], answer: Sequence[int]) -> torch.Tensor:
        """Return the log-probabilities of an answer by transformers alone."""
        return plain.log_probs(self.model, encoded, answer, TEMPERATURE, self.never)


def keys_of(name: str) -> list[str]:
    """Return the prompts above that a family takes."""
    takes = tiny.TAKES[name]
    fit = {
        "one": True,
        "two": takes.several,
        "clip": takes.video,
        "both": takes.video and takes.mixes,
        "words": takes.text_alone,
    }
    return [key for key, taken in fit.items() if taken]


def question(key: str) -> Sample:
    pictures = tuple(as_png(each) for each in PICTURES.get(key, []))
    videos = tuple(as_gif(each) for each in VIDEOS.get(key, []))
    return Sample(key, prompt=TEXTS[key], images=pictures, videos=videos)


def build(name: str, folder: Path) -> BuiltVLM:
    """Save a tiny family, load it as a policy and by transformers alone, and roll it out."""
    tiny.build(name, folder)
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    policy = a_policy(folder, "full", parts_of(model))
    requests = [RolloutRequest(question(key), 2, group) for group, key in enumerate(keys_of(name))]
    rollout = policy.rollout(requests, seed=0)
    return BuiltVLM(name, folder, policy, rollout, model, AutoProcessor.from_pretrained(folder))


def parts_of(model: nn.Module) -> set[str]:
    return {part_of(name) for name, _ in model.named_parameters()} - {"unused"}


def adapted_parts(model: nn.Module) -> set[str]:
    """Return the parts with a linear layer for an adapter."""
    linear = [path for path, module in model.named_modules() if is_linear(module)]
    return {part_of(path) for path in linear} - {"unused"}


def a_policy(folder: Path, train: str, parts: set[str]) -> VLMPolicy:
    config = VLMConfig(
        model=str(folder),
        device="cpu",
        train=train,
        lora=LoraConfig(rank=2, alpha=4),
        vision=ModelPartConfig(train="vision" in parts),
        connector=ModelPartConfig(train="connector" in parts),
    )
    return VLMPolicy.from_config(config, TokenSamplingConfig(max_new_tokens=TOKENS, temperature=TEMPERATURE))


def check_classes(built: BuiltVLM) -> None:
    """Check that the checkpoint is loaded as the class that transformers maps, with all three parts in it."""
    assert built.model.config.model_type == built.name
    assert type(built.model).__name__ == MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[built.name]
    assert type(built.processor) is type(built.policy.vlm.processor)
    assert "language" in parts_of(built.model) and parts_of(built.model) & {"vision", "connector"}
    assert built.policy.reader is not None and (built.policy._encoder.takes_video == tiny.TAKES[built.name].video)


@torch.no_grad()
def check_replays(built: BuiltVLM) -> None:
    """Check that answers of unequal prompts replay exactly, in a batch, in part, and as transformers scores each."""
    policy, rollout = built.policy, built.rollout
    assert policy.replay_gap(rollout) <= EXACT
    assert policy.replay_gap(rollout.select([rollout.rows - 1, 0])) <= EXACT
    for row, answer in enumerate(rollout.token_ids):
        expected = built.scores(built.alone(rollout.samples[row].id), answer)
        torch.testing.assert_close(rollout.log_probs[row, : len(answer)], expected, atol=EXACT, rtol=0)


@torch.no_grad()
def check_greedy(built: BuiltVLM) -> None:
    """Check that greedy answers are those of `generate`."""
    sampling = TokenSamplingConfig(temperature=0, max_new_tokens=TOKENS)
    requests = [
        RolloutRequest(question(key), 1, group, sampling=sampling) for group, key in enumerate(keys_of(built.name))
    ]
    for sample, answer in zip(requests, built.policy.rollout(requests, seed=0).token_ids, strict=True):
        prompt = built.alone(sample.sample.id)
        written = built.model.generate(**prompt, max_new_tokens=TOKENS, do_sample=False, suppress_tokens=built.never)
        assert answer == written[0, prompt["input_ids"].shape[1] :].tolist(), sample.sample.id


@torch.no_grad()
def check_media(built: BuiltVLM) -> None:
    """Check that an answer depends on each image and on the video of its prompt."""
    answer = built.rollout.token_ids[0]
    changes: list[tuple[dict[str, Any], dict[str, Any]]] = [(built.alone("one"), built.alone("one", [picture(9)]))]
    if "two" in keys_of(built.name):
        first, second = PICTURES["two"]
        changed = ([picture(8, 48, 32), second], [first, picture(8)])
        changes += [(built.alone("two"), built.alone("two", each)) for each in changed]
    if "clip" in keys_of(built.name):
        changes.append((built.alone("clip"), built.alone("clip", videos=[frames(9, 4)])))
    for original, changed in changes:
        assert (built.scores(original, answer) - built.scores(changed, answer)).abs().max() > 10 * EXACT


def check_gradients(built: BuiltVLM) -> None:
    """Check that each part's gradient is not zero and equals that of plain passes over one prompt each."""
    built.model.zero_grad()
    for row, answer in enumerate(built.rollout.token_ids):
        built.scores(built.alone(built.rollout.samples[row].id), answer).sum().backward()
    trained = built.policy.parameters_to_train()
    for parameter in trained.values():
        parameter.grad = None
    columns = range(built.rollout.log_probs.shape[1])
    built.policy.replay(built.rollout, columns, lambda decisions: decisions.log_probs.sum().backward())
    expected = {name: parameter.grad for name, parameter in built.model.named_parameters()}
    for part in parts_of(built.model):
        names = [name for name in trained if part_of(name) == part and expected[name] is not None]
        size = sum(expected[name].square().sum() for name in names) ** 0.5
        off = sum((trained[name].grad - expected[name]).square().sum() for name in names) ** 0.5
        assert size > 1e-3, part
        assert off < 1e-3 * size, part


def check_adapters(built: BuiltVLM) -> None:
    """Check that adapters are found in each part with linear layers, learn, and are saved and loaded."""
    parts = adapted_parts(built.model)
    assert "language" in parts and parts & {"vision", "connector"}
    for bare in parts_of(built.model) - parts:
        with pytest.raises(ConfigError, match=rf"policy\.{bare}\.train"):
            a_policy(built.folder, "lora", parts_of(built.model))
    policy = a_policy(built.folder, "lora", parts)
    few = built.rollout.select([0, built.rollout.rows - 1])
    assert policy.replay_gap(few) <= EXACT
    move(policy)
    columns = range(few.log_probs.shape[1])
    policy.replay(few, columns, lambda decisions: decisions.log_probs.sum().backward())
    learned = {part_of(name) for name, p in policy.parameters_to_train().items() if p.grad is not None and p.grad.any()}
    assert learned == parts
    assert policy.replay_gap(few) > 10 * EXACT
    folder = built.folder / "lora"
    policy.save(folder)
    again = a_policy(built.folder, "lora", parts)
    again.load(folder)
    assert torch.equal(scored(again, few), scored(policy, few))


def check_full_checkpoint(built: BuiltVLM) -> None:
    """Check that a fully trained model is saved as a checkpoint that transformers loads."""
    kept = {name: parameter.detach().clone() for name, parameter in built.policy.parameters_to_train().items()}
    few = built.rollout.select([0])
    move(built.policy)
    expected = scored(built.policy, few)
    folder = built.folder / "trained"
    built.policy.save(folder)
    with torch.no_grad():
        for name, parameter in built.policy.parameters_to_train().items():
            parameter.copy_(kept[name])
    loaded = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    answer = built.rollout.token_ids[0]
    with torch.no_grad():
        found = plain.log_probs(loaded, built.alone(few.samples[0].id), answer, TEMPERATURE, built.never)
    torch.testing.assert_close(expected[0, : len(answer)], found, atol=EXACT, rtol=0)
    assert type(AutoProcessor.from_pretrained(folder)) is type(built.processor)


@torch.no_grad()
def check_output_layer(built: BuiltVLM) -> None:
    """Check that logits are the product with the output layer wherever log-probabilities are computed from states."""
    head, encoded = linear_head(built.model), built.alone("one")
    if head is not None:
        states = built.model.base_model(**encoded, use_cache=False).last_hidden_state
        torch.testing.assert_close(head(states), built.model(**encoded).logits, atol=EXACT, rtol=0)
    if built.policy.attention.shares_prompts:
        fused = packed_scores(built.policy.vlm, built.rollout.recording, fused=True).log_probs
        off = (fused - built.rollout.log_probs)[built.rollout.mask].abs().max()
        assert off <= EXACT


def check_attention(built: BuiltVLM) -> None:
    """Check that the family's `causal` is what its model does, and that prompts are shared or a reason is given."""
    attention, family = built.policy.attention, built.policy.vlm.family
    looks_ahead = sees_later_tokens(built.model, built.alone("one"))
    assert family.causal != looks_ahead, family
    assert attention.shares_prompts or attention.reason


def sees_later_tokens(model: Any, encoded: dict[str, Any]) -> bool:
    """Return True if the output at some token has a gradient with respect to the embedding of a later one."""
    seen: list[torch.Tensor] = []

    def keep(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        found = kwargs["inputs_embeds"]
        found = model.get_input_embeddings()(kwargs["input_ids"]) if found is None else found
        embedded = found.detach().requires_grad_()
        seen.append(embedded)
        return args, kwargs | {"inputs_embeds": embedded, "input_ids": None}

    handle = model.get_decoder().register_forward_pre_hook(keep, with_kwargs=True)
    try:
        logits = model(**encoded).logits[0]
    finally:
        handle.remove()
    for place in range(len(logits) - 1):
        (gradient,) = torch.autograd.grad(logits[place].sum(), seen[0], retain_graph=True)
        if gradient[0, place + 1 :].any():
            return True
    return False


def move(policy: VLMPolicy) -> None:
    """Move every trained parameter a little: a fresh adapter changes nothing."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.parameters_to_train().values():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


@torch.no_grad()
def scored(policy: VLMPolicy, rollout: Rollout) -> torch.Tensor:
    """Return the log-probabilities [B, T] of the answers of a rollout."""
    seen: list[torch.Tensor] = []
    policy.replay(rollout, range(rollout.log_probs.shape[1]), lambda now: seen.append(now.log_probs))
    return seen[0]


CHECKS: tuple[Callable[[BuiltVLM], None], ...] = (
    check_classes,
    check_replays,
    check_greedy,
    check_media,
    check_gradients,
    check_adapters,
    check_full_checkpoint,
    check_output_layer,
    check_attention,
)
"""The checks of every family."""
