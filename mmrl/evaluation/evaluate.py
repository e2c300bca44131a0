"""Scoring a policy on fixed samples with fixed noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mmrl.data import Sample
from mmrl.errors import EvaluationError
from mmrl.evaluation.image_grid import first_of_each_source, prompt_image, still
from mmrl.evaluation.report.page import as_text
from mmrl.evaluation.results import Evaluation
from mmrl.rewards import RewardContext, RewardInput, RewardOutput, Status, reward_input
from mmrl.rewards.core.reward_io import TOTAL
from mmrl.rewards.core.routing import Scorer
from mmrl.statistics.diversity import differing_pairs, pairwise_distance

if TYPE_CHECKING:
    from mmrl.data.media.reader import MediaReader
    from mmrl.policy import Policy

EXPECTED = 300  # characters of a right answer that are kept


def evaluate(
    policy: Policy,
    samples: Sequence[Sample],
    scorer: Scorer,
    *,
    draws: int,
    batch: int,
    seed: int,
    sampling: Any = None,
    step: int = 0,
    pictures: int = 16,
    reader: MediaReader | None = None,
) -> Evaluation:
    """`draws` rows of each sample, drawn `batch` rows at a time and scored by the rewards that it asks for.

    Chunk k is drawn with seed + k, whatever the policy's parameters: two evaluations with the same arguments share
    their noise row by row, and their difference is a paired one. Rewards that change as training goes on are those of
    its end. `step` only labels the result. Of answers in text, about `pictures` samples, the first of each source, keep
    what was shown with the prompt, as `reader` reads it (unset: within the default budget).

    Raises:
        EvaluationError: there is nothing to evaluate, or the policy answered other samples than it was asked.
        DataError: a picture that was shown cannot be read.
    """
    import torch  # here, so that reading results does not load it

    from mmrl.policy import batch_requests

    if not samples or draws < 1 or batch < 1:
        raise EvaluationError(f"cannot evaluate {len(samples)} samples with {draws} draws, {batch} rows a call")
    media: list[Any] = []
    token_ids: list[Sequence[int] | None] = []
    with torch.no_grad():
        for number, requests in enumerate(batch_requests(samples, draws, batch, sampling=sampling)):
            rollout = policy.rollout(requests, seed=seed + number)
            due = [request.sample.id for request in requests for _ in range(request.n)]
            if (came := [sample.id for sample in rollout.samples]) != due or len(rollout.media) != len(due):
                raise EvaluationError(f"the policy was asked for the samples {due} and drew {came}")
            media += rollout.media
            token_ids += rollout.token_ids or [None] * len(due)
    inputs = [
        _scored_as(samples[row // draws], made, row // draws, row % draws, tokens)
        for row, (made, tokens) in enumerate(zip(media, token_ids, strict=True))
    ]
    output = scorer.join([scorer.submit(inputs, RewardContext(progress=1.0))])
    own = {*scorer.counts(output), TOTAL}
    answers = [made if isinstance(made, str) else None for made in media]
    images = [still(made) for made in media]
    written = any(answer is not None for answer in answers)
    return Evaluation(
        step=step,
        draws=draws,
        ids=tuple(sample.id for sample in samples),
        prompts=tuple(item.prompt for item in inputs[::draws]),
        sources=tuple(sample.source for sample in samples),
        values=output.values,
        status={name: [status.value for status in column] for name, column in output.status.items()},
        images=images,
        diversity_by_sample=_diversity(images, answers, draws),
        answers=answers if written else (),
        tokens=[None if ids is None else len(ids) for ids in token_ids] if written else (),
        expected=[as_text(sample.answer, EXPECTED) for sample in samples] if written else (),
        shown=_shown(samples, pictures, reader) if written else (),
        further=tuple(name for name in output.values if name not in own),
        failure_reasons=[_failures(output, row) for row in range(len(inputs))],
    )


def _failures(output: RewardOutput, row: int) -> dict[str, str]:
    """What the rewards say of an answer that they could not score, or not read."""
    failed = (Status.ERROR, Status.TIMEOUT, Status.INVALID)
    told = output.detail[row].items()
    return {
        name: str(why) for name, why in told if why and name in output.status and output.status[name][row] in failed
    }


def _scored_as(sample: Sample, made: Any, group: int, draw: int, tokens: Sequence[int] | None) -> RewardInput:
    return reward_input(sample, made, group=group, id=f"{sample.id}/{draw}", tokens=tokens)


def _shown(samples: Sequence[Sample], pictures: int, reader: MediaReader | None) -> list[Any]:
    from mmrl.data.media.budget import MediaBudget
    from mmrl.data.media.reader import (
        MediaReader as Reader,
    )  # here: it reads videos, which pictures alone do not need

    reader = reader or Reader(MediaBudget())
    kept = set(first_of_each_source([sample.source for sample in samples], pictures))
    return [prompt_image(sample, reader) if number in kept else None for number, sample in enumerate(samples)]


def _diversity(images: list[Any], answers: list[str | None], draws: int) -> list[float] | None:
    groups = range(0, len(images), draws)
    if draws == 1:
        return None
    if all(image is not None for image in images):
        return [pairwise_distance(images[start : start + draws]) for start in groups]
    texts = [answer for answer in answers if answer is not None]
    return [differing_pairs(texts[start : start + draws]) for start in groups] if len(texts) == len(answers) else None
