"""An experiment for studies of likelihood rewards: do they tell a true reasoning from one of another prompt?

The reasoning is the beginning of a calculation's right chain, two steps, or the beginning of a chain that the model
wrote for another prompt with as many operands. The reference is the rest of the right chain with the answer: some forty
tokens, of which the reasoning decides one or two. Nothing is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mmrl.build.policies import build_policy
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.rules.reference_likelihood import ReasoningReflection
from mmrl.rollout_request import RolloutRequest
from mmrl.training.run_models import NamedModels
from mmrl_shapeworld.reasoning.calculation_splits import samples

STEPS = 2
"""Steps of the chain that are the reasoning."""
EACH = 4
"""Answers of a group with the true reasoning, and as many with others'."""
MARKER = ";"
"""The end of a reasoning: that of its last step."""


def reference_auc(
    seed: int,
    weights: Literal["spread", "uniform"],
    on: str = "sums-longer",
    model: str = "shapeworld:sums",
    first: int = 64,
    prompts: int = 96,
) -> dict[str, Sequence[float]]:
    """Score groups of four true and four foreign reasonings, and compare the scores over all prompts.

    Args:
        seed: of the prompts that are chosen, and of the chains that the model writes.
        weights: those of `reasoning_reflection`.
        on: the split of calculations.
        model: the model that writes chains and scores references.
        first: prompts of the split that are left out at its beginning: settings were chosen on them.
        prompts: prompts that are scored.

    Returns:
        `auc`, for each prompt the probability that its true reasonings score above the foreign ones of any prompt, and
        `auc_within`, above those of the same prompt.

    Raises:
        ValueError: no other prompt with as many operands has a chain of the model.
    """
    items = _answers(seed, on, model, first, prompts)
    reward = ReasoningReflection(weights=weights, marker=MARKER)
    context = RewardContext(models=_models(model).scorers)
    values = reward.score(items, context).values[reward.name].reshape(prompts, 2 * EACH)
    right, foreign = values[:, :EACH], values[:, EACH:]
    return {
        "auc": [_auc(each, foreign.ravel()) for each in right],
        "auc_within": [_auc(each, other) for each, other in zip(right, foreign, strict=True)],
    }


def _auc(above: NDArray[np.float32], below: NDArray[np.float32]) -> float:
    """Return the probability that one of `above` is larger than one of `below`; equal ones count half."""
    one, other = above[:, None], below[None]
    return float(np.mean((one > other) + 0.5 * (one == other)))


@cache
def _models(model: str) -> NamedModels:
    config, sampling = VLMConfig(model=model, train="lora", device="cpu"), TokenSamplingConfig(max_new_tokens=128)
    return NamedModels(build_policy(config, sampling), {}, {})  # type: ignore[arg-type]


@cache
def _answers(seed: int, on: str, model: str, first: int, prompts: int) -> list[RewardInput]:
    """Return groups of answers: true reasonings, then foreign ones of calculations with as many operands."""
    rng = np.random.default_rng((seed, prompts))
    chosen = [samples(on)[first:][place] for place in rng.permutation(len(samples(on)) - first)[:prompts]]
    policy = _models(model)["policy"].policy
    rollout = policy.rollout([RolloutRequest(sample, EACH, group) for group, sample in enumerate(chosen)], seed)
    written: dict[int, list[tuple[str, str]]] = {}
    for sample, text in zip(rollout.samples, rollout.media, strict=True):
        if (beginning := _beginning(text)) is not None:
            written.setdefault(sample.metadata["operands"], []).append((sample.id, beginning))
    items: list[RewardInput] = []
    for group, sample in enumerate(chosen):
        steps = sample.metadata["points"]
        others = [each for author, each in written.get(sample.metadata["operands"], ()) if author != sample.id]
        if not others:
            raise ValueError(f"prompts: none of {prompts} has a foreign chain for {sample.id}: take more")
        foreign = [others[place] for place in rng.integers(0, len(others), EACH)]
        reference = "".join(steps[STEPS:]) + f"</think>{sample.answer}"
        reasonings = ["<think>" + "".join(steps[:STEPS])] * EACH + foreign
        items += [_item(sample, group, row, each, reference) for row, each in enumerate(reasonings)]
    return items


def _beginning(text: str) -> str | None:
    """Return the first steps of a verbose chain; None if it is shorter, or of another style."""
    thoughts = text.partition("</think>")[0].split(";")
    return ";".join(thoughts[:STEPS]) + ";" if len(thoughts) > STEPS else None


def _item(sample: Sample, group: int, row: int, reasoning: str, reference: str) -> RewardInput:
    return RewardInput(
        id=f"{sample.id}/{row}",
        group=group,
        prompt=sample.prompt,
        text=reasoning,
        references={"answer": reference},
        sample=sample,
    )
