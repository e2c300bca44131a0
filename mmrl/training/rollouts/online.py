"""Where training data comes from: experience sources, and the micro-batches they give. Those offline: `offline`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from mmrl.algorithms import extreme_advantages
from mmrl.config.algorithm import AdvantageConfig
from mmrl.data.prompts import Outcome, PromptSource
from mmrl.errors import ConfigError
from mmrl.policy import Capability, Policy, Rollout, TeacherForcingPolicy
from mmrl.rewards.core.reward_io import select_rows
from mmrl.rewards.core.routing import RoutedRewards, Scorer
from mmrl.seeds import fold_in
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator, branch_credit, shared_rows
from mmrl.training.rollouts.collect import Origin, RolloutCollector, ScoredRollouts
from mmrl.training.rollouts.demonstrations import MixedDemonstrations
from mmrl.training.rollouts.difficulty import DifficultyWeighting
from mmrl.training.rollouts.group_diversity import group_diversity
from mmrl.training.rollouts.group_sampling import AdaptiveDraws, CollectedRollouts, FixedGroupSampler, GroupSampler
from mmrl.training.rollouts.importance_correction import ImportanceCorrection
from mmrl.training.rollouts.prompt_history import PromptHistory
from mmrl.training.rollouts.replay_buffer import ReplayReader, SelectiveReplay, SuccessReplay
from mmrl.training.rollouts.reward_metrics import reward_metrics
from mmrl.training.run.timers import Phases

__all__ = ["Experience", "ExperienceSource", "MicroBatch", "OnlineRollouts", "fold_in"]


@dataclass(frozen=True)
class MicroBatch:
    """One rollout and what each of its trajectories and decisions deserves."""

    rollout: Rollout
    advantages: Tensor  # [B] of whole trajectories; 0 where unscored
    scored: Tensor  # [B] bool; False = the scorer failed, or the row was passed over: leave it out
    credit: Tensor  # [B, T] of single decisions: the advantages, broadcast, where a reward is for the whole

    @property
    def scored_rows(self) -> int:
        """How many trajectories are trained on."""
        return int(self.scored.sum())


@dataclass(frozen=True)
class Experience:
    """All that one iteration trains on."""

    micro_batches: list[MicroBatch]
    metrics: dict[str, float]


class ExperienceSource(Protocol):
    """Gives experience, iteration by iteration. Its state is saved in checkpoints."""

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """The experience of an iteration; `progress` is the share of training that is done."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """JSON-like state."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        ...


