"""`mmrl data angles`: the angle concentration of each prompt under a model, for `data.prompts: angle_concentration`.

It is how nearly the hidden states of a prompt's tokens point one way (GAIN-RL, arXiv:2506.02281).

The tokens of the question are those that differ from the same prompt with another question, since chat templates and
processors differ in what they write around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from mmrl.build.datasets import load_samples
from mmrl.build.policies import build_policy, prepare_samples
from mmrl.checks import check_shapes
from mmrl.config.train import TrainConfig
from mmrl.data.angle_prompts import ANGLE
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.rollout_request import RowStart
from mmrl.understanding.vlm_policy import VLMPolicy

OTHER_QUESTIONS = (".", "?")
"""Texts in the place of a question; the second serves where the first is the question."""


def with_angles(config: TrainConfig, update: Callable[[int, int], None] | None = None) -> list[Sample]:
    """Return the samples of `data.path` with `metadata.angle`: cosines within the question plus those with its context.

    Args:
        config: with a policy of a vision-language model, whose weights before training are measured.
        update: called with the prompts done and all prompts.

    Raises:
        ConfigError: the policy reads no prompts as tokens.
        DataError: a sample cannot be read, or has no question.
    """
    if config.policy.kind != "vlm":
        raise ConfigError(f"policy.kind is {config.policy.kind}: angles are those of a vision-language model's tokens")
    loaded = load_samples(config.data.path, config.media)
    policy = cast(VLMPolicy, build_policy(config.policy, config.sampling, config.media, config.environment))
    prepared = prepare_samples(policy, config.policy, config.answers, config.sampling, loaded)
    found = []
    for number, (sample, read) in enumerate(zip(loaded, prepared, strict=True), start=1):
        within, between = prompt_angles(policy, read)
        found.append(replace(sample, metadata={**sample.metadata, ANGLE: round(within + between, 6)}))
        if update is not None:
            update(number, len(loaded))
    return found


def prompt_angles(policy: VLMPolicy, sample: Sample) -> tuple[float, float]:
    """Return the angle concentration within the question of a sample, and between it and the tokens before it.

    Raises:
        DataError: the prompt is the same with another question.
    """
    tokens = policy.prompt_tokens(sample)
    for text in OTHER_QUESTIONS:
        other = policy.prompt_tokens(sample, RowStart(prompt=text))
        if not torch.equal(tokens, other):
            question = question_tokens(tokens.tolist(), other.tolist())
            before = torch.arange(len(tokens)) < int(question.nonzero()[0])
            states = policy.prompt_states(sample).cpu()
            within, between = angle_concentration(states, question, before)
            return float(within), float(between)
    raise DataError(f"sample {sample.id!r}: its prompt does not depend on its text: give it a question")


def question_tokens(tokens: Sequence[int], other: Sequence[int]) -> Tensor:  # [L] bool
    """Return which tokens lie between the common beginning and the common end of a prompt and another one.

    If the other one is part of the prompt, at least one token is marked.

    >>> question_tokens([1, 5, 6, 2], [1, 7, 2]).tolist()
    [False, True, True, False]
    """
    shorter = min(len(tokens), len(other))
    first = next((at for at in range(shorter) if tokens[at] != other[at]), shorter)
    most = shorter - first
    last = next((at for at in range(most) if tokens[-1 - at] != other[-1 - at]), most)
    marks = torch.zeros(len(tokens), dtype=torch.bool)
    first = min(first, len(tokens) - 1)
    marks[first : max(first + 1, len(tokens) - last)] = True
    return marks


def angle_concentration(
    states: Tensor,  # [L, D] float, of the tokens of one prompt, the last of the model's hidden states
    question: Tensor,  # [L] bool; the tokens of the question itself
    context: Tensor,  # [L] bool; those before it, such as a system prompt or a picture
) -> tuple[Tensor, Tensor]:  # [], [] float64 in [-1, 1]
    """Return the mean cosine between tokens of the question, and between those and the tokens of its context.

    The first, within the segment, is over pairs of different tokens, so that it does not depend on the number of tokens
    by their cosine of 1 with themselves; it is 1 for one token. The second, between the segments, is 0 without context.

    Raises:
        ShapeError: shapes do not fit.
        ValueError: the question has no tokens.
    """
    check_shapes("L D", states=states)
    check_shapes("L", {"L": states.shape[0]}, question=question, context=context)
    own, other = int(question.sum()), int(context.sum())
    if not own:
        raise ValueError("the question has no tokens, whose hidden states could be compared")
    directions = F.normalize(states.double(), dim=-1)
    resultant = directions[question].sum(dim=0)
    within = (resultant @ resultant - own) / (own * (own - 1)) if own > 1 else resultant.new_ones(())
    between = resultant @ directions[context].sum(dim=0) / (own * max(other, 1))
    return within.clamp(-1, 1), torch.clamp(between, -1, 1)
