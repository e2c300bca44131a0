"""Packs and branches through a language model of transformers."""

from __future__ import annotations

import pytest
import torch
from transformers import Gemma2Config, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from mmrl_kernels import Branches, KernelError, SharedPromptLayout
from mmrl_kernels.integrations.transformers import (
    NAME,
    BranchCache,
    branching,
    packed,
    unsupported_reason,
    use_shared_prompts,
)

PROMPTS = (torch.tensor([3, 1, 4, 1, 5]), torch.tensor([9, 2, 6, 5, 3, 5, 8, 9]))
COMPLETIONS = (([7, 9, 3], [2], [3, 8, 4, 6]), ([2, 6], [4, 3, 3, 8, 3, 2]))
LAYOUT = SharedPromptLayout((5, 8), ((3, 1, 4), (2, 6)))
SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = LlamaForCausalLM(LlamaConfig(vocab_size=11, **SIZES)).eval()
    use_shared_prompts(made)
    return made


def packed_log_probs(model, mask=None):
    ids = torch.cat([torch.tensor(x) for p, own in zip(PROMPTS, COMPLETIONS, strict=True) for x in (p.tolist(), *own)])
    positions = LAYOUT.positions([torch.arange(len(p)) for p in PROMPTS], [len(p) for p in PROMPTS])
    logits = model(
        input_ids=ids[None],
        position_ids=positions[None],
        attention_mask=packed(LAYOUT, torch.device("cpu")) if mask is None else mask,
        use_cache=False,
        logits_to_keep=torch.tensor(LAYOUT.predicting),
    ).logits[0]
    written = torch.tensor([token for own in COMPLETIONS for each in own for token in each])
    return logits.log_softmax(-1).gather(-1, written[:, None])[:, 0]


def plain_log_probs(model):
    found = []
    for prompt, own in zip(PROMPTS, COMPLETIONS, strict=True):
        for each in map(torch.tensor, own):
            logits = model(input_ids=torch.cat([prompt, each])[None]).logits[0, len(prompt) - 1 : -1]
            found.append(logits.log_softmax(-1).gather(-1, each[:, None])[:, 0])
    return torch.cat(found)


def gradients(model, loss):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def test_packed_log_probs_and_gradients_equal_separate_texts(model):
    assert model.config._attn_implementation == NAME
    mine, wanted = packed_log_probs(model), plain_log_probs(model)
    torch.testing.assert_close(mine, wanted, atol=2e-5, rtol=0)
    weights = torch.linspace(-1, 1, len(wanted))
    expected = gradients(model, (wanted * weights).sum())
    assert (gradients(model, (mine * weights).sum()) - expected).norm() < 1e-5 * expected.norm()


def test_gradient_checkpointing_changes_no_packed_gradient(model):
    """In the backward pass, long after the call that named the layout has returned."""
    weights = torch.linspace(-1, 1, len(LAYOUT.predicting))
    expected = gradients(model, (packed_log_probs(model) * weights).sum())
    # transformers renamed both on the way from 5.10 to 5.23
    begin = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    end = getattr(model, "activation_checkpointing_disable", None) or model.gradient_checkpointing_disable
    begin({"use_reentrant": False})
    model.train()
    try:
        found = gradients(model, (packed_log_probs(model) * weights).sum())
    finally:
        model.eval()
        end()
    torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_branched_rows_generate_as_if_alone(model):
    """Two prompts of unequal length, padded on the left; rows in any order; a row is given up on the way."""
    room = max(map(len, PROMPTS))
    ids = torch.stack([torch.cat([torch.zeros(room - len(p), dtype=torch.long), p]) for p in PROMPTS])
    mask = torch.stack([torch.arange(room) >= room - len(p) for p in PROMPTS]).long()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    read = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True)
    branches, own = Branches(torch.tensor([1, 0, 1]), mask == 0), BranchCache(2, room=4)
    following, texts = torch.tensor([8, 5, 8]), torch.tensor([[2, 6, 1, 1], [7, 9, 3, 1], [4, 3, 3, 8]])
    rows = torch.arange(3)
    for place in range(4):
        if place == 2:
            rows = torch.tensor([0, 2])
            branches, following = branches.keep(rows), following[rows]
            own.keep(rows)
        logits = model(
            input_ids=texts[rows, place, None],
            position_ids=following[:, None],
            attention_mask=branching(branches, read.past_key_values),
            past_key_values=own,
            use_cache=True,
        ).logits[:, 0]
        following = following + 1
        for found, row in zip(logits, rows.tolist(), strict=True):
            prompt = PROMPTS[[1, 0, 1][row]]
            alone = torch.cat([prompt, texts[row, : place + 1]])
            torch.testing.assert_close(found, model(input_ids=alone[None]).logits[0, -1], atol=2e-5, rtol=0)
    with pytest.raises(KernelError, match="room for 4 tokens was given 5"):
        model(
            input_ids=texts[rows, :1],
            position_ids=following[:, None],
            attention_mask=branching(branches, read.past_key_values),
            past_key_values=own,
        )


def test_attention_without_a_pack_is_sdpa(model):
    expected = LlamaForCausalLM(LlamaConfig(vocab_size=11, **SIZES)).eval()
    expected.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain_log_probs(model), plain_log_probs(expected), atol=0, rtol=0)


def test_masks_without_their_layout_raise(model):
    mask = packed(LAYOUT, torch.device("cpu"))
    with pytest.raises(KernelError, match="changed the mask that says which texts share a prompt"):
        packed_log_probs(model, mask.clone())


def test_packs_of_several_rows_and_branches_of_several_tokens_raise(model):
    ids = torch.zeros(2, LAYOUT.tokens, dtype=torch.long)
    with pytest.raises(KernelError, match="a pack is one row, and the model was given 2"):
        model(input_ids=ids, attention_mask=packed(LAYOUT, ids.device), position_ids=ids, use_cache=False)
    read = model(input_ids=PROMPTS[0][None], use_cache=True)
    with pytest.raises(KernelError, match="token by token, and 2 came at once"):
        model(
            input_ids=torch.tensor([[1, 2]]),
            position_ids=torch.tensor([[5, 6]]),
            attention_mask=branching(Branches(torch.tensor([0]), None), read.past_key_values),
            past_key_values=BranchCache(2, 4),
        )


def test_models_with_limited_attention_raise():
    sliding = MistralForCausalLM(MistralConfig(vocab_size=11, sliding_window=4, **SIZES))
    with pytest.raises(KernelError, match="MistralForCausalLM: it has layers of sliding_attention"):
        use_shared_prompts(sliding)
    assert "caps the scores" in unsupported_reason(Gemma2Config(layer_types=["full_attention"] * 2, **SIZES))
    assert unsupported_reason(LlamaConfig(**SIZES)) is None
