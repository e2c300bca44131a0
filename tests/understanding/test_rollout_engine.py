"""The rollout engine: order, seeds, ends of answers, and rows that are dropped once finished."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.data.sample import Sample
from mmrl.understanding import rollout_engine
from mmrl.understanding.encoded_prompt import collate
from mmrl.understanding.prompt_encoder import PromptEncoder
from mmrl.understanding.rollout_engine import TransformersEngine
from mmrl.understanding.shared_prompt import prefill
from mmrl.understanding.vlm import VLM
from mmrl_kernels.integrations.transformers import use_shared_prompts
from tests.understanding.media import as_gif, as_png, frames, picture

WITH_IMAGE = Sample("shown", prompt="What?", images=(as_png(picture(1)),))
TEXT_ONLY = Sample("said", prompt="Two and two?")
WARM = TokenSamplingConfig(max_new_tokens=8)


@pytest.fixture(scope="module")
def vlm(vlm_of) -> VLM:
    """Every fourth byte ends an answer, so that answers end early and apart."""
    tiny = vlm_of("qwen3_vl")
    use_shared_prompts(tiny.model)
    ends = torch.cat([tiny.ends, torch.arange(0, 256, 4)])
    return replace(tiny, ends=ends)


def prompts(vlm, *samples):
    encoder = PromptEncoder(vlm, MediaReader(MediaBudget()))
    return [encoder.encode(sample) for sample in samples or (WITH_IMAGE, TEXT_ONLY)]


@torch.no_grad()
def write(vlm, encoded, counts, sampling=WARM, seed=0):
    return TransformersEngine(vlm, vlm.family.name == "qwen3_vl").generate(encoded, counts, sampling, seed)


def test_shared_prompt_answers_equal_copied_ones(vlm):
    encoded = prompts(vlm, WITH_IMAGE, TEXT_ONLY, replace(TEXT_ONLY, prompt="A much longer question than that?"))
    with torch.no_grad():
        shared, copied = (
            TransformersEngine(vlm, shares).generate(encoded, [5, 1, 3], WARM, 0) for shares in (True, False)
        )
    assert shared.token_ids == copied.token_ids
    for mine, expected in zip(shared.log_probs, copied.log_probs, strict=True):
        assert mine == pytest.approx(expected, abs=2e-5)


def test_answers_are_deterministic_by_seed(vlm):
    encoded = prompts(vlm)
    first, again, other = (write(vlm, encoded, [4, 4], seed=seed) for seed in (5, 5, 6))
    assert first == again
    assert first.token_ids != other.token_ids


def test_answers_are_in_prompt_order(vlm):
    """Greedy answers to one prompt are alike, so that each tells which prompt it belongs to."""
    greedy = at(0)
    encoded = prompts(vlm)
    with_picture, text_only = (write(vlm, [each], [1], greedy).token_ids[0] for each in encoded)
    assert with_picture != text_only
    assert write(vlm, encoded, [3, 1], greedy).token_ids == [with_picture, with_picture, with_picture, text_only]
    assert write(vlm, encoded[::-1], [1, 2], greedy).token_ids == [text_only, with_picture, with_picture]


def test_videos_of_unequal_length_are_generated_separately_in_order(vlm_of):
    vlm = vlm_of("llava_onevision")
    clips = [Sample(f"clip-{n}", prompt="What?", videos=(as_gif(frames(n, n)),)) for n in (4, 6)]
    encoded = prompts(vlm, clips[0], TEXT_ONLY, clips[1], WITH_IMAGE)
    greedy = at(0)
    alone = [write(vlm, [each], [1], greedy).token_ids[0] for each in encoded]
    expected = [alone[0], alone[1], alone[1], alone[2], alone[2], alone[2], alone[3]]
    assert write(vlm, encoded, [1, 2, 3, 1], greedy).token_ids == expected


def test_answers_end_at_their_first_end_token_or_are_truncated(vlm):
    ends = set(vlm.ends.tolist())
    lengths = set()
    for answer in write(vlm, prompts(vlm), [20, 20]).token_ids:
        lengths.add(len(answer))
        assert not ends & set(answer[:-1])
        assert answer[-1] in ends or len(answer) == WARM.max_new_tokens
    assert len(lengths) > 4


@pytest.mark.integration
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@torch.no_grad()
def test_dropping_finished_rows_changes_no_log_probs(vlm, temperature):
    """Each answer is scored again, on its own and in one pass."""
    encoded = prompts(vlm)
    sampling = at(temperature)
    written = write(vlm, encoded, [12, 12], sampling)
    assert min(map(len, written.token_ids)) < 3  # rows were given up
    for row, answer in enumerate(written.token_ids):
        prefix = prefill(vlm.model, vlm.family, collate([encoded[row // 12]], vlm.padding))
        logits = prefix.answer_logits(torch.tensor([answer]))[0] / (temperature or 1.0)
        logits[:, vlm.suppressed] = -torch.inf
        expected = logits.log_softmax(-1)[torch.arange(len(answer)), answer]
        torch.testing.assert_close(torch.tensor(written.log_probs[row]), expected, atol=2e-5, rtol=0)


def test_keeping_finished_rows_changes_no_answer(vlm, monkeypatch):
    greedy = at(0)
    encoded = prompts(vlm, *(replace(TEXT_ONLY, prompt="?" * n) for n in range(1, 7)))
    dropped = write(vlm, encoded, [1] * 6, greedy)
    monkeypatch.setattr(rollout_engine, "COMPACT_BELOW", 0)
    kept = write(vlm, encoded, [1] * 6, greedy)
    assert len(set(map(len, kept.token_ids))) > 1
    assert dropped.token_ids == kept.token_ids


def test_media_tokens_are_never_sampled(vlm_of):
    """All but 40 tokens are forbidden here, as the marks of media are."""
    tiny = vlm_of("gemma3")
    encoded = prompts(tiny)
    narrow = replace(tiny, suppressed=torch.arange(40, len(tiny.tokenizer)))
    written = write(narrow, encoded, [30, 30])
    assert max(token for answer in written.token_ids for token in answer) < 40
    assert all(value > -20 for row in written.log_probs for value in row)


def test_top_k_and_top_p_restrict_sampling_but_not_log_probs(vlm):
    encoded = prompts(vlm)
    narrow = TokenSamplingConfig(max_new_tokens=1, top_k=2)
    with torch.no_grad():
        logits = prefill(vlm.model, vlm.family, collate(encoded, vlm.padding)).logits
    logits[:, vlm.suppressed] = -torch.inf
    likeliest = logits.topk(2).indices.tolist()
    written = write(vlm, encoded, [25, 25], narrow)
    for row, ((token,), (log_prob,)) in enumerate(zip(written.token_ids, written.log_probs, strict=True)):
        assert token in likeliest[row // 25]
        assert log_prob == pytest.approx(logits[row // 25].log_softmax(-1)[token].item(), abs=2e-5)


def at(temperature: float) -> TokenSamplingConfig:
    return TokenSamplingConfig(max_new_tokens=8, temperature=temperature)
