"""Training of heads on features: from pairs, from scores, and from pairs of raters that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mmrl.checks import check_shapes
from mmrl.config.reward_model import LabelConfig, RaterConfig, RewardTrainingConfig
from mmrl.rewards.learned.preference_losses import (
    JudgedLabels,
    judge_labels,
    latent_divergence,
    preference_logits,
    preference_loss,
    score_loss,
)
from mmrl.rewards.learned.score_head import HeadShape, RaterEncoder, ScoreHead
from mmrl.seeds import fold_in

VOTE_STREAM = 7
"""The number of the random stream of models that vote on labels."""


@dataclass(frozen=True)
class JudgedPairs:
    """P pairs of answers as features."""

    chosen: Tensor
    """[P, F]"""
    rejected: Tensor
    """[P, F]"""
    sides: Tensor
    """[P, A]: 1 where the chosen answer is better on an axis, -1 where the rejected one is, 0 where neither is."""
    raters: Tensor | None = None
    """[P] int64, the number of the rater; None: raters are not decided apart."""

    def __post_init__(self) -> None:
        sizes = check_shapes("P F", check_shapes("P F", chosen=self.chosen), rejected=self.rejected)
        check_shapes("P A", {"P": sizes["P"]}, sides=self.sides)

    def __len__(self) -> int:
        return len(self.chosen)

    def select(self, rows: Tensor) -> JudgedPairs:
        """Return these pairs, in this order."""
        raters = None if self.raters is None else self.raters[rows]
        return replace(
            self, chosen=self.chosen[rows], rejected=self.rejected[rows], sides=self.sides[rows], raters=raters
        )


@dataclass(frozen=True)
class RatedAnswers:
    """N answers as features, with their scores."""

    features: Tensor
    """[N, F]"""
    scores: Tensor
    """[N, A]; NaN = not rated on this axis."""

    def __len__(self) -> int:
        return len(self.features)


def axis_logits(head: ScoreHead, pairs: JudgedPairs, latent: Tensor | None = None) -> Tensor:  # [P, A]
    """Return the log-odds that the chosen answer is better, on each axis; `latent` is [P, L]."""
    better, better_variance = head(pairs.chosen, latent)
    worse, worse_variance = head(pairs.rejected, latent)
    gaps: Tensor = better - worse
    if better_variance is None or worse_variance is None:
        return gaps
    variance = better_variance + worse_variance
    logits: Tensor = preference_logits(gaps.flatten(), variance.flatten()).view_as(gaps)
    return logits


def pair_loss(logits: Tensor, sides: Tensor, labels: JudgedLabels | None, smoothing: float) -> Tensor:
    """Return the mean loss over the axes [P, A] on which one answer is better, and over the pairs that are kept."""
    decided = sides != 0
    if labels is not None:
        decided = decided & labels.kept[:, None]
        smooth, margin = labels.smoothing[:, None].expand_as(sides), labels.margin[:, None].expand_as(sides)
    else:
        smooth, margin = torch.full_like(sides, smoothing), torch.zeros_like(sides)
    losses = preference_loss((logits * sides)[decided], smooth[decided].clamp(min=smoothing), margin[decided])
    return losses.mean() if len(losses) else logits.sum() * 0.0


def train_pair_head(
    pairs: JudgedPairs,
    shape: HeadShape,
    settings: RewardTrainingConfig,
    seed: int,
    labels: JudgedLabels | None = None,
    smoothing: float = 0.0,
) -> ScoreHead:
    """Return a head that was trained on pairs; equal seeds give equal heads."""
    head = new_head(shape, seed)

    def loss(rows: Tensor) -> Tensor:
        some = pairs.select(rows)
        of_rows = None
        if labels is not None:
            of_rows = JudgedLabels(labels.smoothing[rows], labels.margin[rows], labels.kept[rows])
        return pair_loss(axis_logits(head, some), some.sides, of_rows, smoothing)

    optimise(head, loss, batches(len(pairs), settings, seed), settings)
    return head


def train_score_head(answers: RatedAnswers, shape: HeadShape, settings: RewardTrainingConfig, seed: int) -> ScoreHead:
    """Return a head that was trained on scores, which it gives in units of their deviation from their mean."""
    head = new_head(shape, seed)
    rated = answers.scores.isfinite()
    count = rated.sum(0).clamp(min=1)
    mean = answers.scores.nansum(0) / count
    deviation = ((answers.scores - mean).square().nansum(0) / count).sqrt().clamp(min=1e-6)
    targets = (answers.scores - mean) / deviation

    def loss(rows: Tensor) -> Tensor:
        found, variance = head(answers.features[rows])
        return score_loss(found, targets[rows], variance).mean()

    optimise(head, loss, batches(len(answers), settings, seed), settings)
    return head


def vote_on_labels(pairs: JudgedPairs, shape: HeadShape, settings: RewardTrainingConfig, config: LabelConfig, seed: int
) -> tuple[JudgedLabels, Tensor]:  # fmt: skip
    """Return the labels after a vote on the first axis, and the strength of each pair, [P]."""
    if config.vote is None:
        raise ValueError("labels.vote is not set")
    short = settings.model_copy(update={"steps": config.vote.steps})
    heads = [
        train_pair_head(pairs, shape, short, fold_in(seed, VOTE_STREAM, member), smoothing=config.smoothing)
        for member in range(config.vote.members)
    ]
    with torch.no_grad():
        strength = torch.stack([(axis_logits(head, pairs) * pairs.sides)[:, 0] for head in heads]).mean(0)
    vote = config.vote
    return judge_labels(strength, vote.flip, vote.soften, vote.drop, vote.margin), strength


def train_rater_head(
    pairs: JudgedPairs, shape: HeadShape, settings: RewardTrainingConfig, raters: RaterConfig, seed: int
) -> tuple[ScoreHead, RaterEncoder]:
    """Return a head on features and a latent vector, and the encoder that infers the vector of a rater (VPL)."""
    if pairs.raters is None:
        raise ValueError("the pairs name no raters")
    head = new_head(shape, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(fold_in(seed, 1) % 2**32)
        encoder = RaterEncoder(shape)
    rows_of = rows_of_raters(pairs.raters)
    chance = torch.Generator().manual_seed(fold_in(seed, 2))
    judged = min(raters.context, min(len(rows) for rows in rows_of) - raters.context)
    if judged < 1:
        raise ValueError(f"each rater needs more than {raters.context} pairs (raters.context)")

    def loss(numbers: Tensor) -> Tensor:
        drawn = []
        for number in numbers.tolist():
            order = torch.randperm(len(rows_of[number]), generator=chance)
            drawn.append(rows_of[number][order[: raters.context + judged]])
        places = torch.stack(drawn)  # [R, C + J]
        mean, log_variance = encoder(*context_of(pairs, places[:, : raters.context]))
        noise = torch.randn(mean.shape, generator=chance)
        latent = mean + (log_variance / 2).exp() * noise
        some = pairs.select(places[:, raters.context :].flatten())
        logits = axis_logits(head, some, latent.repeat_interleave(judged, 0))
        divergence = latent_divergence(mean, log_variance).mean()
        return pair_loss(logits, some.sides, None, 0.0) + raters.divergence * divergence

    of_raters = settings.model_copy(update={"batch": max(1, settings.batch // judged)})
    optimise(nn.ModuleList([head, encoder]), loss, batches(len(rows_of), of_raters, seed), settings)
    head.eval()
    return head, encoder.eval()


def rows_of_raters(raters: Tensor) -> list[Tensor]:
    """Return the rows of each rater, in the order of their numbers, from [P] int64."""
    return [(raters == each).nonzero()[:, 0] for each in sorted(set(raters.tolist()))]


def context_of(pairs: JudgedPairs, places: Tensor) -> tuple[Tensor, Tensor]:  # [R, C, F] each
    """Return the features of the better and the worse answer of pairs [R, C], by their first axis."""
    swapped = (pairs.sides[places][..., :1] < 0).expand(-1, -1, pairs.chosen.shape[1])
    chosen, rejected = pairs.chosen[places], pairs.rejected[places]
    return rejected.where(swapped, chosen), chosen.where(swapped, rejected)


def new_head(shape: HeadShape, seed: int) -> ScoreHead:
    """Return a head with parameters that follow from the seed; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(fold_in(seed, 0) % 2**32)
        return ScoreHead(shape)


def batches(count: int, settings: RewardTrainingConfig, seed: int) -> Iterator[Tensor]:
    """Yield the rows of each step: epochs in random order, of which the last batch may be smaller."""
    chance = torch.Generator().manual_seed(fold_in(seed, 3))
    left: Sequence[Tensor] = ()
    for _ in range(settings.steps):
        if not left:
            left = torch.split(torch.randperm(count, generator=chance), settings.batch)
        yield left[0]
        left = left[1:]


def optimise(
    module: nn.Module, loss: Callable[[Tensor], Tensor], rows: Iterator[Tensor], settings: RewardTrainingConfig
) -> None:
    """Minimise a loss of rows; the module is in evaluation mode afterwards."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    module.train()
    with torch.random.fork_rng(devices=[]):
        for step, batch in enumerate(rows):
            torch.manual_seed(step)  # of dropout
            optimizer.zero_grad()
            torch.autograd.backward(loss(batch))
            optimizer.step()
            schedule.step()
    module.eval()
