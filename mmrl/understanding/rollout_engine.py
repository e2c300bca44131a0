"""Engines that generate the answers of a rollout: the policy's own model, or a server with a copy of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from mmrl.config.sampling import TokenSamplingConfig
from mmrl.tokens import sample_tokens, scored_logits
from mmrl.understanding.dialogue import Dialogue
from mmrl.understanding.encoded_prompt import EncodedPrompt, collate, stackable
from mmrl.understanding.shared_prompt import Prefix, prefill
from mmrl.understanding.vlm import VLM

COMPACT_BELOW = 0.75
"""Finished rows are removed from the batch when the share of unfinished rows is at most this."""


@dataclass(frozen=True)
class GeneratedTokens:
    """The tokens of B answers, ordered by prompt."""

    token_ids: list[list[int]]  # with the end token, unless the answer was cut off
    log_probs: list[list[float]]  # of each token, at the sampling temperature, before top-k and top-p
    dialogue: Dialogue | None = field(default=None, repr=False, compare=False)
    """The rows as they were read, for their next turn; None: that reads them from the beginning."""
    versions: list[list[int]] | None = None
    """The updates before the weights that wrote each token; None: all were written by the weights loaded last."""


class GrowingRows(Protocol):
    """Rows that have been read, and that grow by one token at a time."""

    @property
    def logits(self) -> Tensor:
        """The logits [B, V] of the next token."""

    def expand(self, index: Tensor) -> GrowingRows:
        """Return the rows at `index`, in rising order and without repetition. Invalidates these."""

    def extend(self, tokens: Tensor) -> tuple[Tensor, GrowingRows]:
        """Read one more token in each row: return its logits [B, 1, V] and the longer rows. Invalidates these."""


class RolloutEngine(Protocol):
    """An engine that generates several answers to each prompt."""

    def generate(
        self, prompts: Sequence[EncodedPrompt], counts: Sequence[int], sampling: TokenSamplingConfig, seed: int
    ) -> GeneratedTokens:
        """Generate `counts[p]` answers to prompt p. Equal arguments and parameters give equal answers."""

    def load_weights(self, policy: nn.Module, version: int) -> None:
        """Load the policy's current parameters before the next `generate`; `version` counts its updates."""

    def metrics(self) -> dict[str, float]:
        """Return the engine's own metrics since the last call."""


@dataclass(frozen=True)
class TransformersEngine:
    """The policy's own model in the same process; each prompt is computed once for all of its answers.

    `generate` of transformers would encode the images once for each answer, and cannot remove finished rows.
    """

    vlm: VLM
    shares_prompts: bool  # answers continue one copy of their prompt's keys and values

    def load_weights(self, policy: nn.Module, version: int) -> None:
        """Do nothing: the engine uses the policy's own parameters."""

    def metrics(self) -> dict[str, float]:
        """Return no metrics."""
        return {}

    def generate(
        self, prompts: Sequence[EncodedPrompt], counts: Sequence[int], sampling: TokenSamplingConfig, seed: int
    ) -> GeneratedTokens:
        """Generate `counts[p]` answers to prompt p."""
        vlm = self.vlm
        generator = self._generator(sampling, seed)
        dialogue = None
        token_ids: dict[int, list[list[int]]] = {}
        log_probs: dict[int, list[list[float]]] = {}
        sets = stackable(prompts)
        for numbers in sets:
            some = [prompts[number] for number in numbers]
            inputs = vlm.to_device(collate(some, vlm.padding))
            repeats = torch.tensor([counts[number] for number in numbers], device=vlm.device)
            rows = torch.arange(len(numbers), device=vlm.device).repeat_interleave(repeats)
            begun, prefix = self._begin(some, inputs, rows, sampling.max_new_tokens)
            generated = _generate(vlm, begun, sampling, generator)
            if prefix is not None and self.shares_prompts and vlm.family.batches and len(sets) == 1:
                dialogue = Dialogue(prefix, rows)
            bounds = accumulate((counts[number] for number in numbers), initial=0)
            for number, (start, end) in zip(numbers, pairwise(bounds), strict=True):
                token_ids[number], log_probs[number] = generated.token_ids[start:end], generated.log_probs[start:end]
        order = range(len(prompts))
        return GeneratedTokens(
            [row for number in order for row in token_ids[number]],
            [row for number in order for row in log_probs[number]],
            dialogue,
        )

    def write_on(self, prefix: Prefix, sampling: TokenSamplingConfig, seed: int) -> GeneratedTokens:
        """Generate one more turn of each row that a dialogue has read."""
        rows = torch.arange(len(prefix.logits), device=self.vlm.device)
        begun = prefix.branch(rows, sampling.max_new_tokens)
        generated = _generate(self.vlm, begun, sampling, self._generator(sampling, seed))
        return replace(generated, dialogue=Dialogue(prefix, rows))

    def _begin(
        self, prompts: Sequence[EncodedPrompt], inputs: dict[str, Tensor], rows: Tensor, room: int
    ) -> tuple[GrowingRows, Prefix | None]:
        """Return the rows to write, and the prompts as they were read, if a dialogue may go on from them."""
        prefix = prefill(self.vlm.model, self.vlm.family, inputs, prompts)
        return prefix.branch(rows, room) if self.shares_prompts else prefix.expand(rows), prefix

    def _generator(self, sampling: TokenSamplingConfig, seed: int) -> torch.Generator | None:
        return torch.Generator(self.vlm.device).manual_seed(seed) if sampling.temperature else None


@torch.inference_mode()  # 6 % faster than `no_grad`; only numbers leave it, no tensors
def _generate(
    vlm: VLM, prefix: GrowingRows, sampling: TokenSamplingConfig, generator: torch.Generator | None
) -> GeneratedTokens:
    rows = len(prefix.logits)
    tokens = torch.full((rows, sampling.max_new_tokens), vlm.padding, device=vlm.device)
    log_probs = torch.zeros(rows, sampling.max_new_tokens, device=vlm.device)
    lengths = torch.full((rows,), sampling.max_new_tokens, device=vlm.device)
    writing = torch.arange(rows, device=vlm.device)  # the answer of each row of the batch
    ended = torch.zeros(rows, dtype=torch.bool, device=vlm.device)
    for place in range(sampling.max_new_tokens):
        logits = scored_logits(prefix.logits, sampling.temperature, vlm.suppressed)
        sampled = sample_tokens(logits, generator, sampling.top_p, sampling.top_k)
        tokens[writing, place] = sampled
        log_probs[writing, place] = logits.gather(-1, sampled[:, None])[:, 0] - logits.logsumexp(-1)
        newly = torch.isin(sampled, vlm.ends) & ~ended
        lengths[writing] = torch.where(newly, place + 1, lengths[writing])  # indexing by a mask would wait for the GPU
        ended |= newly
        unfinished = int((~ended).sum())
        if not unfinished or place + 1 == sampling.max_new_tokens:
            break
        if unfinished <= COMPACT_BELOW * len(writing):
            keep = (~ended).nonzero()[:, 0]
            prefix, sampled, writing, ended = prefix.expand(keep), sampled[keep], writing[keep], ended[keep]
        prefix = prefix.extend(sampled[:, None])[1]
    return GeneratedTokens(*_truncate(tokens, log_probs, lengths))


def _truncate(tokens: Tensor, log_probs: Tensor, lengths: Tensor) -> tuple[list[list[int]], list[list[float]]]:
    ends = lengths.tolist()
    return (
        [row[:end] for row, end in zip(tokens.tolist(), ends, strict=True)],
        [row[:end] for row, end in zip(log_probs.tolist(), ends, strict=True)],
    )
