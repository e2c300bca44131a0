"""Answers packed behind their shared prompts, against the same answers row by row."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError
from mmrl.understanding.prompt_encoder import PromptEncoder
from mmrl.understanding.vlm import load_vlm
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl.understanding.vlm_replay import TokenRecording, packed_scores, row_scores
from mmrl_kernels.integrations.transformers import SharedPromptMask, use_shared_prompts
from tests.device import DEVICE
from tests.understanding.media import as_png, picture

SHARING = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "smolvlm", "idefics3", "llava", "llava_next"]
SHARING += ["llava_onevision"]
ALONE = ["gemma3", "paligemma"]
SAMPLES = (
    Sample("a", prompt="What?", images=(as_png(picture(1)),)),
    Sample("b", prompt="Which of these two is larger?", images=(as_png(picture(2)), as_png(picture(3)))),
)
LENGTHS = [5, 2, 1, 4, 5]
PROMPT_OF = [1, 1, 0, 0, 1]  # prompts need not come in order


@pytest.fixture
def vlm(vlm_of, folder_of, request):
    on_cpu = DEVICE == "cpu"
    vlm = vlm_of(request.param) if on_cpu else load_vlm(VLMConfig(model=str(folder_of(request.param)), device=DEVICE))
    use_shared_prompts(vlm.model)
    return vlm


def recorded(vlm, samples=SAMPLES) -> TokenRecording:
    encoder = PromptEncoder(vlm, MediaReader(MediaBudget()))
    tokens = torch.randint(0, 250, (5, 5), generator=torch.Generator().manual_seed(0))
    encoded = [encoder.encode(sample) for sample in samples]
    return TokenRecording(encoded, PROMPT_OF, tokens.to(vlm.device), LENGTHS, 0.8)


def gradients(vlm, scores):
    vlm.model.zero_grad()
    weights = torch.linspace(-1, 1, scores[0].numel(), device=scores[0].device).view(scores[0].shape)
    (scores[0] * weights).sum().backward()
    return torch.cat([p.grad.flatten() for p in vlm.model.parameters() if p.grad is not None])


@pytest.mark.gpu
@pytest.mark.parametrize("vlm", SHARING, indirect=True)
def test_packed_values_entropies_and_gradients_equal_rows(vlm):
    recording = recorded(vlm)
    found, wanted = packed_scores(vlm, recording, fused=False), row_scores(vlm, recording, separate_prompts=False)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=0)
    expected, got = gradients(vlm, wanted), gradients(vlm, found)
    assert expected.norm() > 0
    assert (got - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("vlm", ["qwen3_vl", "llava"], indirect=True)
def test_fused_logits_give_equal_values(vlm):
    recording = recorded(vlm)
    found, wanted = packed_scores(vlm, recording, fused=True), packed_scores(vlm, recording, fused=False)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)
    expected, got = gradients(vlm, wanted), gradients(vlm, found)
    assert (got - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("vlm", ["qwen2_5_vl"], indirect=True)
@torch.no_grad()
def test_packed_position_test_detects_shifted_positions(vlm, monkeypatch):
    """The negative control: were answers counted on from one another, log-probabilities would be others."""
    recording = recorded(vlm)
    expected = packed_scores(vlm, recording, fused=False)[0]
    true_model = vlm.model.forward

    def counted_on(**inputs):
        width = inputs["input_ids"].shape[1]
        return true_model(**inputs | {"position_ids": torch.arange(width).expand(3, 1, width)})

    monkeypatch.setattr(vlm.model, "forward", counted_on)
    assert (packed_scores(vlm, recording, fused=False)[0] - expected).abs().max() > 1e-3


def test_shared_prompt_masks_misread_as_numbers_fail(vlm_of):
    vlm = vlm_of("qwen3_vl")
    vlm.model.set_attn_implementation("sdpa")
    with torch.no_grad():
        assert packed_scores(vlm, recorded(vlm), fused=False)[0].isnan().any()
    assert not hasattr(SharedPromptMask(torch.zeros(1)).clone(), "plan")


@pytest.mark.parametrize("name", ALONE)
def test_models_with_bidirectional_image_attention_are_not_packed(folder_of, name):
    config = VLMConfig(model=str(folder_of(name)), device="cpu", train="full")
    policy = VLMPolicy.from_config(config, TokenSamplingConfig())
    assert policy.attention.name == "sdpa"
    assert "later" in policy.attention.reason
    with pytest.raises(ConfigError, match=r"policy\.attention: mmrl shares prompts, which this model cannot"):
        VLMPolicy.from_config(config.model_copy(update={"attention": "mmrl"}), TokenSamplingConfig())


def test_unknown_attention_raises_by_name(folder_of):
    config = VLMConfig(model=str(folder_of("qwen3_vl")), device="cpu", train="full", attention="xformers")
    with pytest.raises(ConfigError, match=r"policy\.attention: transformers has no xformers backend"):
        VLMPolicy.from_config(config, TokenSamplingConfig())
    with pytest.raises(ConfigError, match=r"policy\.attention: flash cannot serve Qwen3VL"):
        VLMPolicy.from_config(config.model_copy(update={"attention": "flash"}), TokenSamplingConfig())


@pytest.mark.integration
def test_ten_packed_updates_give_the_same_weights(vlm_of):
    """Packed and fused against rows: AdamW, the same recording again and again."""
    plain = vlm_of("qwen3_vl")
    ended = []
    for packed in (True, False):
        vlm = replace(plain, model=copy.deepcopy(plain.model))
        use_shared_prompts(vlm.model)
        recording = recorded(vlm)
        optimizer = torch.optim.AdamW(vlm.model.parameters(), lr=1e-3, eps=1e-4)
        for _ in range(10):
            scores = (
                packed_scores(vlm, recording, fused=True)
                if packed
                else row_scores(vlm, recording, separate_prompts=False)
            )
            optimizer.zero_grad()
            gradients_of(scores[0], recording).backward()
            optimizer.step()
        ended.append(torch.cat([p.detach().flatten() for p in vlm.model.parameters()]))
    moved = (ended[1] - torch.cat([p.detach().flatten() for p in plain.model.parameters()])).abs().max()
    assert moved > 5e-3
    assert (ended[0] - ended[1]).abs().max() < 1e-4


def gradients_of(log_probs: torch.Tensor, recording: TokenRecording) -> torch.Tensor:
    """A clipped policy gradient, to the log-probabilities of a first look."""
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5, 0.2])[:, None]
    ratio = (log_probs - log_probs.detach()).exp()
    return -(advantages * ratio).sum() / sum(recording.lengths)
