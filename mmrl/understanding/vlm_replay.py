"""Replay of recorded answers: their log-probabilities, packed with their prompts into one row, or row by row.

A pack is one sequence of P + sum(R) tokens for each group, group after group: the prompt once, then all of its answers,
the positions of each answer continuing those of the prompt. The attention mask separates the answers
(`mmrl_kernels.integrations.transformers`). An update thus computes each prompt once and pads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from mmrl.policy import LossGradFn
from mmrl.tokens import length_buckets, scored_logits, token_log_probs
from mmrl.tokens.log_probs import grad_hint_at, head_log_probs, linear_head, uses_fused_head
from mmrl.understanding.encoded_prompt import EncodedPrompt, collate, sequence_inputs, stackable
from mmrl.understanding.shared_prompt import forward_uncached, prefill, prompt_positions
from mmrl.understanding.vlm import VLM
from mmrl_kernels.integrations.transformers import packed
from mmrl_kernels.ops.shared_prompt import SharedPromptLayout

Scores = tuple[Tensor, Tensor]
"""[B, T] float32 log-probabilities, with a graph if gradients are enabled, and entropies; 0 after an answer's end."""


@dataclass(frozen=True)
class TokenRecording:
    """The prompts and the answer tokens of a rollout, which a replay reads."""

    prompts: list[EncodedPrompt]  # P
    prompt_of: list[int]  # [B]; the index of each answer's prompt; equal ones are adjacent
    tokens: Tensor  # [B, T] int64, padded on the right
    lengths: list[int]  # [B]
    temperature: float

    def select(self, rows: Sequence[int]) -> TokenRecording:
        """Return the recording of some answers, with only the prompts that they need."""
        needed = sorted({self.prompt_of[row] for row in rows})
        return TokenRecording(
            prompts=[self.prompts[number] for number in needed],
            prompt_of=[needed.index(self.prompt_of[row]) for row in rows],
            tokens=self.tokens[torch.as_tensor(rows, dtype=torch.long)],
            lengths=[self.lengths[row] for row in rows],
            temperature=self.temperature,
        )


def packed_scores(
    vlm: VLM, recording: TokenRecording, fused: Literal["auto"] | bool, loss_grad: LossGradFn | None = None
) -> Scores:
    """Score all answers in packs: one forward pass for each set of prompts that can be stacked."""
    tokens = recording.tokens.to(vlm.device)
    rows, step_indices, log_probs, entropies = [], [], [], []
    for prompts, members, prompt_of in _stackable_answers(recording):
        pack = _pack_answers(vlm, prompts, prompt_of, members, tokens, recording.lengths)
        found = _score_pack(vlm, pack, tokens[pack.rows, pack.step_indices], recording.temperature, fused, loss_grad)
        rows.append(pack.rows)
        step_indices.append(pack.step_indices)
        log_probs.append(found[0])
        entropies.append(found[1])
    at = torch.cat(rows), torch.cat(step_indices)
    empty = torch.zeros(tokens.shape, device=vlm.device)
    return empty.index_put(at, torch.cat(log_probs)), empty.index_put(at, torch.cat(entropies))


def row_scores(
    vlm: VLM,
    recording: TokenRecording,
    separate_prompts: bool,  # a copy of the prompt for each answer; gradient checkpointing without packs needs it
) -> Scores:
    """Score each answer as one row of a batch of similar lengths, after the keys and values of its prompt."""
    tokens = recording.tokens.to(vlm.device)
    rows, log_probs, entropies = [], [], []
    for bucket, logits in _bucket_logits(vlm, recording, tokens, separate_prompts):
        scored = scored_logits(logits, recording.temperature, vlm.suppressed)
        chosen, entropy = token_log_probs(scored, tokens[bucket, : logits.shape[1]])
        room = (0, tokens.shape[1] - logits.shape[1])
        rows.append(bucket)
        log_probs.append(F.pad(chosen, room))
        entropies.append(F.pad(entropy, room))
    order = torch.cat(rows).argsort()
    ends = torch.tensor(recording.lengths, device=vlm.device)[:, None]
    inside = torch.arange(tokens.shape[1], device=vlm.device) < ends
    return torch.cat(log_probs)[order].where(inside, 0.0), torch.cat(entropies)[order].where(inside, 0.0)


def _stackable_answers(recording: TokenRecording) -> Iterator[tuple[list[EncodedPrompt], list[int], list[int]]]:
    """Yield (prompts that can be stacked, rows of the answers to them, the place of each answer's prompt)."""
    for numbers in stackable(recording.prompts):
        places = {number: place for place, number in enumerate(numbers)}
        rows = [row for row, number in enumerate(recording.prompt_of) if number in places]
        yield [recording.prompts[each] for each in numbers], rows, [places[recording.prompt_of[row]] for row in rows]


