"""Decoding in fixed shapes, against a cache that grows; on a GPU as a recorded graph, against single launches."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.understanding import decode_graph
from mmrl.understanding.decode_graph import DecodeGraph
from mmrl.understanding.encoded_prompt import collate
from mmrl.understanding.prompt_encoder import PromptEncoder
from mmrl.understanding.rollout_engine import TransformersEngine
from mmrl.understanding.shared_prompt import prefill
from mmrl.understanding.vlm import load_vlm
from mmrl_kernels.integrations.transformers import use_shared_prompts
from tests.understanding.media import as_png, picture

SAMPLES = (
    Sample("a", prompt="What?", images=(as_png(picture(1)),)),
    Sample("b", prompt="Which of these is larger?", images=(as_png(picture(2)), as_png(picture(3)))),
)
INDEX = [0, 0, 1, 1]
ROOM = 6
TOKENS = torch.randint(0, 250, (4, ROOM), generator=torch.Generator().manual_seed(0))


def encoded(vlm):
    encoder = PromptEncoder(vlm, MediaReader(MediaBudget()))
    return [encoder.encode(sample) for sample in SAMPLES]


def branch(vlm):
    use_shared_prompts(vlm.model)
    prefix = prefill(vlm.model, vlm.family, vlm.to_device(collate(encoded(vlm), vlm.padding)))
    return prefix.branch(torch.tensor(INDEX, device=vlm.device), ROOM)


def grown(rows, tokens):
    found = []
    for token in tokens.T:
        logits, rows = rows.extend(token[:, None])
        found.append(logits)
    return torch.cat(found, dim=1), rows


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "llava", "smolvlm"])
@torch.no_grad()
def test_fixed_shapes_equal_a_growing_cache(vlm_of, name):
    vlm = vlm_of(name)
    expected, _ = grown(branch(vlm), TOKENS)
    rows = branch(vlm)
    step = DecodeGraph(rows._compute, rows.cache, rows.next_position)
    found = torch.cat([step(token[:, None]) for token in TOKENS.T[:4]], dim=1)
    torch.testing.assert_close(found, expected[:, :4], atol=2e-5, rtol=0)
    step.release()  # and the cache grows on from there
    onward = replace(rows, next_position=rows.next_position + 4)
    torch.testing.assert_close(grown(onward, TOKENS[:, 4:])[0], expected[:, 4:], atol=2e-5, rtol=0)


@torch.no_grad()
def test_places_that_are_not_written_are_masked(vlm_of, monkeypatch):
    """The negative control: read as keys of zeros, they would take attention from the others."""
    vlm = vlm_of("qwen2_5_vl")
    expected, _ = grown(branch(vlm), TOKENS[:, :1])
    rows = branch(vlm)
    step = DecodeGraph(rows._compute, rows.cache, rows.next_position)
    monkeypatch.setattr(type(rows.cache), "masked_behind", lambda self, place: self.mask)
    assert (step(TOKENS[:, :1]) - expected).abs().max() > 1e-4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "llava"])
@torch.no_grad()
def test_recorded_steps_write_the_answers_of_single_launches(folder_of, name, dtype, caplog):
    """Rows end apart, so that the batch is compacted and recorded again."""
    vlm = load_vlm(VLMConfig(model=str(folder_of(name)), device="cuda", dtype=dtype))
    use_shared_prompts(vlm.model)
    vlm = replace(vlm, ends=torch.cat([vlm.ends, torch.arange(0, 256, 16, device=vlm.device)]))
    engine, sampling = TransformersEngine(vlm, shares_prompts=True), TokenSamplingConfig(max_new_tokens=48)
    with caplog.at_level(logging.WARNING), torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bfloat16"):
        recorded = engine.generate(encoded(vlm), [6, 6], sampling, seed=1)
        assert vlm.model not in decode_graph._REJECTED and not caplog.records
        decode_graph._REJECTED.add(vlm.model)
        launched = engine.generate(encoded(vlm), [6, 6], sampling, seed=1)
    allowed = 1e-4 if dtype == "float32" else 0.1
    for mine, other, ids, others in zip(
        recorded.log_probs, launched.log_probs, recorded.token_ids, launched.token_ids, strict=True
    ):
        agreed = next((n for n, (one, two) in enumerate(zip(ids, others, strict=False)) if one != two), len(ids))
        assert agreed == len(ids) == len(others) or dtype == "bfloat16"
        assert mine[:agreed] == pytest.approx(other[:agreed], abs=allowed)
