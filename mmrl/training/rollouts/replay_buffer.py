"""Replay buffers: answers of earlier iterations that are trained on again, saved in checkpoints.

`SelectiveReplay` puts past answers in the place of groups without advantages (VL-Rethinker, arXiv:2504.08837), and
`RecomposedReplay` (a file beside) brings back those that a batch left out (RoRecomp, arXiv:2509.25958);
`SuccessReplay` puts a past success into a group that failed (ARPO, arXiv:2505.16282). Answers are kept as text, tokens
and log-probabilities and become rollouts again by `score_targets`: a policy's own recording is too large to keep. Those
of several turns are the answers of an episode, which the environment, the same for the same actions, answers again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmrl.checks import check_shapes
from mmrl.data.sample import Sample
from mmrl.distributed import processes
from mmrl.errors import RunError
from mmrl.policy import TeacherForcingPolicy
from mmrl.rollout import Rollout
from mmrl.rollout_request import RowStart, TargetText
from mmrl.training.rollouts.collect import CollectedRollouts, Origin, ScoredRollouts, void_kinds
from mmrl.training.rollouts.exchange import shared_rollouts


@dataclass(frozen=True)
class Transcript:
    """An answer of an earlier policy."""

    sample: str  # the id of the sample that it answers
    text: str
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]  # of its decisions, under the policy that sampled it
    version: int  # of that policy, in updates
    values: Mapping[str, float]  # the known rewards by name
    advantage: float  # 0 if unknown
    start: RowStart | None = None  # what it started with beside the sample
    turns: tuple[int, ...] = ()  # the number of tokens of each turn of an episode; (): one answer without environment

    @property
    def turn_tokens(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of each turn; () without environment."""
        ends = [0, *accumulate(self.turns)]
        return tuple(self.tokens[start:end] for start, end in pairwise(ends))

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary fit for JSON; float32 log-probabilities survive exactly."""
        plain = {each.name: getattr(self, each.name) for each in fields(self)}
        return plain | {"values": dict(self.values), "start": None if self.start is None else self.start.as_dict()}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Transcript:
        """Return the answer that `as_dict` returned."""
        names = ("tokens", "log_probs", "turns")
        start = None if state.get("start") is None else RowStart.from_dict(state["start"])
        return cls(**{**state, **{name: tuple(state.get(name, ())) for name in names}, "start": start})


def transcripts_of(
    scored: ScoredRollouts,
    rows: Sequence[int],
    advantages: Tensor | None = None,  # [R]; None: unknown
) -> list[Transcript]:
    """Return rows of rollouts as transcripts.

    Raises:
        RunError: the answers have no tokens.
    """
    places, found = scored.places(), []
    for each in rows:
        rollout, row = scored.rollouts[places[each][0]], places[each][1]
        if rollout.token_ids is None:
            raise RunError("only answers with tokens can be replayed in a later iteration, and this one has none")
        values = {name: float(column[each]) for name, column in scored.output.values.items()}
        found.append(
            Transcript(
                sample=rollout.samples[row].id,
                text=rollout.media[row] if isinstance(rollout.media[row], str) else "",  # an image: from its tokens
                tokens=tuple(rollout.token_ids[row]),
                log_probs=tuple(rollout.log_probs[row][rollout.mask[row]].tolist()),
                version=rollout.policy_version,
                values={name: value for name, value in values.items() if math.isfinite(value)},
                advantage=0.0 if advantages is None else float(advantages[each]),
                start=None if rollout.starts is None else rollout.starts[row],
                turns=_turn_lengths(rollout, row),
            )
        )
    return found


def _turn_lengths(rollout: Rollout, row: int) -> tuple[int, ...]:
    """Return the number of tokens of each turn of an episode; () without environment."""
    if rollout.episodes is None:
        return ()
    turns = rollout.channel[row][rollout.mask[row]]
    return tuple(turns.bincount(minlength=len(rollout.episodes[row].texts)).tolist())


@dataclass(frozen=True)
class ReplayReader:
    """A reader that turns transcripts into rollouts."""

    policy: TeacherForcingPolicy
    sample: Callable[[str], Sample]  # by id
    rows: int  # of one rollout

    def __call__(
        self, transcripts: Sequence[Transcript], groups: Sequence[int]
    ) -> list[tuple[Rollout, Sequence[Transcript]]]:
        """Return rollouts of at most `rows` answers with their original log-probabilities, and their transcripts.

        Episodes that break down when they are played again are left out.

        `policy_version` is that of the oldest answer, and never the current one: the log-probabilities are not those of
        the current policy, so a replay does not repeat them.

        Raises:
            RunError: the policy tokenises an answer into another number of decisions than it was sampled with, or the
                environment ends an episode earlier than before.
        """
        heat = [None if each.start is None else each.start.temperature for each in transcripts]  # equal in a rollout
        bounds = [0, *(row for row in range(1, len(heat)) if heat[row] != heat[row - 1]), len(heat)]
        cuts = [
            slice(first, min(first + self.rows, end))
            for begin, end in pairwise(bounds)
            for first in range(begin, end, self.rows)
        ]
        own = {n: self._rollout(transcripts[cut], groups[cut]) for n, cut in enumerate(cuts) if processes.owns(n)}
        rollouts = shared_rollouts(own, [self.sample(each.sample) for each in transcripts])
        found: list[tuple[Rollout, Sequence[Transcript]]] = []
        for rollout, cut in zip(rollouts, cuts, strict=True):
            valid = [row for row, kind in enumerate(void_kinds(rollout)) if kind is None]
            if valid:
                kept = rollout if len(valid) == rollout.rows else rollout.select(valid)
                found.append((kept, [transcripts[cut][row] for row in valid]))
        return found

    def _rollout(self, transcripts: Sequence[Transcript], groups: Sequence[int]) -> Rollout:
        targets = [
            TargetText(
                self.sample(each.sample),
                each.text,
                group,
                token_ids=each.tokens,
                turn_tokens=each.turn_tokens,
                start=each.start,
            )
            for each, group in zip(transcripts, groups, strict=True)
        ]
        with torch.no_grad():
            rollout = self.policy.score_targets(targets)
        log_probs = rollout.log_probs.clone()
        for row, (each, void) in enumerate(zip(transcripts, void_kinds(rollout), strict=True)):
            if void is not None:
                continue
            if (read := int(rollout.mask[row].sum())) != len(each.log_probs):
                raise RunError(
                    f"an answer to sample {each.sample!r} was sampled with {len(each.log_probs)} decisions and is "
                    f"read as {read}: it cannot be replayed"
                    + (" unless its environment answers equal actions equally" if each.turns else "")
                )
            log_probs[row, rollout.mask[row]] = log_probs.new_tensor(each.log_probs)
        version = min([*(each.version for each in transcripts), self.policy.version - 1])
        return replace(rollout, log_probs=log_probs, policy_version=version)


class AnswerBuffer:
    """A buffer of answers with an advantage, sampled with probability proportional to |advantage|^alpha.

    The oldest answers leave a full buffer.
    """

    def __init__(self, capacity: int, alpha: float, seed: int) -> None:
        self._kept: deque[Transcript] = deque(maxlen=capacity)
        self._alpha, self._seed = alpha, seed
        self._draws = 0

    def __len__(self) -> int:
        return len(self._kept)

    def draw(self, count: int) -> list[Transcript]:
        """Sample `count` different answers, or all of them if there are fewer."""
        return [self._kept[place] for place in self._chosen(count)]

    def take(self, count: int) -> list[Transcript]:
        """Sample as `draw` does, and remove what was sampled."""
        chosen = self._chosen(count)
        taken, gone = [self._kept[place] for place in chosen], set(chosen)
        stay = [each for place, each in enumerate(self._kept) if place not in gone]
        self._kept.clear()
        self._kept.extend(stay)
        return taken

    def keep(self, answers: Sequence[Transcript]) -> None:
        """Add the answers that have an advantage."""
        self._kept.extend(each for each in answers if each.advantage)

    def state_dict(self) -> dict[str, Any]:
        """Return the buffer, fit for JSON."""
        return {"draws": self._draws, "kept": [each.as_dict() for each in self._kept]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._draws = int(state["draws"])
        self._kept.clear()
        self._kept.extend(Transcript.from_dict(each) for each in state["kept"])

    def _chosen(self, count: int) -> list[int]:
        """Return the places of `count` different answers, or of all of them if there are fewer."""
        count = min(count, len(self._kept))
        if not count:
            return []
        self._draws += 1
        weights = np.abs([each.advantage for each in self._kept]) ** self._alpha
        rng = np.random.default_rng([self._seed, self._draws, 3])
        chosen = rng.choice(len(self._kept), count, replace=False, p=weights / weights.sum())
        return [int(place) for place in chosen]


class SelectiveReplay(AnswerBuffer):
    """A buffer whose answers take the places of groups without advantages.

    The paper keeps a buffer over iterations; its code (TIGER-AI-Lab/VL-Rethinker replay_buffer.py@1319c65) samples
    within one, with alpha = 1. Here answers are sampled without replacement, so that none is trained on twice in an
    iteration; advantages stay those of the original iteration; and the answers of an iteration enter the buffer after
    it has been sampled from.
    """

    def fill(
        self,
        collected: CollectedRollouts,
        advantages: Tensor,  # [R]
        read: ReplayReader,
        progress: float,  # the share of training that is over
    ) -> tuple[CollectedRollouts, list[tuple[Rollout, Tensor]], dict[str, float]]:
        """Return the rows that stay, past rollouts for the other places with their advantages [B], and metrics.

        Metrics: `replay/rows`, `replay/places` (rows without advantage), `replay/kept`, and `replay/age` in updates.
        """
        scored = collected.scored
        informative = scored.group_index[advantages != 0].unique()
        uninformative = collected.trained & scored.total.isfinite() & ~torch.isin(scored.group_index, informative)
        places = uninformative.nonzero()[:, 0].tolist()
        answers = self.draw(len(places))
        trained = collected.trained.clone()
        trained[places[: len(answers)]] = False
        past, metrics = read_again(answers, scored, read)
        own = collected.trained & (advantages != 0) & scored.is_from(Origin.POLICY)
        self.keep(transcripts_of(scored, own.nonzero()[:, 0].tolist(), advantages))
        metrics |= {"replay/places": float(len(places)), "replay/kept": float(len(self))}
        return replace(collected, trained=trained), past, metrics


def read_again(
    answers: Sequence[Transcript], scored: ScoredRollouts, read: ReplayReader
) -> tuple[list[tuple[Rollout, Tensor]], dict[str, float]]:
    """Return the rollouts of past answers with their advantages [B], each a group by itself after those of `scored`.

    Metrics: `replay/rows`, and `replay/age`, their mean age in updates.
    """
    first = int(scored.group_index.max()) + 1
    replayed = read(answers, range(first, first + len(answers)))
    ages = [read.policy.version - each.version for _, part in replayed for each in part]
    metrics = {"replay/rows": float(len(ages))} | ({"replay/age": float(np.mean(ages))} if ages else {})
    return [(rollout, torch.tensor([each.advantage for each in part])) for rollout, part in replayed], metrics


class SuccessReplay:
    """A buffer of the last good answers to each prompt.

    As in the paper, a random answer of a group without any success is replaced by a random one from the buffer, and the
    advantages of the group are computed with it. An answer with a total of at least `success` is good.
    """

    def __init__(self, success: float, per_prompt: int, seed: int) -> None:
        self.success = success
        self._per_prompt, self._seed = per_prompt, seed
        self._kept: dict[str, deque[Transcript]] = {}
        self._draws = 0

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def replace_failures(
        self, collected: CollectedRollouts, read: ReplayReader
    ) -> tuple[CollectedRollouts, dict[str, float]]:
        """Replace an answer in each failed group by a past success, whose row is added at the end; keep new successes.

        Metrics: `replay/rows` and `replay/kept`.
        """
        scored = collected.scored
        own = scored.is_from(Origin.POLICY)
        ids = [sample.id for sample in scored.samples]
        found = self.draw(ids, scored.total, scored.group_index, own & collected.trained)
        drawn = read([answer for _, answer in found], scored.group_index[[row for row, _ in found]].tolist())
        came = {id(answer) for _, part in drawn for answer in part}  # not those that broke down when played again
        rows = [row for row, answer in found if id(answer) in came]
        stays = torch.ones(len(ids), dtype=torch.bool)
        stays[rows] = False
        replaced = scored
        for rollout, part in drawn:
            replaced = replaced.with_rollout(rollout, Origin.REPLAY, [each.values for each in part])
        more = torch.ones(len(replaced.samples) - len(ids), dtype=torch.bool)
        result = replace(
            collected,
            scored=replaced,
            in_baseline=torch.cat([collected.in_baseline & stays, more]),
            trained=torch.cat([collected.trained & stays, more]),
            on_policy=torch.cat([collected.on_policy, ~more]),
            compared=None if collected.compared is None else torch.cat([collected.compared, collected.compared[rows]]),
            credit=None if collected.credit is None else torch.cat([collected.credit, collected.credit[rows]]),
        )
        self.keep(transcripts_of(scored, (own & (scored.total >= self.success)).nonzero()[:, 0].tolist()))
        return result, {"replay/rows": float(len(more)), "replay/kept": float(len(self))}

    def draw(
        self,
        samples: Sequence[str],  # R ids
        total: Tensor,  # [R] float; NaN = could not be scored
        group_index: Tensor,  # [R] int64
        replaceable: Tensor,  # [R] bool
    ) -> list[tuple[int, Transcript]]:
        """Return rows and their replacements: at most one in a group, and none in a group with a success."""
        check_shapes("R", total=total, group_index=group_index, replaceable=replaceable)
        self._draws += 1
        rng = np.random.default_rng([self._seed, self._draws, 4])
        found = []
        for group in group_index.unique().tolist():
            mine = group_index == group
            rows = (mine & replaceable & total.isfinite()).nonzero()[:, 0].tolist()
            if not rows or bool((total[mine] >= self.success).any()):
                continue
            kept = self._kept.get(samples[rows[0]], ())
            if kept:
                row, which = rng.integers(len(rows)), rng.integers(len(kept))
                found.append((rows[int(row)], kept[int(which)]))
        return found

    def keep(self, answers: Sequence[Transcript]) -> None:
        """Add good answers."""
        for each in answers:
            self._kept.setdefault(each.sample, deque(maxlen=self._per_prompt)).append(each)

    def state_dict(self) -> dict[str, Any]:
        """Return the buffer, fit for JSON."""
        kept = {sample: [each.as_dict() for each in answers] for sample, answers in self._kept.items()}
        return {"draws": self._draws, "kept": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._draws = int(state["draws"])
        self._kept = {
            sample: deque(map(Transcript.from_dict, answers), maxlen=self._per_prompt)
            for sample, answers in state["kept"].items()
        }
