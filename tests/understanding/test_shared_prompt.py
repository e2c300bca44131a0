"""A prompt that is read once, against the whole text read at once: three axes, windows, prefixes seen both ways."""

from __future__ import annotations

import pytest
import torch

from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.understanding.encoded_prompt import collate
from mmrl.understanding.prompt_encoder import PromptEncoder
from mmrl.understanding.shared_prompt import forward_uncached, prefill
from tests.understanding.media import as_png, picture

FAMILIES = ["qwen3_vl", "gemma3", "paligemma"]
INDEX = torch.tensor([1, 0, 1, 1])
TOKENS = torch.randint(0, 250, (4, 5), generator=torch.Generator().manual_seed(0))
WITH_IMAGE = (
    Sample("a", prompt="What?", images=(as_png(picture(1)),)),
    Sample("b", prompt="Which of these is larger?", images=(as_png(picture(2)), as_png(picture(3)))),
)
TEXT_ONLY = (Sample("a", prompt="Two?"), Sample("b", prompt="Two and two, and two?"))


def prompts(vlm, samples=WITH_IMAGE):
    encoder = PromptEncoder(vlm, MediaReader(MediaBudget()))
    return [encoder.encode(sample) for sample in samples]


def whole(vlm, encoded):
    return forward_uncached(vlm.model, vlm.family, collate([encoded[place] for place in INDEX], vlm.padding), TOKENS)


def shared(vlm, encoded):
    return prefill(vlm.model, vlm.family, collate(encoded, vlm.padding)).expand(INDEX).answer_logits(TOKENS)


def gradients(vlm, logits):
    vlm.model.zero_grad()
    logits.log_softmax(-1).gather(-1, TOKENS[..., None]).sum().backward()
    return torch.cat([p.grad.flatten() for p in vlm.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("name", FAMILIES)
def test_shared_prompt_values_and_gradients_equal_whole_texts(vlm_of, name):
    vlm = vlm_of(name)
    encoded = prompts(vlm)
    wanted, found = whole(vlm, encoded), shared(vlm, encoded)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=0)
    expected, got = gradients(vlm, wanted), gradients(vlm, found)
    assert (got - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3"])
@torch.no_grad()
def test_text_positions_do_not_follow_earlier_images(vlm_of, name):
    vlm = vlm_of(name)
    shared(vlm, prompts(vlm))  # leaves offsets behind in the modules of Qwen's models
    encoded = prompts(vlm, TEXT_ONLY)
    found = shared(vlm, encoded)
    torch.testing.assert_close(found, whole(vlm, encoded), atol=2e-5, rtol=0)
    for row, place in enumerate(INDEX):  # and each alone, counted by the model itself
        alone = torch.cat([encoded[place].inputs["input_ids"], TOKENS[row : row + 1]], dim=1)
        expected = vlm.model(input_ids=alone).logits[0, -6:-1]
        torch.testing.assert_close(found[row], expected, atol=2e-5, rtol=0)


@torch.no_grad()
def test_prefixes_can_be_reused(vlm_of):
    vlm = vlm_of("gemma3")
    prefix = prefill(vlm.model, vlm.family, collate(prompts(vlm), vlm.padding))
    first = prefix.expand(INDEX).answer_logits(TOKENS)
    assert first.equal(prefix.expand(INDEX).answer_logits(TOKENS))
    narrow = prefix.expand(INDEX[:1]).answer_logits(TOKENS[:1, :1])
    torch.testing.assert_close(narrow, first[:1, :1])


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_token_by_token_generation_equals_one_pass(vlm_of, name):
    vlm = vlm_of(name)
    encoded = prompts(vlm)
    expected = shared(vlm, encoded)
    prefix = prefill(vlm.model, vlm.family, collate(encoded, vlm.padding)).expand(INDEX)
    kept = torch.arange(4)
    for place in range(5):
        torch.testing.assert_close(prefix.logits, expected[kept, place], atol=2e-5, rtol=0)
        prefix = prefix.extend(TOKENS[kept, place : place + 1])[1]
        if place == 2:
            prefix, kept = prefix.expand(torch.tensor([3, 0])), kept[[3, 0]]


@torch.no_grad()
def test_position_test_detects_shifted_positions(vlm_of):
    """The control: one place further gives other values."""
    vlm = vlm_of("qwen3_vl")
    prefix = prefill(vlm.model, vlm.family, collate(prompts(vlm), vlm.padding)).expand(INDEX)
    expected = prefix.expand(torch.arange(4)).answer_logits(TOKENS)
    prefix.next_position.add_(1)
    assert (prefix.answer_logits(TOKENS) - expected).abs().max() > 1e-2
