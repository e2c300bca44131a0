"""Answers that outlive the iteration that drew them, and the checkpoint that they stand in.

Kept as text, tokens and log-probabilities, and read again by `score_targets` when they are replayed: what a policy
records to replay a rollout may be large and holds tensors of its own, and no checkpoint could keep it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmrl.checks import check_shapes
from mmrl.data.sample import Sample
from mmrl.errors import RunError
from mmrl.policy import Rollout, TargetText, TeacherForcingPolicy
from mmrl.training.rollouts.collect import CollectedRollouts, Origin, ScoredRollouts


@dataclass(frozen=True)
class Transcript:
    """One answer that the policy once wrote."""

    sample: str  # the id of the sample that it answers
    text: str
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]  # of its decisions, under the policy that wrote it
    version: int  # of that policy
    values: Mapping[str, float]  # its rewards by name, those that are known
    advantage: float  # 0 where nobody asked for it

    def as_dict(self) -> dict[str, Any]:
        """Fit for JSON; float32 log-probabilities come back to the bit."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Transcript:
        """Read back what `as_dict` gave."""
        return cls(
            sample=state["sample"],
            text=state["text"],
            tokens=tuple(state["tokens"]),
            log_probs=tuple(state["log_probs"]),
            version=int(state["version"]),
            values=dict(state["values"]),
            advantage=float(state["advantage"]),
        )


def transcripts_of(
    scored: ScoredRollouts,
    rows: Sequence[int],
    advantages: Tensor | None = None,  # [R]; None: nobody asks for them
) -> list[Transcript]:
    """Some rows of what was drawn, as they can be kept.

    Raises:
        RunError: they are no texts with tokens.
    """
    places, step_indices = scored.places(), scored.output.values
    known = [{name: float(column[row]) for name, column in step_indices.items()} for row in rows]
    return [
        _transcribe(
            scored.rollouts[places[row][0]],
            places[row][1],
            {name: value for name, value in values.items() if math.isfinite(value)},
            0.0 if advantages is None else float(advantages[row]),
        )
        for row, values in zip(rows, known, strict=True)
    ]


@dataclass(frozen=True)
class ReplayReader:
    """Reads answers from before again."""

    policy: TeacherForcingPolicy
    sample: Callable[[str], Sample]  # by id
    rows: int  # of one rollout

    def __call__(
        self, transcripts: Sequence[Transcript], groups: Sequence[int]
    ) -> list[tuple[Rollout, Sequence[Transcript]]]:
        """Rollouts with the log-probabilities of the policies that wrote them; each answer in the group given for it.

        Their `policy_version` is that of the oldest answer, and never the present one: their log-probabilities are not
        the present policy's own, so a replay need not repeat them.

        Raises:
            RunError: the policy reads another number of tokens than were written.
        """
        cuts = [slice(start, start + self.rows) for start in range(0, len(transcripts), self.rows)]
        return [(self._rollout(transcripts[cut], groups[cut]), transcripts[cut]) for cut in cuts]

    def _rollout(self, transcripts: Sequence[Transcript], groups: Sequence[int]) -> Rollout:
        given = [
            TargetText(self.sample(each.sample), each.text, group, token_ids=each.tokens)
            for each, group in zip(transcripts, groups, strict=True)
        ]
        with torch.no_grad():
            rollout = self.policy.score_targets(given)
        log_probs = rollout.log_probs.clone()
        for row, each in enumerate(transcripts):
            if (read := int(rollout.mask[row].sum())) != len(each.log_probs):
                raise RunError(
                    f"an answer to sample {each.sample!r} was written with {len(each.log_probs)} decisions and is "
                    f"read as {read}: it cannot be replayed"
                )
            log_probs[row, rollout.mask[row]] = log_probs.new_tensor(each.log_probs)
        version = min([*(each.version for each in transcripts), self.policy.version - 1])
        return replace(rollout, log_probs=log_probs, policy_version=version)


def _transcribe(rollout: Rollout, row: int, values: Mapping[str, float], advantage: float) -> Transcript:
    if rollout.token_ids is None:
        raise RunError("only what is written with tokens can be replayed in a later iteration, and this was not")
    return Transcript(
        sample=rollout.samples[row].id,
        text=rollout.media[row] if isinstance(rollout.media[row], str) else "",  # of a picture, its tokens say all
        tokens=tuple(rollout.token_ids[row]),
        log_probs=tuple(rollout.log_probs[row][rollout.mask[row]].tolist()),
        version=rollout.policy_version,
        values=dict(values),
        advantage=advantage,
    )


# Selective sample replay: past answers fill the places of groups that say nothing (VL-Rethinker, arXiv:2504.08837).