@dataclass(frozen=True)
class _Pack:
    """The inputs of one packed row, and the position of each of its M answer tokens in the batch of answers."""

    inputs: dict[str, Tensor]
    rows: Tensor  # [M] int64; the row of each answer token in the batch
    step_indices: Tensor  # [M] int64; its place in the answer
    predicting: Tensor  # [M] int64; the token of the pack whose hidden state predicts it


def _pack_answers(
    vlm: VLM,
    prompts: Sequence[EncodedPrompt],
    prompt_of: Sequence[int],  # the prompt of each row of the pack; every prompt has at least one
    rows: Sequence[int],  # the row of each in `tokens`
    tokens: Tensor,  # [B, T] int64
    lengths: Sequence[int],  # [B]
) -> _Pack:
    answers: list[list[int]] = [[] for _ in prompts]
    for row, number in zip(rows, prompt_of, strict=True):
        answers[number].append(row)
    layout = SharedPromptLayout(
        tuple(prompt.length for prompt in prompts), tuple(tuple(lengths[row] for row in own) for own in answers)
    )
    inputs = vlm.to_device(collate(prompts, vlm.padding))
    positions, next_positions = prompt_positions(vlm.model, vlm.family, inputs)
    sequences = sequence_inputs(inputs)
    packed_inputs: dict[str, Tensor] = {}
    for name in sequences - {"attention_mask"}:
        parts = []
        for number, prompt in enumerate(prompts):
            parts.append(inputs[name][number, -prompt.length :])
            for answer in answers[number]:
                written = tokens[answer, : lengths[answer]]
                parts.append(written if name == "input_ids" else torch.full_like(written, vlm.family.answer_kind(name)))
        packed_inputs[name] = torch.cat(parts)[None]
    packed_inputs |= {name: value for name, value in inputs.items() if name not in sequences}
    of_prompts = [positions[..., number, -prompt.length :] for number, prompt in enumerate(prompts)]
    packed_inputs["attention_mask"] = packed(layout, tokens.device)
    packed_inputs["position_ids"] = layout.positions(of_prompts, next_positions.tolist()).unsqueeze(-2)
    flat = [answer for each in answers for answer in each]
    return _Pack(
        inputs=packed_inputs,
        rows=torch.tensor([answer for answer in flat for _ in range(lengths[answer])], device=tokens.device),
        step_indices=torch.tensor([place for answer in flat for place in range(lengths[answer])], device=tokens.device),
        predicting=torch.tensor(layout.predicting, device=tokens.device),
    )


def _score_pack(
    vlm: VLM,
    pack: _Pack,
    tokens: Tensor,  # [M] int64, the answer tokens
    temperature: float,
    fused: Literal["auto"] | bool,
    loss_grad: LossGradFn | None,
) -> tuple[Tensor, Tensor]:  # [M] float32 log-probabilities with a graph, [M] entropies in nats without
    head = linear_head(vlm.model)
    if head is not None and uses_fused_head(fused, len(tokens), head.out_features):
        states = vlm.model.base_model(**pack.inputs, use_cache=False).last_hidden_state[0, pack.predicting]
        grad_hint = grad_hint_at(loss_grad, pack.rows, pack.step_indices)
        return head_log_probs(states, head.weight, head.bias, tokens, temperature, vlm.suppressed, grad_hint)
    logits = vlm.model(**pack.inputs, use_cache=False, logits_to_keep=pack.predicting).logits
    if logits.shape[1] == pack.inputs["input_ids"].shape[1]:  # some models ignore `logits_to_keep`
        logits = logits[:, pack.predicting]
    chosen, entropy = token_log_probs(scored_logits(logits, temperature, vlm.suppressed), tokens[None])
    return chosen[0], entropy[0]


def _bucket_logits(
    vlm: VLM, recording: TokenRecording, tokens: Tensor, separate_prompts: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield rows [b] of similar length, and the logits [b, k, V] that predict their tokens."""
    for prompts, members, prompt_of in _stackable_answers(recording):
        inputs = None if separate_prompts else vlm.to_device(collate(prompts, vlm.padding))
        prefix = None if inputs is None else prefill(vlm.model, vlm.family, inputs)
        for bucket in length_buckets([recording.lengths[row] for row in members]):
            own = [members[each] for each in bucket]
            rows = torch.tensor(own, device=vlm.device)
            answers = tokens[rows, : max(recording.lengths[row] for row in own)]
            if prefix is None:
                inputs = vlm.to_device(collate([prompts[prompt_of[each]] for each in bucket], vlm.padding))
                yield rows, forward_uncached(vlm.model, vlm.family, inputs, answers)
                continue
            index = torch.tensor([prompt_of[each] for each in bucket], device=vlm.device)
            yield rows, prefix.expand(index).answer_logits(answers)
