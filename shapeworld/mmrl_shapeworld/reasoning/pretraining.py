"""Pre-training of the language models that write traces: which calculations, how they are batched, and the loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3VLForConditionalGeneration

from mmrl_shapeworld.reasoning.calculations import Calculation, Family, part_of, sample_calculation
from mmrl_shapeworld.vlm_model import CHAT_TEMPLATE


def training_calculation(family: Family, rng: np.random.Generator) -> Calculation:
    """Draw a calculation that is in neither the development nor the validation split."""
    while part_of(drawn := sample_calculation(family, rng)) != "train":
        pass
    return drawn


def batches(
    words: PreTrainedTokenizerFast, calculations: Sequence[Calculation], traces: Sequence[str], count: int = 3
) -> list[tuple[Tensor, Tensor]]:  # ids [B, T] int64, padded behind; the place of each row's first token of a trace [B]
    """Return prompts with their traces in batches of about equal length."""
    turn = [{"role": "user", "content": "@"}]
    template = words.apply_chat_template(turn, chat_template=CHAT_TEMPLATE, tokenize=False, add_generation_prompt=True)
    before, after = template.split("@")
    prompts = words([f"{before}{calculation}{after}" for calculation in calculations])["input_ids"]
    answers = words([f"{trace}{words.eos_token}" for trace in traces])["input_ids"]
    order = sorted(range(len(prompts)), key=lambda n: len(prompts[n]) + len(answers[n]))
    made = []
    for part in np.array_split(np.array(order), count):
        rows = [torch.tensor(prompts[n] + answers[n]) for n in part]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=words.pad_token_id)
        made.append((ids, torch.tensor([len(prompts[n]) for n in part])))
    return made


def accumulate_gradients(
    model: Qwen3VLForConditionalGeneration,
    words: PreTrainedTokenizerFast,
    calculations: Sequence[Calculation],
    traces: Sequence[str],
) -> float:
    """Leave the gradient of the mean negative log-likelihood of the tokens of traces, and return that mean, in nats."""
    total, tokens = 0.0, 0
    for rows, starts in batches(words, calculations, traces):
        loss, count = loss_of(model, rows, starts)
        loss.backward()
        total, tokens = total + loss.item(), tokens + count
    for parameter in model.model.language_model.parameters():
        if parameter.grad is not None:
            parameter.grad /= tokens
    return total / tokens


def loss_of(model: Qwen3VLForConditionalGeneration, ids: Tensor, starts: Tensor) -> tuple[Tensor, int]:
    """Return the summed negative log-likelihood of the tokens of traces, in nats, and their number.

    All tokens count alike, so that the first ones learn the shares of the styles, however long their traces are.
    """
    language = model.model.language_model
    states = language(inputs_embeds=language.embed_tokens(ids), use_cache=False).last_hidden_state
    places = torch.arange(ids.shape[1])
    padded = ids == model.config.text_config.pad_token_id
    is_trace = ((places >= starts[:, None]) & ~padded)[:, 1:]
    logits = model.lm_head(states[:, :-1][is_trace])
    return F.cross_entropy(logits, ids[:, 1:][is_trace], reduction="sum"), len(logits)
