"""Speculative decoding: a drafter guesses the next tokens of each answer, and one pass of the policy checks them all.

Each token of an answer is argmax of p / E, where p is what the policy says after the tokens before it, and E
exponential noise that the row and the place of the token decide. A guess is accepted if it is the token that is drawn;
the first that is not is replaced by it. So an answer is the one that would be written without guesses, token by token,
with any drafter. The drafter draws with the same noise, which makes equal tokens likely where its distribution is the
policy's (Daliri, Musco and Suresh, arXiv:2408.07978). The rule of Leviathan et al. (arXiv:2211.17192) accepts somewhat
more, and keeps the distribution of answers, but not the answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from mmrl.config.sampling import DraftConfig, TokenSamplingConfig
from mmrl.distributed import processes
from mmrl.errors import ConfigError
from mmrl.seeds import row_generators
from mmrl.tokens import scored_logits
from mmrl.tokens.ngram_drafter import NGramDrafter
from mmrl.tokens.sampling import sample_with_noise
from mmrl.tokens.token_model import Attention
from mmrl.understanding.encoded_prompt import EncodedPrompt, collate, stackable
from mmrl.understanding.rollout_engine import COMPACT_BELOW, GeneratedTokens, TransformersEngine
from mmrl.understanding.shared_prompt import Prefix, prefill
from mmrl.understanding.vlm import VLM


@dataclass
class DraftCounts:
    """The guesses since the last metrics, and how many were right."""

    drafted: int = 0
    accepted: int = 0
    passes: int = 0  # of rows through the policy
    tokens: int = 0  # that were written in them

    def metrics(self) -> dict[str, float]:
        """Return the share of accepted guesses and the tokens of a pass, over all processes, and begin anew."""
        of_all = processes.gather((self.drafted, self.accepted, self.passes, self.tokens))
        self.drafted = self.accepted = self.passes = self.tokens = 0
        drafted, accepted, passes, tokens = map(sum, zip(*of_all, strict=True))
        return {"drafts/accepted": accepted / max(1, drafted), "drafts/tokens_per_pass": tokens / max(1, passes)}


@dataclass
class _Row:
    """An answer that is being written."""

    context: list[int]  # the prompt's last tokens
    generator: torch.Generator | None
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    noise: list[Tensor] = field(default_factory=list)  # [V] of the next tokens
    ended: bool = False

    def next_noise(self, count: int, width: int, device: torch.device) -> list[Tensor]:
        """Return the noise [V] of the next `count` tokens, which does not depend on `count`."""
        while len(self.noise) < count and self.generator is not None:
            self.noise.append(torch.empty(width, device=device).exponential_(generator=self.generator))
        return self.noise[:count]


@dataclass(frozen=True)
class SpeculativeEngine(TransformersEngine):
    """The policy's own model, with a drafter that learns from what it writes."""

    settings: DraftConfig
    drafter: NGramDrafter
    counts: DraftCounts = field(default_factory=DraftCounts)

    @classmethod
    def begin(cls, vlm: VLM, settings: DraftConfig) -> SpeculativeEngine:
        """Return an engine whose drafter has seen nothing yet, and guesses nothing."""
        drafter = NGramDrafter(settings.order, settings.answers, settings.relearn)
        return cls(vlm, shares_prompts=True, settings=settings, drafter=drafter)

    def generate(
        self, prompts: Sequence[EncodedPrompt], counts: Sequence[int], sampling: TokenSamplingConfig, seed: int
    ) -> GeneratedTokens:
        """Generate `counts[p]` answers to prompt p, which do not depend on the drafter, and let it learn them."""
        vlm = self.vlm
        bounds = list(pairwise(accumulate(counts, initial=0)))
        generators: Sequence[torch.Generator | None] = [None] * sum(counts)
        if sampling.temperature:
            generators = row_generators(seed, range(sum(counts)), vlm.device)
        rows: list[_Row] = []
        for prompt, (start, end) in zip(prompts, bounds, strict=True):
            context = prompt.inputs["input_ids"][0].tolist()[-self.settings.order :]
            rows += [_Row(context, generators[number]) for number in range(start, end)]
        for numbers in stackable(prompts):
            some = [prompts[number] for number in numbers]
            repeats = torch.tensor([counts[number] for number in numbers], device=vlm.device)
            index = torch.arange(len(numbers), device=vlm.device).repeat_interleave(repeats)
            with torch.inference_mode():
                prefix = prefill(vlm.model, vlm.family, vlm.to_device(collate(some, vlm.padding)), some).expand(index)
                self._write(prefix, [row for number in numbers for row in rows[slice(*bounds[number])]], sampling)
        for row in rows:
            self.drafter.learn(row.context, row.tokens)
        return GeneratedTokens([row.tokens for row in rows], [row.log_probs for row in rows])

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the guesses since the last call."""
        return self.counts.metrics()

    def _write(self, prefix: Prefix, rows: list[_Row], sampling: TokenSamplingConfig) -> None:
        """Write the answers of rows to their ends."""
        self._accept(rows, prefix.logits[:, None], [[] for _ in rows], sampling)
        while any(not row.ended for row in rows):
            writing = [number for number, row in enumerate(rows) if not row.ended]
            if len(writing) <= COMPACT_BELOW * len(rows):
                prefix = prefix.expand(torch.tensor(writing, device=self.vlm.device))
                rows = [rows[number] for number in writing]
            width = prefix.logits.shape[-1]
            drafts = [[] if row.ended else self._draft(row, width, sampling) for row in rows]
            longest = max(map(len, drafts))
            fed = torch.tensor(
                [[row.tokens[-1], *own, *[self.vlm.padding] * (longest - len(own))] for row, own in
                 zip(rows, drafts, strict=True)],
                device=self.vlm.device,
            )  # fmt: skip
            before = prefix
            logits, prefix = prefix.extend(fed)
            accepted = self._accept(rows, logits, drafts, sampling)
            places = torch.arange(longest + 1, device=fed.device)
            kept = torch.tensor(accepted, device=fed.device)[:, None] >= places  # the last token, and right guesses
            prefix = replace(
                prefix,
                mask=torch.cat([before.mask, kept.to(before.mask.dtype)], dim=1),  # what was refused is not attended to
                next_position=before.next_position + kept.sum(1),
            )

    def _draft(self, row: _Row, width: int, sampling: TokenSamplingConfig) -> list[int]:
        """Return the guesses of a row's next tokens, of which one less fits than may be written."""
        most = min(self.settings.tokens, sampling.max_new_tokens - len(row.tokens) - 1)
        noise = row.next_noise(most, width, self.vlm.device)
        numbers = [each.cpu().numpy() for each in noise] if noise else None
        return self.drafter.draft([*row.context, *row.tokens], most, numbers)

    def _accept(
        self,
        rows: Sequence[_Row],
        logits: Tensor,  # [B, 1 + K, V]: before the first guess, and after each of them
        drafts: Sequence[Sequence[int]],  # [B] of up to K
        sampling: TokenSamplingConfig,
    ) -> list[int]:  # [B]; the guesses that were accepted
        """Draw the next token of each row, and those after guesses that are drawn too."""
        vlm = self.vlm
        scored = scored_logits(logits, sampling.temperature, vlm.suppressed)
        places = scored.shape[1]
        noise = None
        if sampling.temperature:
            ones = torch.ones_like(scored[0, 0])
            drawn = [row.next_noise(1 + len(own), scored.shape[-1], vlm.device) for row, own in
                     zip(rows, drafts, strict=True)]  # fmt: skip
            noise = torch.stack([torch.stack([*each[:places], *[ones] * (places - len(each))]) for each in drawn])
        tokens = sample_with_noise(
            scored.flatten(0, 1), None if noise is None else noise.flatten(0, 1), sampling.top_p, sampling.top_k
        ).view(len(rows), places)
        log_probs = (scored.gather(-1, tokens[..., None])[..., 0] - scored.logsumexp(-1)).tolist()
        ends, accepted = set(vlm.ends.tolist()), []
        for row, own, written, values in zip(rows, drafts, tokens.tolist(), log_probs, strict=True):
            if row.ended:
                accepted.append(0)
                continue
            equal = [guess == token for guess, token in zip(own, written, strict=False)]
            right = equal.index(False) if False in equal else len(equal)
            accepted.append(right)
            before = len(row.tokens)
            for token, value in zip(written[: right + 1], values[: right + 1], strict=True):
                row.tokens.append(token)
                row.log_probs.append(value)
                if token in ends or len(row.tokens) == sampling.max_new_tokens:
                    row.ended = True
                    break
            del row.noise[: right + 1]
            self.counts.drafted += len(own)
            self.counts.accepted += right
            self.counts.passes += 1
            self.counts.tokens += len(row.tokens) - before
        return accepted


def build_engine(vlm: VLM, attention: Attention, sampling: TokenSamplingConfig) -> TransformersEngine:
    """Return the engine that writes with a policy's own model.

    Raises:
        ConfigError: `sampling.drafts` is set, and the model cannot leave out tokens that it has read.
    """
    if sampling.drafts is None:
        return TransformersEngine(vlm, attention.shares_prompts)
    if not attention.shares_prompts:
        raise ConfigError(
            f"sampling.drafts: {type(vlm.model).__name__} computes with attention {attention}, and tokens that were "
            "refused are left out of that of mmrl alone: leave drafts out"
        )
    return SpeculativeEngine.begin(vlm, sampling.drafts)
