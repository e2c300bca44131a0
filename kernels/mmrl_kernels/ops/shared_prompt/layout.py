"""The positions of prompts and their completions in a pack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from mmrl_kernels.registry import KernelError


@dataclass(frozen=True)
class Span:
    """A run of tokens: `start` inclusive, `end` exclusive."""

    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Group:
    """A prompt and what was written after it, one completion behind the other."""

    prompt: Span
    completions: tuple[Span, ...]

    @property
    def answers(self) -> Span:
        """All completions together."""
        end = self.completions[-1].end if self.completions else self.prompt.end
        return Span(self.prompt.end, end)


@dataclass(frozen=True)
class SharedPromptLayout:
    """Lengths of a pack's groups, in order: each prompt is followed by its own completions.

    >>> layout = SharedPromptLayout(prompts=(3, 2), completions=((1, 2), (4,)))
    >>> layout.tokens, layout.groups[1].prompt, layout.groups[0].answers
    (12, Span(start=6, end=8), Span(start=3, end=6))
    """

    prompts: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.prompts) != len(self.completions):
            raise KernelError(f"{len(self.prompts)} prompts and completions of {len(self.completions)} prompts")
        if min(self.prompts, default=0) < 1 or any(length < 1 for each in self.completions for length in each):
            raise KernelError("a pack needs at least one prompt, and every prompt and completion at least one token")

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The position of each group."""
        found, at = [], 0
        for prompt, completions in zip(self.prompts, self.completions, strict=True):
            bounds = list(accumulate(completions, initial=at + prompt))
            spans = tuple(Span(a, b) for a, b in pairwise(bounds))
            found.append(Group(Span(at, at + prompt), spans))
            at = bounds[-1]
        return tuple(found)

    @property
    def tokens(self) -> int:
        """N, of the whole pack."""
        return sum(self.prompts) + sum(sum(each) for each in self.completions)

    @property
    def plain_tokens(self) -> int:
        """The number of tokens if each completion repeated its prompt; a prompt without completions counts once."""
        return sum(
            max(1, len(completions)) * prompt + sum(completions)
            for prompt, completions in zip(self.prompts, self.completions, strict=True)
        )

    @cached_property
    def segments(self) -> tuple[Span, ...]:
        """All prompts and completions, in order."""
        return tuple(span for group in self.groups for span in (group.prompt, *group.completions))

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """The segment that each segment continues; -1 for a prompt."""
        found: list[int] = []
        for group in self.groups:
            prompt = len(found)
            found += [-1, *[prompt] * len(group.completions)]
        return tuple(found)

    def positions(
        self,
        prompts: Sequence[Tensor],  # one a prompt: [P] or [axes, P] int64
        following: Sequence[int],  # the position of the first token after each prompt
    ) -> Tensor:  # [N] or [axes, N] int64
        """Rotary positions: every completion counts on from its own prompt, on all axes alike.

        Raises:
            KernelError: they are not those of this layout's prompts.
        """
        if [each.shape[-1] for each in prompts] != list(self.prompts) or len(following) != len(self.prompts):
            came = [each.shape[-1] for each in prompts]
            raise KernelError(f"positions of prompts of {came} tokens, for prompts of {list(self.prompts)}")
        parts = []
        for own, first, lengths in zip(prompts, following, self.completions, strict=True):
            parts.append(own)
            for length in lengths:
                onwards = torch.arange(first, first + length, device=own.device, dtype=own.dtype)
                parts.append(onwards.expand(*own.shape[:-1], length))
        return torch.cat(parts, dim=-1)

    @cached_property
    def predicting(self) -> tuple[int, ...]:
        """The pack index of the token that predicts each completion token, in order.

        The first of a completion is predicted by the last of its prompt, each other one by the one before.
        """
        return tuple(
            before
            for group in self.groups
            for span in group.completions
            for before in (group.prompt.end - 1, *range(span.start, span.end - 1))
        )