class SelectiveReplay:
    """A buffer of answers with an advantage, drawn again with odds |advantage|^alpha.

    The paper keeps a buffer over iterations; its code (TIGER-AI-Lab/VL-Rethinker replay_buffer.py@1319c65) draws within
    one, with alpha = 1. Chosen here: draws are without replacement, so that no answer is trained on twice in an
    iteration; advantages stay what they were when the answer was drawn; the oldest answers leave a full buffer; and
    what is drawn is from before: an iteration's own answers enter the buffer after it has been drawn from.
    """

    def __init__(self, capacity: int, alpha: float, seed: int) -> None:
        self._kept: deque[Transcript] = deque(maxlen=capacity)
        self._alpha, self._seed = alpha, seed
        self._draws = 0

    def __len__(self) -> int:
        return len(self._kept)

    def fill(
        self,
        drawn: CollectedRollouts,
        advantages: Tensor,  # [R] of what was drawn
        recall: ReplayReader,
    ) -> tuple[CollectedRollouts, list[tuple[Rollout, Tensor]], dict[str, float]]:
        """What is still trained on, the past rollouts in the place of the rest with their advantages [B], and metrics.

        Metrics: `replay/rows`, `replay/places` (rows that said nothing), `replay/kept`, and `replay/age` in updates.
        """
        scored = drawn.scored
        telling = scored.group_index[advantages != 0].unique()
        silent = drawn.trained & scored.total.isfinite() & ~torch.isin(scored.group_index, telling)
        places = silent.nonzero()[:, 0].tolist()
        answers = self.draw(len(places))
        trained = drawn.trained.clone()
        trained[places[: len(answers)]] = False
        first = int(scored.group_index.max()) + 1  # each is a group by itself
        recalled = recall(answers, range(first, first + len(answers)))
        own = drawn.trained & (advantages != 0) & scored.is_from(Origin.POLICY)
        self.keep(transcripts_of(scored, own.nonzero()[:, 0].tolist(), advantages))
        metrics = {"rows": len(answers), "places": len(places), "kept": len(self)}
        ages = [recall.policy.version - each.version for each in answers]
        return (
            replace(drawn, trained=trained),
            [(rollout, torch.tensor([each.advantage for each in part])) for rollout, part in recalled],
            {f"replay/{name}": float(n) for name, n in metrics.items()}
            | ({"replay/age": float(np.mean(ages))} if ages else {}),
        )

    def draw(self, count: int) -> list[Transcript]:
        """So many different answers, or all there are."""
        count = min(count, len(self._kept))
        if not count:
            return []
        self._draws += 1
        weights = np.abs([each.advantage for each in self._kept]) ** self._alpha
        rng = np.random.default_rng([self._seed, self._draws, 3])
        chosen = rng.choice(len(self._kept), count, replace=False, p=weights / weights.sum())
        return [self._kept[int(index)] for index in chosen]

    def keep(self, answers: Sequence[Transcript]) -> None:
        """Take in the answers that have an advantage."""
        self._kept.extend(each for each in answers if each.advantage)

    def state_dict(self) -> dict[str, Any]:
        """JSON-like."""
        return {"draws": self._draws, "kept": [each.as_dict() for each in self._kept]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._draws = int(state["draws"])
        self._kept.clear()
        self._kept.extend(Transcript.from_dict(each) for each in state["kept"])


# Success replay: a group that failed as a whole gets one of its sample's past successes (ARPO, arXiv:2505.16282).


class SuccessReplay:
    """The last good answers to each prompt.

    As in the paper, one answer of a failed group, at random, makes room for one from the buffer, at random, and the
    group's advantages follow from what it then holds. An answer is good from a total of `success` on.
    """

    def __init__(self, success: float, per_prompt: int, seed: int) -> None:
        self.success = success
        self._per_prompt, self._seed = per_prompt, seed
        self._kept: dict[str, deque[Transcript]] = {}
        self._draws = 0

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def replace_failures(
        self, drawn: CollectedRollouts, recall: ReplayReader
    ) -> tuple[CollectedRollouts, dict[str, float]]:
        """Failed groups with a past success each, behind the other rows; and the present successes, kept.

        Metrics: `replay/rows` and `replay/kept`.
        """
        scored = drawn.scored
        own = scored.is_from(Origin.POLICY)
        ids = [sample.id for sample in scored.samples]
        found = self.draw(ids, scored.total, scored.group_index, own & drawn.trained)
        rows = [row for row, _ in found]
        stays = torch.ones(len(ids), dtype=torch.bool)
        stays[rows] = False
        mended = scored
        for rollout, part in recall([answer for _, answer in found], scored.group_index[rows].tolist()):
            mended = mended.with_rollout(rollout, Origin.REPLAY, [each.values for each in part])
        more = torch.ones(len(found), dtype=torch.bool)
        mended_drawn = replace(
            drawn,
            scored=mended,
            in_baseline=torch.cat([drawn.in_baseline & stays, more]),
            trained=torch.cat([drawn.trained & stays, more]),
            on_policy=torch.cat([drawn.on_policy, ~more]),
        )
        self.keep(transcripts_of(scored, (own & (scored.total >= self.success)).nonzero()[:, 0].tolist()))
        return mended_drawn, {"replay/rows": float(len(found)), "replay/kept": float(len(self))}

    def draw(
        self,
        samples: Sequence[str],  # R ids
        total: Tensor,  # [R] float; NaN = could not be scored
        group_index: Tensor,  # [R] int64
        replaceable: Tensor,  # [R] bool
    ) -> list[tuple[int, Transcript]]:
        """Which rows make room, and for what: at most one of a group, and none in a group that has a success."""
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
        """Take in good answers."""
        for each in answers:
            self._kept.setdefault(each.sample, deque(maxlen=self._per_prompt)).append(each)

    def state_dict(self) -> dict[str, Any]:
        """JSON-like."""
        kept = {sample: [each.as_dict() for each in answers] for sample, answers in self._kept.items()}
        return {"draws": self._draws, "kept": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self._draws = int(state["draws"])
        self._kept = {
            sample: deque(map(Transcript.from_dict, answers), maxlen=self._per_prompt)
            for sample, answers in state["kept"].items()
        }
