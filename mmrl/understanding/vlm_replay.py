"""Replay of recorded answers: their log-probabilities, packed with their prompts into one row, or row by row.

A pack is one sequence of P + sum(R) tokens for each group, group after group: the prompt once, then all of its answers,
the positions of each answer continuing those of the prompt. The attention mask separates the answers
(`mmrl_kernels.integrations.transformers`). An update thus computes each prompt once and pads nothing.

A trajectory of several turns is one row: observations stand between its own tokens, with their media, and are no
decisions. Where prompts are not shared, it is one sequence (`trajectory_scores`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from mmrl.policy import LossGradFn
from mmrl.tokens import length_buckets, scored_logits, token_log_probs
from mmrl.tokens.log_probs import TokenScores, grad_hint_at, head_log_probs, linear_head, uses_fused_head
from mmrl.understanding.continuation import Continuation, Observed, followed, with_positions
from mmrl.understanding.encoded_prompt import EncodedPrompt, collate, sequence_inputs, stackable
from mmrl.understanding.repeated_media import media_once
from mmrl.understanding.shared_prompt import batch_positions, forward_uncached, prefill
from mmrl.understanding.vlm import VLM
from mmrl_kernels.integrations.transformers import packed
from mmrl_kernels.ops.shared_prompt import SharedPromptLayout


@dataclass(frozen=True)
class TokenRecording:
    """The prompts and the answer tokens of a rollout, which a replay reads."""

    prompts: list[EncodedPrompt]  # P
    prompt_of: list[int]  # [B]; the index of each answer's prompt; equal ones are adjacent
    tokens: Tensor  # [B, T] int64, padded on the right; a row's own tokens, of all turns end to end
    lengths: list[int]  # [B]
    temperature: float
    observed: tuple[tuple[Observed, ...], ...] = ()  # [B] the observations between own tokens; () if no row has any

    @property
    def has_observations(self) -> bool:
        """True if any row has more than one turn."""
        return any(self.observed)

    def continuation(self, row: int, tokens: Tensor | None = None) -> Continuation:
        """Return what follows the prompt of a row; `tokens` are those of the recording on another device."""
        own = (self.tokens if tokens is None else tokens)[row, : self.lengths[row]]
        return Continuation(own, self.observed[row] if self.observed else ())

    def turns(self) -> Tensor:  # [B, T] int64
        """Return the turn of each own token, from 0."""
        found = torch.zeros(self.tokens.shape, dtype=torch.long)
        for row, observed in enumerate(self.observed):
            for each in observed:
                found[row, each.after :] += 1
        return found

    def select(self, rows: Sequence[int]) -> TokenRecording:
        """Return the recording of some answers, with only the prompts that they need."""
        needed = sorted({self.prompt_of[row] for row in rows})
        return TokenRecording(
            prompts=[self.prompts[number] for number in needed],
            prompt_of=[needed.index(self.prompt_of[row]) for row in rows],
            tokens=self.tokens[torch.as_tensor(rows, dtype=torch.long)],
            lengths=[self.lengths[row] for row in rows],
            temperature=self.temperature,
            observed=tuple(self.observed[row] for row in rows) if self.observed else (),
        )


def packed_scores(
    vlm: VLM, recording: TokenRecording, fused: Literal["auto"] | bool, loss_grad: LossGradFn | None = None
) -> TokenScores:
    """Score all answers in packs [B, T], 0 after their ends: one forward pass for each set of prompts to be stacked."""
    tokens = recording.tokens.to(vlm.device)
    rows, step_indices, scores = [], [], []
    for prompts, members, prompt_of in stackable_answers(recording):
        pack = pack_answers(vlm, prompts, prompt_of, [recording.continuation(row, tokens) for row in members], members)
        found = _score_pack(vlm, pack, tokens[pack.rows, pack.step_indices], recording.temperature, fused, loss_grad)
        rows.append(pack.rows)
        step_indices.append(pack.step_indices)
        scores.append(found)
    at = torch.cat(rows), torch.cat(step_indices)
    empty = torch.zeros(tokens.shape, device=vlm.device)
    return TokenScores(*(empty.index_put(at, torch.cat(parts)) for parts in zip(*scores, strict=True)))


def row_scores(
    vlm: VLM,
    recording: TokenRecording,
    separate_prompts: bool,  # a copy of the prompt for each answer; gradient checkpointing without packs needs it
) -> TokenScores:
    """Score each answer as one row of a batch of similar lengths, after the keys and values of its prompt."""
    if recording.has_observations:
        return trajectory_scores(vlm, recording)
    tokens = recording.tokens.to(vlm.device)
    rows, scores = [], []
    for bucket, logits in bucket_logits(vlm, recording, tokens, separate_prompts):
        scored = scored_logits(logits, recording.temperature, vlm.suppressed)
        room = (0, tokens.shape[1] - logits.shape[1])
        rows.append(bucket)
        found = token_log_probs(scored, tokens[bucket, : logits.shape[1]])
        scores.append([F.pad(each, room) for each in found])
    order = torch.cat(rows).argsort()
    ends = torch.tensor(recording.lengths, device=vlm.device)[:, None]
    inside = torch.arange(tokens.shape[1], device=vlm.device) < ends
    return TokenScores(*(torch.cat(parts)[order].where(inside, 0.0) for parts in zip(*scores, strict=True)))


def stackable_answers(recording: TokenRecording) -> Iterator[tuple[list[EncodedPrompt], list[int], list[int]]]:
    """Yield (prompts that can be stacked, rows of the answers to them, the place of each answer's prompt)."""
    for members in stackable_rows(recording):
        numbers = sorted({recording.prompt_of[row] for row in members})
        places = {number: place for place, number in enumerate(numbers)}
        prompts = [recording.prompts[number] for number in numbers]
        yield prompts, members, [places[recording.prompt_of[row]] for row in members]


def stackable_rows(recording: TokenRecording) -> list[list[int]]:
    """Return rows in sets whose prompts and observations can be stacked (`stackable`)."""
    if not recording.has_observations:
        sets = stackable(recording.prompts)
        return [[row for row, number in enumerate(recording.prompt_of) if number in set(each)] for each in sets]
    with_video = []
    for row, number in enumerate(recording.prompt_of):
        units = [recording.prompts[number], *recording.continuation(row).media]
        with_video.append(next((unit for unit in units if "pixel_values_videos" in unit.inputs), units[0]))
    return stackable(with_video)


@dataclass(frozen=True)
class Pack:
    """The inputs of one packed row, and the position of each of its M answer tokens in the batch of answers."""

    inputs: dict[str, Any]
    rows: Tensor  # [M] int64; the row of each answer token in the batch
    step_indices: Tensor  # [M] int64; its place in the answer
    predicting: Tensor  # [M] int64; the token of the pack whose hidden state predicts it


def pack_answers(
    vlm: VLM,
    prompts: Sequence[EncodedPrompt],
    prompt_of: Sequence[int],  # the prompt of each row of the pack; every prompt has at least one
    continuations: Sequence[Continuation],  # of each row of the pack
    rows: Sequence[int],  # the number of each in the batch of answers
) -> Pack:
    members: list[list[int]] = [[] for _ in prompts]  # places in `continuations`
    for place, number in enumerate(prompt_of):
        members[number].append(place)
    order = [place for own in members for place in own]
    layout = SharedPromptLayout(
        tuple(prompt.length for prompt in prompts),
        tuple(tuple(continuations[place].length for place in own) for own in members),
    )
    inputs = vlm.to_device(collate(prompts, vlm.padding))
    positions, next_positions = batch_positions(vlm.model, vlm.family, inputs, prompts)
    sequences = sequence_inputs(inputs)
    observed = any(each.observed for each in continuations)
    if observed:
        sequences |= {name for each in continuations for unit in each.media for name in sequence_inputs(unit.inputs)}
    packed_inputs: dict[str, Any] = {}
    for name in sequences - {"attention_mask"}:
        batch = inputs.get(name, torch.zeros_like(inputs["input_ids"]))
        parts = []
        for number, prompt in enumerate(prompts):
            parts.append(batch[number, -prompt.length :])
            parts += [continuations[place].sequence(name, vlm.family) for place in members[number]]
        packed_inputs[name] = torch.cat(parts)[None]
    if observed:
        units = [
            unit
            for number, prompt in enumerate(prompts)
            for unit in (prompt, *(unit for place in members[number] for unit in continuations[place].media))
        ]
        packed_inputs |= media_once(vlm, units)
    else:
        packed_inputs |= {name: value for name, value in inputs.items() if name not in sequences}
    at = []
    for number, (prompt, following) in enumerate(zip(prompts, next_positions.tolist(), strict=True)):
        at.append(positions[..., number, -prompt.length :])
        at += [continuations[place].positions(following, vlm.family).values for place in members[number]]
    device = inputs["input_ids"].device
    packed_inputs["attention_mask"] = packed(layout, device)
    packed_inputs["position_ids"] = torch.cat(at, dim=-1).unsqueeze(-2)
    lengths = {place: len(continuations[place].tokens) for place in order}
    is_own = torch.cat([continuations[place].is_own for place in order])
    return Pack(
        inputs=packed_inputs,
        rows=torch.tensor([rows[place] for place in order for _ in range(lengths[place])], device=device),
        step_indices=torch.tensor([step for place in order for step in range(lengths[place])], device=device),
        predicting=torch.tensor(layout.predicting)[is_own].to(device),
    )


def _score_pack(
    vlm: VLM,
    pack: Pack,
    tokens: Tensor,  # [M] int64, the answer tokens
    temperature: float,
    fused: Literal["auto"] | bool,
    loss_grad: LossGradFn | None,
) -> TokenScores:  # [M]
    head = linear_head(vlm.model)
    if head is not None and uses_fused_head(fused, len(tokens), head.out_features):
        states = vlm.model.base_model(**pack.inputs, use_cache=False).last_hidden_state[0, pack.predicting]
        grad_hint = grad_hint_at(loss_grad, pack.rows, pack.step_indices)
        return head_log_probs(states, head.weight, head.bias, tokens, temperature, vlm.suppressed, grad_hint)
    logits = pack_logits(vlm, pack)[None]
    found = token_log_probs(scored_logits(logits, temperature, vlm.suppressed), tokens[None])
    return TokenScores(*(each[0] for each in found))


def pack_logits(vlm: VLM, pack: Pack) -> Tensor:  # [M, V]
    """Return the outputs of a model that predict the answer tokens of a pack."""
    logits = vlm.model(**pack.inputs, use_cache=False, logits_to_keep=pack.predicting).logits
    if logits.shape[1] == pack.inputs["input_ids"].shape[1]:  # some models ignore `logits_to_keep`
        logits = logits[:, pack.predicting]
    return logits[0]


def bucket_logits(
    vlm: VLM, recording: TokenRecording, tokens: Tensor, separate_prompts: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield rows [b] of similar length, and the logits [b, k, V] that predict their tokens."""
    for prompts, members, prompt_of in stackable_answers(recording):
        inputs = None if separate_prompts else vlm.to_device(collate(prompts, vlm.padding))
        prefix = None if inputs is None else prefill(vlm.model, vlm.family, inputs, prompts)
        for bucket in length_buckets([recording.lengths[row] for row in members]):
            own = [members[each] for each in bucket]
            rows = torch.tensor(own, device=vlm.device)
            answers = tokens[rows, : max(recording.lengths[row] for row in own)]
            if prefix is None:
                chosen = [prompts[prompt_of[each]] for each in bucket]
                inputs = vlm.to_device(collate(chosen, vlm.padding))
                yield rows, forward_uncached(vlm.model, vlm.family, inputs, answers, chosen)
                continue
            index = torch.tensor([prompt_of[each] for each in bucket], device=vlm.device)
            yield rows, prefix.expand(index).answer_logits(answers)


def trajectory_scores(vlm: VLM, recording: TokenRecording) -> TokenScores:
    """Score each trajectory as one sequence, in batches of similar length."""
    tokens = recording.tokens.to(vlm.device)
    scores: dict[int, list[Tensor]] = {}
    for row, logits in trajectory_logits(vlm, recording):
        scored = scored_logits(logits, recording.temperature, vlm.suppressed)
        own = tokens[row, : recording.lengths[row]]
        room = (0, tokens.shape[1] - len(own))
        scores[row] = [F.pad(each[0], room) for each in token_log_probs(scored[None], own[None])]
    ordered = [scores[row] for row in range(len(tokens))]
    return TokenScores(*(torch.stack(parts) for parts in zip(*ordered, strict=True)))


def trajectory_logits(vlm: VLM, recording: TokenRecording) -> Iterator[tuple[int, Tensor]]:
    """Yield each row with the logits [T, V] that predict its own tokens."""
    wholes = [
        followed(
            with_positions(vlm.model, vlm.family, recording.prompts[number]), recording.continuation(row), vlm.family
        )
        for row, number in enumerate(recording.prompt_of)
    ]
    for members in stackable(wholes):
        for bucket in length_buckets([wholes[row].length for row in members]):
            rows = [members[each] for each in bucket]
            logits, columns = _predicting_logits(vlm, recording, [wholes[row] for row in rows], rows)
            for place, row in enumerate(rows):
                yield row, logits[place, columns[place]]


def _predicting_logits(
    vlm: VLM, recording: TokenRecording, wholes: Sequence[EncodedPrompt], rows: Sequence[int]
) -> tuple[Tensor, list[Tensor]]:
    """Return the logits [b, K, V] at columns that predict own tokens of any row, and those of each row among them."""
    inputs = vlm.to_device(collate(wholes, vlm.padding))
    positions, _ = batch_positions(vlm.model, vlm.family, inputs, wholes)
    width = inputs["input_ids"].shape[1]
    own = []
    for row in rows:
        is_own = recording.continuation(row).is_own
        own.append(is_own.nonzero()[:, 0] + width - len(is_own) - 1)
    used = torch.cat(own).unique()
    kept = used.to(vlm.device)
    logits = vlm.model(**inputs, position_ids=positions, use_cache=False, logits_to_keep=kept).logits
    if logits.shape[1] == width:  # some models ignore `logits_to_keep`
        logits = logits[:, kept]
    return logits, [torch.searchsorted(used, each).to(vlm.device) for each in own]