@dataclass
class OnlineRollouts:
    """Groups of fresh trajectories from the policy, scored; what is drawn, kept, mixed in and weighted is in parts.

    Raises:
        ConfigError: two of the parts cannot work together.
    """

    policy: Policy
    sampling_weights: Callable[
        [], AbstractContextManager[Any]
    ]  # open while sampling: the parameters an objective samples with
    prompts: PromptSource
    suite: Scorer
    credit: AdvantageEstimator
    group_size: int
    micro_batch: int  # rows of one rollout
    seed: int
    draws: GroupSampler | None = None  # None: `group_size` answers of each prompt
    replay: SelectiveReplay | SuccessReplay | None = None
    weighting: DifficultyWeighting | None = None
    mixed: MixedDemonstrations | None = None
    history: PromptHistory | None = None  # what each prompt has earned so far, if advantages are against that
    keep_means: bool = False  # of decisions, where the objective looks at them
    mismatch: ImportanceCorrection | None = None  # for engines that compute otherwise than the trainer
    _cuttable: bool = field(init=False)

    def __post_init__(self) -> None:
        capabilities = self.policy.capabilities
        self._cuttable = Capability.SELECT_ROWS in capabilities
        for key, part in (("replay", self.replay), ("demonstrations", self.mixed)):
            if part is not None and Capability.TEACHER_FORCE not in capabilities:
                raise ConfigError(
                    f"data.{key}: {type(self.policy).__name__} cannot read texts that it did not just write (power "
                    "score_targets): leave it out"
                )
        if self.mismatch is not None and isinstance(self.replay, SelectiveReplay):
            raise ConfigError(
                "algorithm.mismatch: answers that data.replay keeps were drawn with older weights, and have no engine "
                "to be compared with: leave one of the two out"
            )
        if self.suite.needs_full_groups and isinstance(self.draws, AdaptiveDraws):
            raise ConfigError("data.draws: adaptive draws a group in rounds, but a reward compares a group's answers")
        mixed = isinstance(self.suite, RoutedRewards) and not self.suite.uniform
        if (name := self.credit.config.name) in ("gdpo", "pareto") and mixed:
            raise ConfigError(
                f"algorithm: {name} takes the rewards of all answers one by one, but samples ask for different "
                "rewards: choose grpo, or give all samples the same"
            )

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Draw, score, and give credit.

        Raises:
            RunError: too few of the answers could be scored.
        """
        draw = RolloutCollector(
            policy=self.policy,
            sampling_weights=self.sampling_weights,
            suite=self.suite,
            micro_batch=self.micro_batch,
            seed=self.seed,
            iteration=iteration,
            progress=progress,
            phases=phases,
            mixed=self.mixed,
            keep_means=self.keep_means,
        )
        drawn = (self.draws or FixedGroupSampler(self.group_size)).draw(self.prompts, draw)
        metrics = self._reward_metrics(drawn) | drawn.metrics | self._demonstration_metrics(drawn.scored)
        self.prompts.learn(_outcomes(drawn))
        metrics |= self.prompts.metrics()
        if isinstance(self.replay, SuccessReplay):
            with phases("rollout"):
                drawn, replayed = self.replay.mend(drawn, self._recall())
            metrics |= replayed
        advantages, branches = self._advantages(drawn), self._branch_credit(drawn)
        if self.credit.constraints is not None:
            metrics |= self.credit.constraints.ascend(select_rows(drawn.scored.output, _rows(drawn.fair)))
        if self.weighting is not None:
            total = drawn.scored.total.where(drawn.credited, torch.nan)
            weights = self.weighting.weights(total, drawn.scored.group_index, progress)
            advantages = advantages * weights
            branches = None if branches is None else branches * weights[:, None]
            metrics["weighting/mean"] = float(weights[drawn.trained].mean())
        past: list[tuple[Rollout, Tensor]] = []
        if isinstance(self.replay, SelectiveReplay):
            with phases("rollout"):
                drawn, past, replayed = self.replay.fill(drawn, advantages, self._recall())
            metrics |= replayed
        replays = [
            MicroBatch(rollout, gained, torch.ones_like(gained, dtype=torch.bool), self._spread(gained, rollout))
            for rollout, gained in past
        ]
        with phases("rollout"):  # the trainer's own log-probabilities, where they are asked for
            batches = self._micro_batches(drawn, advantages, branches)
        if self.mismatch is not None:
            metrics |= self.mismatch.metrics()
        return Experience(interleaved(batches, replays), metrics)

    def state_dict(self) -> dict[str, Any]:
        """Of the prompts, the rewards and the replay; all else follows from the seed and the iteration."""
        state = {"prompts": self.prompts.state_dict()}
        if rewards := self.suite.state_dict():
            state["rewards"] = rewards
        if self.history is not None:
            state["history"] = self.history.state_dict()
        if self.credit.constraints is not None:
            state["multipliers"] = self.credit.constraints.state_dict()
        return state if self.replay is None else state | {"replay": self.replay.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.prompts.load_state_dict(state["prompts"])
        self.suite.load_state_dict(state.get("rewards", {}))
        if self.history is not None:
            self.history.load_state_dict(state.get("history", {}))
        if self.credit.constraints is not None:
            self.credit.constraints.load_state_dict(state.get("multipliers", {}))
        if self.replay is not None:
            self.replay.load_state_dict(state["replay"])

    def _advantages(self, drawn: CollectedRollouts) -> Tensor:
        """[R]; 0 in rows that take no part."""
        rows = drawn.credited.nonzero()[:, 0]
        output, group_index = select_rows(drawn.scored.output, rows.tolist()), drawn.scored.group_index[rows]
        advantages = torch.zeros(len(drawn.credited))
        config = self.credit.config
        if self.history is None:
            advantages[rows] = self.credit.advantages(output, group_index)
        else:
            samples = drawn.scored.samples
            ids = [samples[row].id for row in rows.tolist()]
            advantages[rows] = self.credit.limited(self.history.advantages(drawn.scored.total[rows], ids))
        if isinstance(config, AdvantageConfig) and config.contrast is not None:
            shared = shared_rows(drawn.scored.rollouts)
            compared = drawn.scored.group_index if shared is None else shared[:, 0]
            advantages = extreme_advantages(advantages, compared, config.contrast)
        return advantages

    def _branch_credit(self, drawn: CollectedRollouts) -> Tensor | None:
        """[R, T] of decisions that rows share before they part; None where advantages are of whole trajectories."""
        config, scored = self.credit.config, drawn.scored
        if not isinstance(config, AdvantageConfig) or config.name != "branch":
            return None
        rewards = scored.total.where(drawn.credited, torch.nan)
        return self.credit.limited(branch_credit(config, rewards, scored.group_index, scored.rollouts))

    def _micro_batches(self, drawn: CollectedRollouts, advantages: Tensor, branches: Tensor | None) -> list[MicroBatch]:
        """One of each rollout that has rows to train on; the other rows are cut off, or left out of the loss."""
        scored, sizes = drawn.scored, drawn.scored.sizes
        valid = scored.total.isfinite() & drawn.trained
        batches = []
        parts = zip(
            scored.rollouts,
            scored.origins,
            *(each.split(sizes) for each in (advantages, valid, drawn.trained)),
            [None] * len(sizes) if branches is None else branches.split(sizes),
            strict=True,
        )
        for rollout, origin, gained, known, trained, branched in parts:
            if not trained.any():
                continue
            if self._cuttable and not trained.all():
                rows = trained.nonzero()[:, 0]
                rollout, gained, known = rollout.select(rows.tolist()), gained[rows], known[rows]
            credit = self._spread(gained, rollout) if branched is None else branched.to(rollout.mask.device)
            if origin is Origin.DEMONSTRATION and self.mixed is not None:
                credit = credit * self.mixed.scale(rollout)
            elif self.mismatch is not None:
                rollout, weights = self.mismatch.correct(rollout)
                credit = credit * weights
            batches.append(MicroBatch(rollout, gained, known, credit))
        return batches

    def _spread(self, advantages: Tensor, rollout: Rollout) -> Tensor:
        """[B, T]."""
        return self.credit.decisions(advantages, rollout.mask)

    def _recall(self) -> ReplayReader:
        policy: TeacherForcingPolicy = self.policy  # type: ignore[assignment]  # __post_init__ has seen to it
        return ReplayReader(policy, self.prompts.sample, self.micro_batch)

    def _reward_metrics(self, drawn: CollectedRollouts) -> dict[str, float]:
        """Of the rows that show how good the policy is."""
        scored, rows = drawn.scored, _rows(drawn.fair)
        samples, lengths = scored.samples, _lengths(scored)
        media = [made for rollout in scored.rollouts for made in rollout.media]
        diversity = group_diversity([media[row] for row in rows], scored.group_index[rows].tolist())
        return ({} if diversity is None else {"diversity": diversity}) | reward_metrics(
            select_rows(scored.output, rows),
            self.suite,
            [samples[row].source for row in rows],
            scored.group_index[rows],
            None if lengths is None else [lengths[row] for row in rows],
        )

    def _demonstration_metrics(self, scored: ScoredRollouts) -> dict[str, float]:
        if self.mixed is None:
            return {}
        total = scored.total[scored.is_from(Origin.DEMONSTRATION)]
        return {"demonstrations/rows": float(len(total)), "demonstrations/reward": float(total.nanmean())}


def interleaved(many: Sequence[MicroBatch], few: Sequence[MicroBatch]) -> list[MicroBatch]:
    """Both, each evenly spread, so that the updates of an iteration have their share of both."""
    placed = [((n + 0.5) / len(batches), batch) for batches in (many, few) for n, batch in enumerate(batches)]
    return [batch for _, batch in sorted(placed, key=lambda each: each[0])]


def _rows(chosen: Tensor) -> list[int]:
    return chosen.nonzero()[:, 0].tolist()


def _lengths(scored: ScoredRollouts) -> list[int] | None:
    """Tokens of each row; None where answers are not written with tokens."""
    if any(rollout.token_ids is None for rollout in scored.rollouts):
        return None
    return [len(ids) for rollout in scored.rollouts for ids in rollout.token_ids or ()]


def _outcomes(drawn: CollectedRollouts) -> list[Outcome]:
    """What came of each prompt."""
    scored, samples = drawn.scored, drawn.scored.samples
    total, group_index, places = scored.total, scored.group_index, scored.places()
    outcomes = []
    for group in group_index.unique().tolist():
        rows = ((group_index == group) & drawn.fair).nonzero()[:, 0].tolist()
        if rows:
            answers = [_words(scored.rollouts[places[row][0]], places[row][1]) for row in rows]
            known = total[rows]
            outcomes.append(Outcome(samples[rows[0]], known[known.isfinite()].tolist(), [a for a in answers if a]))
    return outcomes


def _words(rollout: Rollout, row: int) -> Sequence[int | str]:
    """An answer's tokens, or the words of a text that has none; nothing for a picture or a video."""
    if rollout.token_ids is not None:
        return rollout.token_ids[row]
    media = rollout.media[row]
    return media.split() if isinstance(media, str) else ()
