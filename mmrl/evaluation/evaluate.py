"""Scoring a policy on fixed samples with fixed noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mmrl.data import Sample
from mmrl.evaluation.diversity import pairwise_distance
from mmrl.evaluation.errors import EvaluationError
from mmrl.evaluation.grid import still
from mmrl.evaluation.results import Evaluation
from mmrl.rewards import RewardContext, RewardSuite, reward_input

if TYPE_CHECKING:
    from mmrl.policy import Policy


def evaluate(
    policy: Policy,
    samples: Sequence[Sample],
    suite: RewardSuite,
    *,
    draws: int,
    batch: int,
    seed: int,
    sampling: Any = None,
    step: int = 0,
) -> Evaluation:
    """`draws` rows of each sample, drawn `batch` rows at a time and scored by every reward of the suite.

    Chunk k is drawn with seed + k, whatever the policy's parameters: two evaluations with the same arguments share
    their noise row by row, and their difference is a paired one. Rewards that change as training goes on are those of
    its end. `step` only labels the result.
    """
    import torch  # here, so that reading results does not load it

    from mmrl.policy import plan_calls

    if not samples or draws < 1 or batch < 1:
        raise EvaluationError(f"cannot evaluate {len(samples)} samples with {draws} draws, {batch} rows a call")
    media: list[Any] = []
    with torch.no_grad():
        for number, requests in enumerate(plan_calls(samples, draws, batch, sampling=sampling)):
            rollout = policy.rollout(requests, seed=seed + number)
            due = [request.sample.id for request in requests for _ in range(request.n)]
            if (came := [sample.id for sample in rollout.samples]) != due or len(rollout.media) != len(due):
                raise EvaluationError(f"the policy was asked for the samples {due} and drew {came}")
            media += rollout.media
    output = suite.score(
        [
            reward_input(
                samples[row // draws], made, group=row // draws, id=f"{samples[row // draws].id}/{row % draws}"
            )
            for row, made in enumerate(media)
        ],
        RewardContext(progress=1.0),
    )
    images = [still(made) for made in media]
    return Evaluation(
        step=step,
        draws=draws,
        ids=tuple(sample.id for sample in samples),
        prompts=tuple(sample.prompt for sample in samples),
        sources=tuple(sample.source for sample in samples),
        values=output.values,
        status={name: [status.value for status in column] for name, column in output.status.items()},
        images=images,
        diversity_by_sample=_diversity(images, draws),
    )


def _diversity(images: list[Any], draws: int) -> list[float] | None:
    if draws == 1 or any(image is None for image in images):
        return None
    return [pairwise_distance(images[start : start + draws]) for start in range(0, len(images), draws)]
