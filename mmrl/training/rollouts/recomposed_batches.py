"""Recomposed batches: short right and long wrong answers are learnt from at once, and the others later (RoRecomp).

A group's long right answers teach no brevity, and its short wrong ones teach length, so an iteration leaves both out
(the *priority batch* is the rest). They go to a buffer, from which *compensation batches* are drawn, since a policy
that never meets them comes to answer briefly at any price (arXiv:2509.25958).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mmrl.checks import check_shapes
from mmrl.errors import RunError
from mmrl.rollout import Rollout
from mmrl.training.rollouts.collect import CollectedRollouts, Origin, ScoredRollouts
from mmrl.training.rollouts.replay_buffer import AnswerBuffer, ReplayReader, read_again, transcripts_of


class RecomposedReplay(AnswerBuffer):
    """A buffer of the answers that priority batches leave out, each of which is learnt from at most once.

    `compensation` are the probabilities that an iteration has a compensation batch, at the start and at the end of
    training, and along half a cosine between them. Such a batch has at most as many answers as the iteration left out,
    so that an iteration never learns from more than it sampled. It takes its answers out of the buffer evenly at
    random, with the advantages of their original groups, before the answers of the iteration enter it; the oldest leave
    a full buffer.
    """

    def __init__(
        self, capacity: int, share: float, success: float, compensation: tuple[float, float], seed: int
    ) -> None:
        super().__init__(capacity, alpha=0.0, seed=seed)
        self.share, self.success, self.compensation = share, success, compensation

    def fill(
        self,
        collected: CollectedRollouts,
        advantages: Tensor,  # [R]
        read: ReplayReader,
        progress: float,  # the share of training that is over
    ) -> tuple[CollectedRollouts, list[tuple[Rollout, Tensor]], dict[str, float]]:
        """Return the rows of the priority batch, the rollouts of a compensation batch with advantages [B], and metrics.

        Metrics: `replay/priority` (rows), `replay/left_out` (rows), `replay/rows` of compensation, `replay/kept`, and
        `replay/age` in updates.

        Raises:
            RunError: the answers have no tokens.
        """
        scored = collected.scored
        own = collected.trained & scored.is_from(Origin.POLICY) & scored.total.isfinite()
        first = priority_rows(scored.total, answer_lengths(scored), scored.group_index, own, self.share, self.success)
        left_out = own & ~first
        answers = self.take(int(left_out.sum())) if self._compensates(progress) else []
        past, metrics = read_again(answers, scored, read)
        self.keep(transcripts_of(scored, left_out.nonzero()[:, 0].tolist(), advantages))
        metrics |= {"replay/priority": float(first.sum()), "replay/left_out": float(left_out.sum())}
        metrics["replay/kept"] = float(len(self))
        return replace(collected, trained=collected.trained & ~left_out), past, metrics

    def _compensates(self, progress: float) -> bool:
        begin, end = self.compensation
        probability = end + (begin - end) * (1 + math.cos(math.pi * progress)) / 2
        self._draws += 1
        return float(np.random.default_rng([self._seed, self._draws, 5]).random()) < probability


def answer_lengths(scored: ScoredRollouts) -> Tensor:  # [R] int64
    """Return the number of tokens of each answer.

    Raises:
        RunError: the answers have no tokens.
    """
    if any(rollout.token_ids is None for rollout in scored.rollouts):
        raise RunError("data.replay: recomposed compares the lengths of answers in tokens, and these have none")
    return torch.tensor([len(ids) for rollout in scored.rollouts for ids in rollout.token_ids or ()])


def priority_rows(
    total: Tensor,  # [R] float; NaN = could not be scored
    lengths: Tensor,  # [R] int64
    group_index: Tensor,  # [R] int64
    among: Tensor,  # [R] bool; the rows that are chosen from
    share: float,
    success: float,
) -> Tensor:  # [R] bool
    """Return a group's shortest right and longest wrong rows, `share` of each, rounded up; the first of equal ones.

    A row is right if its total is at least `success`.

    >>> total, lengths = torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([9, 4, 2, 7])
    >>> priority_rows(total, lengths, torch.zeros(4).long(), torch.ones(4).bool(), 0.5, 1.0).tolist()
    [False, True, False, True]
    """
    check_shapes("R", total=total, lengths=lengths, group_index=group_index, among=among)
    right, chosen = total >= success, torch.zeros_like(among)
    for group in group_index[among].unique().tolist():
        mine = among & (group_index == group)
        for rows, sign in ((mine & right, 1), (mine & ~right, -1)):
            ordered = _in_order(rows.nonzero()[:, 0], sign * lengths)
            chosen[ordered[: math.ceil(share * len(ordered))]] = True
    return chosen


def _in_order(rows: Tensor, keys: Tensor) -> Sequence[int]:
    order: list[int] = torch.argsort(keys[rows], stable=True).tolist()
    return [int(rows[place]) for place in order]
