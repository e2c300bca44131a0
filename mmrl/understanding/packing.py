"""Prompts and all of their answers in one row, so that an update computes each prompt once and pads nothing.

What the model is given is one text of P + sum(R) tokens for each group, group after group, every answer counting its
positions on from its own prompt; the mask keeps answers apart (`mmrl_kernels.doors.transformers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mmrl.policy import LossGradFn
from mmrl.tokens import scored_logits, token_log_probs
from mmrl.tokens.fused_log_probs import at_places, fuses, log_probs_of, plain_head
from mmrl.understanding.prompt_encoder import EncodedPrompt, collate, sequence_inputs
from mmrl.understanding.shared_prompt import positions_of
from mmrl.understanding.vlm import VLM
from mmrl_kernels.doors.transformers import packed
from mmrl_kernels.ops.shared_prompt import SharedPromptLayout


@dataclass(frozen=True)
class Pack:
    """One row for the model, and where in a batch of answers each of its answer tokens stands."""

    inputs: dict[str, Tensor]
    layout: SharedPromptLayout
    rows: Tensor  # [M] int64; of each answer token in the pack's order, its row of the batch
    step_indices: Tensor  # [M] int64; and its place in the answer
    predicting: Tensor  # [M] int64; the token of the pack whose state says what it thinks of it


def pack_answers(
    vlm: VLM,
    prompts: Sequence[EncodedPrompt],
    prompt_of: Sequence[int],  # of each row of the pack; every prompt has one
    rows: Sequence[int],  # their numbers in `tokens`
    tokens: Tensor,  # [B, T] int64
    lengths: Sequence[int],  # [B]
) -> Pack:
    """Some rows of a batch of answers behind their prompts."""
    answers: list[list[int]] = [[] for _ in prompts]
    for row, number in zip(rows, prompt_of, strict=True):
        answers[number].append(row)
    layout = SharedPromptLayout(
        tuple(prompt.length for prompt in prompts), tuple(tuple(lengths[row] for row in own) for own in answers)
    )
    inputs = vlm.to_device(collate(prompts, vlm.padding))
    own, following = positions_of(vlm.model, vlm.family, inputs)
    sequences = sequence_inputs(inputs)
    kinds = {"token_type_ids": vlm.family.answer_type}
    packed_inputs: dict[str, Tensor] = {}
    for name in sequences - {"attention_mask"}:
        parts = []
        for number, prompt in enumerate(prompts):
            parts.append(inputs[name][number, -prompt.length :])
            for answer in answers[number]:
                written = tokens[answer, : lengths[answer]]
                parts.append(written if name == "input_ids" else torch.full_like(written, kinds.get(name, 0)))
        packed_inputs[name] = torch.cat(parts)[None]
    packed_inputs |= {name: value for name, value in inputs.items() if name not in sequences}
    begun = [own[..., number, -prompt.length :] for number, prompt in enumerate(prompts)]
    packed_inputs["attention_mask"] = packed(layout, tokens.device)
    packed_inputs["position_ids"] = layout.positions(begun, following.tolist()).unsqueeze(-2)
    flat = [answer for each in answers for answer in each]
    return Pack(
        inputs=packed_inputs,
        layout=layout,
        rows=torch.tensor([answer for answer in flat for _ in range(lengths[answer])], device=tokens.device),
        step_indices=torch.tensor([place for answer in flat for place in range(lengths[answer])], device=tokens.device),
        predicting=torch.tensor(layout.predicting, device=tokens.device),
    )


def score_pack(
    vlm: VLM,
    pack: Pack,
    tokens: Tensor,  # [M] int64, the answer tokens
    temperature: float,
    fused: Literal["auto"] | bool,
    slope: LossGradFn | None = None,
) -> tuple[Tensor, Tensor]:  # [M] float32 log-probabilities with a graph, [M] entropies in nats without
    """How likely each answer token was."""
    head = plain_head(vlm.model)
    if head is not None and fuses(fused, len(tokens), head.out_features):
        states = vlm.model.base_model(**pack.inputs, use_cache=False).last_hidden_state[0, pack.predicting]
        grad_hint = at_places(slope, pack.rows, pack.step_indices)
        return log_probs_of(states, head.weight, head.bias, tokens, temperature, vlm.suppressed, grad_hint)
    logits = vlm.model(**pack.inputs, use_cache=False, logits_to_keep=pack.predicting).logits
    chosen, entropy = token_log_probs(scored_logits(logits, temperature, vlm.suppressed), tokens[None])
    return chosen[0], entropy[0]
