"""Who writes the answers of a rollout: the model itself, or one day a server that holds a copy of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from mmrl.config.sampling import TokenSamplingConfig
from mmrl.tokens import draw_tokens, scored_logits
from mmrl.understanding.prompt_encoder import EncodedPrompt, collate, stackable
from mmrl.understanding.shared_prompt import Branch, Prefix, prefill
from mmrl.understanding.vlm import VLM

COMPACT_BELOW = 0.75
"""Finished rows are dropped from the batch once no more than this share of it still writes."""


@dataclass(frozen=True)
class Written:
    """B answers, in the order of the prompts and of the answers to each."""

    token_ids: list[list[int]]  # with the end token, unless the answer was cut off
    log_probs: list[list[float]]  # of each token, at the sampling temperature, before top-k and top-p


class RolloutEngine(Protocol):
    """Writes several answers to each prompt."""

    def write(
        self, prompts: Sequence[EncodedPrompt], counts: Sequence[int], sampling: TokenSamplingConfig, seed: int
    ) -> Written:
        """`counts[p]` answers to prompt p. Equal arguments and parameters give equal answers."""
        ...

    def load_weights(self, policy: nn.Module, version: int) -> None:
        """Make sure that what writes next has the policy's present parameters; `version` counts its updates."""
        ...


@dataclass(frozen=True)
class TransformersEngine:
    """The policy's own model, in its own process: a prompt is read once, whatever the number of its answers.

    Not `generate`: it would encode the pictures once for each answer, and cannot give up finished rows.
    """

    vlm: VLM
    shares_prompts: bool  # whether answers go on from one copy of their prompt's keys and values

    def load_weights(self, policy: nn.Module, version: int) -> None:
        """Nothing to do: it writes with the policy's parameters themselves."""

    def write(
        self, prompts: Sequence[EncodedPrompt], counts: Sequence[int], sampling: TokenSamplingConfig, seed: int
    ) -> Written:
        """`counts[p]` answers to prompt p."""
        vlm = self.vlm
        generator = torch.Generator(vlm.device).manual_seed(seed) if sampling.temperature else None
        token_ids: dict[int, list[list[int]]] = {}
        log_probs: dict[int, list[list[float]]] = {}
        for numbers in stackable(prompts):
            inputs = vlm.to_device(collate([prompts[number] for number in numbers], vlm.padding))
            repeats = torch.tensor([counts[number] for number in numbers], device=vlm.device)
            rows = torch.arange(len(numbers), device=vlm.device).repeat_interleave(repeats)
            read = prefill(vlm.model, vlm.family, inputs)
            begun = read.branch(rows, sampling.max_new_tokens) if self.shares_prompts else read.expand(rows)
            written = _write(vlm, begun, sampling, generator)
            bounds = accumulate((counts[number] for number in numbers), initial=0)
            for number, (start, end) in zip(numbers, pairwise(bounds), strict=True):
                token_ids[number], log_probs[number] = written.token_ids[start:end], written.log_probs[start:end]
        order = range(len(prompts))
        return Written(
            [row for number in order for row in token_ids[number]],
            [row for number in order for row in log_probs[number]],
        )


@torch.inference_mode()  # 6 % faster than without gradients alone; what leaves it are numbers, not tensors
def _write(
    vlm: VLM, prefix: Prefix | Branch, sampling: TokenSamplingConfig, generator: torch.Generator | None
) -> Written:
    rows = len(prefix.logits)
    tokens = torch.full((rows, sampling.max_new_tokens), vlm.padding, device=vlm.device)
    log_probs = torch.zeros(rows, sampling.max_new_tokens, device=vlm.device)
    lengths = torch.full((rows,), sampling.max_new_tokens, device=vlm.device)
    writing = torch.arange(rows, device=vlm.device)  # which answer each row of the batch is
    ended = torch.zeros(rows, dtype=torch.bool, device=vlm.device)
    for place in range(sampling.max_new_tokens):
        logits = scored_logits(prefix.logits, sampling.temperature, vlm.suppressed)
        drawn = draw_tokens(logits, generator, sampling.top_p, sampling.top_k)
        tokens[writing, place] = drawn
        log_probs[writing, place] = logits.gather(-1, drawn[:, None])[:, 0] - logits.logsumexp(-1)
        newly = torch.isin(drawn, vlm.ends) & ~ended
        lengths[writing[newly]] = place + 1
        ended |= newly
        left = int((~ended).sum())
        if not left or place + 1 == sampling.max_new_tokens:
            break
        if left <= COMPACT_BELOW * len(writing):
            keep = (~ended).nonzero()[:, 0]
            prefix, drawn, writing, ended = prefix.expand(keep), drawn[keep], writing[keep], ended[keep]
        prefix = prefix.read(drawn[:, None])[1]
    return Written(*_cut(tokens, log_probs, lengths))


def _cut(tokens: Tensor, log_probs: Tensor, lengths: Tensor) -> tuple[list[list[int]], list[list[float]]]:
    ends = lengths.tolist()
    return (
        [row[:end] for row, end in zip(tokens.tolist(), ends, strict=True)],
        [row[:end] for row, end in zip(log_probs.tolist(), ends, strict=True)],
    )
