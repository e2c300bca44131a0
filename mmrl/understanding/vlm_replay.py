"""Log-probabilities of recorded answers: packed behind their shared prompts, or row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from mmrl.policy import LossGradFn
from mmrl.tokens import length_buckets, scored_logits, token_log_probs
from mmrl.understanding.packing import pack_answers, score_pack
from mmrl.understanding.prompt_encoder import EncodedPrompt, collate, stackable
from mmrl.understanding.shared_prompt import prefill, read_whole
from mmrl.understanding.vlm import VLM

Scores = tuple[Tensor, Tensor]
"""[B, T] float32 log-probabilities, with a graph if gradients are enabled, and entropies; 0 beyond an answer's end."""


def packed_scores(
    vlm: VLM, recording: TokenRecording, fused: Literal["auto"] | bool, slope: LossGradFn | None = None
) -> Scores:
    """All answers to prompts that may stand side by side go through the model in one row."""
    tokens = recording.tokens.to(vlm.device)
    rows, step_indices, log_probs, entropies = [], [], [], []
    for numbers, members in _sets(recording):
        places = {number: place for place, number in enumerate(numbers)}
        pack = pack_answers(
            vlm,
            [recording.prompts[number] for number in numbers],
            [places[recording.prompt_of[row]] for row in members],
            members,
            tokens,
            recording.lengths,
        )
        found = score_pack(vlm, pack, tokens[pack.rows, pack.step_indices], recording.temperature, fused, slope)
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
    apart: bool,  # whether each answer has a copy of its prompt, as gradient checkpointing without packs needs it
) -> Scores:
    """Each answer is a row, beside others of like length, behind its prompt's keys and values."""
    tokens = recording.tokens.to(vlm.device)
    rows, log_probs, entropies = [], [], []
    for bucket, logits in _read(vlm, recording, tokens, apart):
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


def _sets(recording: TokenRecording) -> Iterator[tuple[list[int], list[int]]]:
    """Prompts that may stand side by side, and the rows that answer them."""
    for numbers in stackable(recording.prompts):
        mine = set(numbers)
        yield numbers, [row for row, number in enumerate(recording.prompt_of) if number in mine]


def _read(vlm: VLM, recording: TokenRecording, tokens: Tensor, apart: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of similar length, and what the model says of each of their tokens: [b], [b, k, V]."""
    for numbers, members in _sets(recording):
        prompts = [recording.prompts[number] for number in numbers]
        prefix = None if apart else prefill(vlm.model, vlm.family, vlm.to_device(collate(prompts, vlm.padding)))
        places = {number: place for place, number in enumerate(numbers)}
        for bucket in length_buckets([recording.lengths[row] for row in members]):
            own = [members[each] for each in bucket]
            rows = torch.tensor(own, device=vlm.device)
            answers = tokens[rows, : max(recording.lengths[row] for row in own)]
            if prefix is None:
                yield rows, _read_apart(vlm, recording, own, answers)
                continue
            index = [places[recording.prompt_of[row]] for row in own]
            yield rows, prefix.expand(torch.tensor(index, device=vlm.device)).read_answers(answers)


def _read_apart(vlm: VLM, recording: TokenRecording, bucket: Sequence[int], answers: Tensor) -> Tensor:
    """Each answer with its own copy of the prompt: gradient checkpointing allows no cache."""
    inputs = vlm.to_device(collate([recording.prompts[recording.prompt_of[row]] for row in bucket], vlm.padding))
    return read_whole(vlm.model, vlm.family, inputs, answers)


# What a vision-language model's rollout keeps, to be replayed.


@dataclass(frozen=True)
class TokenRecording:
    """What replay needs: the prompts, and what was written after them."""

    prompts: list[EncodedPrompt]  # P
    prompt_of: list[int]  # B of them; equal ones stand together
    tokens: Tensor  # [B, T] int64, padded on the right
    lengths: list[int]  # B
    temperature: float

    def select(self, rows: Sequence[int]) -> TokenRecording:
        """Some answers, with the prompts that they need."""
        needed = sorted({self.prompt_of[row] for row in rows})
        return TokenRecording(
            prompts=[self.prompts[number] for number in needed],
            prompt_of=[needed.index(self.prompt_of[row]) for row in rows],
            tokens=self.tokens[torch.as_tensor(rows, dtype=torch.long)],
            lengths=[self.lengths[row] for row in rows],
            temperature=self.temperature,
        )
