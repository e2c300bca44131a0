"""Evaluation of a policy: rollouts of fixed samples with fixed noise, scored by rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmrl.data import Sample
from mmrl.errors import EvaluationError
from mmrl.evaluation.episodes.episode_view import EpisodeView, episode_view, kept_rows
from mmrl.evaluation.image_grid import first_of_each_source, prompt_image, still
from mmrl.evaluation.report.page import as_text
from mmrl.evaluation.results import Evaluation
from mmrl.rewards import RewardContext, RewardOutput, Status, reward_input
from mmrl.rewards.core.reward_io import TOTAL, without_void_rows
from mmrl.rewards.core.suite import Scorer
from mmrl.statistics.distances import answer_diversity

if TYPE_CHECKING:
    from mmrl.data.media.reader import MediaReader
    from mmrl.policy import Policy
    from mmrl.rollout import EpisodeRecord

EXPECTED = 300  # characters of a right answer to keep
EPISODES = 6  # to keep of an evaluation


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
    models: Mapping[str, Any] | None = None,  # of the run, for rewards that ask them
) -> Evaluation:
    """Generate `draws` rows of each sample, `batch` rows at a time, and score them by the rewards of each sample.

    Chunk k is generated with seed + k, independent of the policy's parameters: two evaluations with the same arguments
    share their noise row by row, and their difference is a paired one. Rewards that change during training are those of
    its end. `step` only labels the result. For answers in text, the pictures in the prompts of about `pictures`
    samples, the first of each source, are kept, as `reader` reads them (unset: within the default budget). Of
    policies that play in an environment, up to `EPISODES` of the first episodes are kept.

    Where a policy gathers its parameters in each call, processes with fewer calls than others repeat the first one.

    Raises:
        EvaluationError: there is nothing to evaluate, or the policy answered other samples than requested.
        DataError: a picture in a prompt cannot be read.
    """
    import torch  # here, so that reading results does not load it

    from mmrl.distributed import processes
    from mmrl.distributed.layout import layout_of
    from mmrl.rollout_request import batch_requests
    from mmrl.training.rollouts.exchange import deal, own_rows, shared_rows, shared_scores

    if not samples or draws < 1 or batch < 1:
        raise EvaluationError(f"cannot evaluate {len(samples)} samples with {draws} draws, {batch} rows a call")
    calls = batch_requests(samples, draws, batch, sampling=sampling)
    ranks = deal([{each.group for each in requests} for requests in calls], scorer.needs_full_groups)
    mine = [rank == processes.rank() for rank in ranks]
    media: list[Any] = []
    token_ids: list[Sequence[int] | None] = []
    episodes: list[EpisodeRecord | None] = []
    with torch.no_grad():
        for number, requests in enumerate(calls):
            if not mine[number]:
                continue
            rollout = policy.rollout(requests, seed=seed + number)
            expected = [request.sample.id for request in requests for _ in range(request.n)]
            if (came := [sample.id for sample in rollout.samples]) != expected or len(rollout.media) != len(expected):
                raise EvaluationError(f"expected rollouts of the samples {expected}, got {came}")
            media += rollout.media
            token_ids += rollout.token_ids or [None] * len(expected)
            episodes += rollout.episodes or [None] * len(expected)
        if layout_of(policy).gathers_in_calls:
            for _ in range(max(map(ranks.count, ranks)) - sum(mine)):
                policy.rollout(calls[0], seed=seed)
    rows = own_rows([(sum(each.n for each in call), own) for call, own in zip(calls, mine, strict=True)])
    inputs = [
        reward_input(
            samples[row // draws],
            generated,
            row // draws,
            f"{samples[row // draws].id}/{row % draws}",
            tokens,
            None if episode is None else episode.outcome,
            () if episode is None else episode.texts,
        )
        for row, generated, tokens, episode in zip(rows, media, token_ids, episodes, strict=True)
    ]
    scores = scorer.join([scorer.submit(inputs, RewardContext(1.0, models or {}))] if inputs else [])
    output = shared_scores(scores, rows, len(samples) * draws)
    voids = shared_rows([None if episode is None else episode.void for episode in episodes], rows)
    output = without_void_rows(output, voids)
    own = {*scorer.counts(output), TOTAL}
    prompts = shared_rows([item.prompt for item in inputs], rows)
    answers = shared_rows([generated if isinstance(generated, str) else None for generated in media], rows)
    images = shared_rows([still(generated) for generated in media], rows)
    lengths = shared_rows([None if ids is None else len(ids) for ids in token_ids], rows)
    has_texts = any(answer is not None for answer in answers)
    chosen = kept_rows([sample.source for sample in samples], draws, min(pictures, EPISODES))
    views = shared_rows(_viewed(samples, episodes, rows, draws, chosen, reader), rows)
    return Evaluation(
        step=step,
        draws=draws,
        ids=tuple(sample.id for sample in samples),
        prompts=tuple(prompts[::draws]),
        sources=tuple(sample.source for sample in samples),
        values=output.values,
        status={name: [status.value for status in column] for name, column in output.status.items()},
        images=images,
        diversity_by_sample=_diversity(images, answers, draws),
        answers=answers if has_texts else (),
        tokens=lengths if has_texts else (),
        expected=[as_text(sample.answer, EXPECTED) for sample in samples] if has_texts else (),
        prompt_images=_prompt_images(samples, pictures, reader) if has_texts else (),
        further=tuple(name for name in output.values if name not in own),
        failure_reasons=[_failure_reasons(output, row) for row in range(len(prompts))],
        episodes={row: each for row, each in enumerate(views) if each is not None},
    )


def _failure_reasons(output: RewardOutput, row: int) -> dict[str, str]:
    """Return the reason of each reward that could not score the answer, or could not read it."""
    failed = (Status.ERROR, Status.TIMEOUT, Status.INVALID)
    return {
        name: str(reason)
        for name, reason in output.detail[row].items()
        if reason and name in output.status and output.status[name][row] in failed
    }


def _viewed(
    samples: Sequence[Sample],
    episodes: Sequence[EpisodeRecord | None],
    rows: Sequence[int],
    draws: int,
    chosen: Sequence[int],
    reader: MediaReader | None,
) -> list[EpisodeView | None]:
    """Return the chosen ones of a process's episodes, for people to look at; None for the others."""
    if not any(episode is not None for episode in episodes):
        return [None] * len(rows)
    reader = reader or _default_reader()
    return [
        episode_view(samples[row // draws], episode, reader) if row in chosen and episode is not None else None
        for row, episode in zip(rows, episodes, strict=True)
    ]


def _default_reader() -> MediaReader:
    from mmrl.data.media.budget import MediaBudget
    from mmrl.data.media.reader import MediaReader as Reader  # here: it needs a video library

    return Reader(MediaBudget())


def _prompt_images(samples: Sequence[Sample], count: int, reader: MediaReader | None) -> list[Any]:
    reader = reader or _default_reader()
    kept = set(first_of_each_source([sample.source for sample in samples], count))
    return [prompt_image(sample, reader) if number in kept else None for number, sample in enumerate(samples)]


def _diversity(images: list[Any], answers: list[str | None], draws: int) -> list[float] | None:
    """Return [N]: the diversity of the draws of each sample; None with one draw, or mixed media."""
    column = next((each for each in (images, answers) if all(one is not None for one in each)), None)
    if draws == 1 or column is None:
        return None
    return [answer_diversity(column[start : start + draws]) for start in range(0, len(column), draws)]
