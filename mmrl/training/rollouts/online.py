"""Experience from the policy's own rollouts: sample and score, estimate advantages, cut into micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.advantages import extreme_advantages, zero_variance_share
from mmrl.algorithms.durations import duration_weights
from mmrl.algorithms.groups import group_spread
from mmrl.algorithms.turn_credit import credit_by_turn
from mmrl.config.algorithms.advantage import AdvantageConfig
from mmrl.data.prompts import Outcome, PromptSource
from mmrl.distributed import processes
from mmrl.errors import ConfigError
from mmrl.policy import Capability, Policy, TeacherForcingPolicy
from mmrl.rewards.core.reward_io import select_rows
from mmrl.rewards.core.routing import RoutedRewards
from mmrl.rewards.core.suite import Scorer
from mmrl.rollout import Rollout
from mmrl.statistics.distances import group_diversity
from mmrl.training.experience import Experience, MicroBatch
from mmrl.training.hacking_gauge import HackingGauge
from mmrl.training.rollouts.advantage_estimator import (
    AdvantageEstimator,
    DifficultyWeighting,
    PromptHistory,
    branch_credit,
    shared_rows,
)
from mmrl.training.rollouts.answer_lengths import AnswerLengths
from mmrl.training.rollouts.collect import (
    CollectedRollouts,
    FixedGroupSampler,
    GroupSampler,
    Origin,
    RolloutCollector,
    ScoredRollouts,
    shared_inputs,
)
from mmrl.training.rollouts.demonstrations import MixedDemonstrations
from mmrl.training.rollouts.exchange import shared_media
from mmrl.training.rollouts.gradient_norms import exact_squared_norms, recorded_squared_norms
from mmrl.training.rollouts.group_sampling import AdaptiveGroupSampler
from mmrl.training.rollouts.recomposed_batches import RecomposedReplay
from mmrl.training.rollouts.replay_buffer import ReplayReader, SelectiveReplay, SuccessReplay
from mmrl.training.rollouts.rollout_metrics import reward_metrics, turn_metrics
from mmrl.training.rollouts.start_rules import AtTemperature, StartContext, StartedGroupSampler, StartRule
from mmrl.training.rollouts.timed_groups import episode_seconds
from mmrl.training.rollouts.token_budget import TokenBudget
from mmrl.training.rollouts.turn_advantages import turn_advantages
from mmrl.training.rollouts.turn_filter import TurnFilter
from mmrl.training.run.timers import Phases


@dataclass
class OnlineRollouts:
    """A source of groups of fresh, scored trajectories. Optional parts sample, replay, mix in and weight them.

    Raises:
        ConfigError: two of the parts cannot work together.
    """

    policy: Policy
    sampling_weights: Callable[[], AbstractContextManager[Any]]  # open while sampling: an objective's old policy
    prompts: PromptSource
    suite: Scorer
    advantage_estimator: AdvantageEstimator
    group_size: int
    micro_batch: int  # rows of one rollout
    seed: int
    group_sampler: GroupSampler | None = None  # None: `group_size` answers to each prompt
    replay: SelectiveReplay | SuccessReplay | RecomposedReplay | None = None
    weighting: DifficultyWeighting | None = None
    demonstrations: MixedDemonstrations | None = None
    starts: StartRule | None = None  # what rows start with; None: their samples alone
    temperature: float | None = None  # of the answers, as a controller moves it; None: the policy's own
    turn_filter: TurnFilter | None = None
    token_budget: TokenBudget | None = None  # of the answers that are learnt from; None: all are
    aligned: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None  # (advantages [R], NaN = unscored; groups [R];
    # demonstrated [R] bool) -> [R]: what becomes of advantages in groups with a demonstration
    history: PromptHistory | None = None  # the earlier rewards of each prompt, if advantages are relative to them
    keep_means: bool = False  # of decisions, for objectives that read them
    keep_clean: bool = False  # in rollouts of other processes, whose rows may be put into new micro-batches
    horizon: tuple[int, ...] = ()  # the most turns of an episode, in equal parts of training; (): as always
    rollout_metrics: Callable[[], Mapping[str, float]] | None = None  # of the policy's engine, since the last call
    models: Mapping[str, Any] = field(default_factory=dict)  # of the run, for rewards that ask them
    hacking: HackingGauge | None = None  # says when rewards learn; None: in every iteration
    lengths: AnswerLengths = field(default_factory=AnswerLengths)  # by which several processes are dealt calls
    _selects_rows: bool = field(init=False)

    def __post_init__(self) -> None:
        capabilities = self.policy.capabilities
        self._selects_rows = Capability.SELECT_ROWS in capabilities
        for key, part in (("replay", self.replay), ("demonstrations", self.demonstrations)):
            if part is not None and Capability.TEACHER_FORCE not in capabilities:
                raise ConfigError(
                    f"data.{key}: {type(self.policy).__name__} cannot score texts that it did not just write "
                    "(capability teacher_force): leave it out"
                )
        if self.demonstrations is not None and getattr(self.policy, "environment", None) is not None:
            raise ConfigError(
                "data.demonstrations: its texts are single answers, and the environment asks for several turns: leave "
                "one of the two out"
            )
        if self.starts is not None and Capability.ROW_STARTS not in capabilities:
            raise ConfigError(
                f"data.starts: the rows of {type(self.policy).__name__} cannot start differently (capability "
                "row_starts): leave it out"
            )
        if self.suite.needs_full_groups and isinstance(self.group_sampler, AdaptiveGroupSampler):
            raise ConfigError(
                "data.group_sampling: adaptive draws a group in rounds, but a reward compares a group's answers"
            )
        facts = getattr(self.advantage_estimator.config, "row_facts", ())
        if "squared_norms" in facts and not (self._selects_rows and processes.size() == 1):
            raise ConfigError(
                "algorithm.advantage: norms of gradients are computed row by row, in one process, of rows that do not "
                "depend on one another (capability select_rows): set algorithm.advantage.norms recorded, or choose rloo"
            )
        mixed = isinstance(self.suite, RoutedRewards) and not self.suite.uniform
        config = self.advantage_estimator.config
        if isinstance(config, AdvantageConfig) and mixed and (config.channels or not config.uses_total):
            name = "channels" if config.channels else config.name
            raise ConfigError(
                f"algorithm: {name} takes the rewards of all answers one by one, but samples ask for different "
                "rewards: choose grpo, or give all samples the same"
            )

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        """Sample, score and estimate advantages.

        Raises:
            RunError: too few of the answers could be scored.
        """
        collector = self.collector(iteration, progress, phases, self.seed)
        sampler = self.group_sampler or FixedGroupSampler(self.group_size)
        if self.temperature is not None:
            sampler = AtTemperature(sampler, self.temperature)
        if self.starts is not None:
            sampler = StartedGroupSampler(self.starts, sampler, StartContext.of(self.seed, iteration, progress))
        collected = collector.collect(sampler, self.prompts)
        metrics = self.learn(collected)
        collected = self._without_empty_turns(collected)
        if isinstance(self.replay, SuccessReplay):
            with phases("rollout"):
                collected, replay_metrics = self.replay.replace_failures(collected, self._replay_reader())
            metrics |= replay_metrics
        advantages, branches = self._advantages(collected), self._branch_credit(collected)
        turns = self._turn_credit(collected, advantages)
        if self.advantage_estimator.constraints is not None:
            on_policy = select_rows(collected.scored.output, _indices(collected.on_policy))
            metrics |= self.advantage_estimator.constraints.update_multipliers(on_policy)
        if self.weighting is not None:
            total = collected.scored.total.where(collected.in_baseline, torch.nan)
            weights = self.weighting.weights(total, collected.scored.group_index, progress)
            advantages = advantages * weights
            branches = None if branches is None else branches * weights[:, None]
            turns = None if turns is None else turns * weights[:, None]
            metrics["weighting/mean"] = float(weights[collected.trained].mean())
        past: list[tuple[Rollout, Tensor]] = []
        places = int(collected.trained.sum())
        if isinstance(self.replay, SelectiveReplay | RecomposedReplay):
            reader = self._replay_reader()
            with phases("rollout"):
                collected, past, replay_metrics = self.replay.fill(collected, advantages, reader, progress)
            metrics |= replay_metrics
        if self.token_budget is not None:
            live = (advantages[:, None] if turns is None else turns).any(1)
            collected, budget_metrics = self.token_budget(collected, live, iteration)
            metrics |= budget_metrics
        replays = [MicroBatch.of_rows(rollout, own) for rollout, own in past]
        batches = self._micro_batches(collected, advantages, branches, turns)
        metrics["live_share"] = live_share([*batches, *replays], places)
        return Experience(interleaved(batches, replays), metrics)

    def collector(self, iteration: int, progress: float, phases: Phases, seed: int) -> RolloutCollector:
        """Return what samples and scores the answers of an iteration; calls and rewards draw from `seed`."""
        return RolloutCollector(
            policy=self.policy,
            sampling_weights=self.sampling_weights,
            suite=self.suite,
            micro_batch=self.micro_batch,
            seed=seed,
            iteration=iteration,
            progress=progress,
            phases=phases,
            demonstrations=self.demonstrations,
            keep_means=self.keep_means,
            keep_clean=self.keep_clean,
            max_turns=self.max_turns(progress),
            models=self.models,
            lengths=self.lengths if processes.size() > 1 else None,
        )

    def max_turns(self, progress: float) -> int | None:
        """Return the largest number of turns of an episode at a share of training; None: as the environment says."""
        if not self.horizon:
            return None
        return self.horizon[min(int(progress * len(self.horizon)), len(self.horizon) - 1)]

    def learn(self, collected: CollectedRollouts) -> dict[str, float]:
        """Pass the outcomes of all prompts of an iteration on to their source, and return the iteration's metrics."""
        metrics = self._reward_metrics(collected) | collected.metrics | self._demonstration_metrics(collected.scored)
        metrics |= turn_metrics(collected.scored.rollouts)
        if self.turn_filter is not None:
            metrics |= self.turn_filter(collected)[1]
        metrics["zero_variance_share_trained"] = _zero_variance_share_trained(collected)
        if self.suite.learns and (self.hacking is None or self.hacking.rewards_learn):
            metrics |= self._learn_rewards(collected.scored.rollouts)
        self._learn_prompts(collected)
        engine = {} if self.rollout_metrics is None else self.rollout_metrics()
        return {**metrics, **self.prompts.metrics(), **engine}

    def group_batches(self, collected: CollectedRollouts) -> list[MicroBatch]:
        """Return micro-batches of whole groups, with advantages that are relative to their groups alone."""
        collected = self._without_empty_turns(collected)
        advantages = self._advantages(collected)
        turns = self._turn_credit(collected, advantages)
        return self._micro_batches(collected, advantages, self._branch_credit(collected), turns)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all parts that have one; the rest follows from the seed."""
        states = {name: part.state_dict() for name, part in self._stateful_parts().items()}
        return {name: state for name, state in states.items() if state or name not in ("rewards", "lengths")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, part in self._stateful_parts().items():
            part.load_state_dict(state.get(name, {}))

    def _stateful_parts(self) -> dict[str, Any]:
        """Return the parts whose state is saved, by its key in a checkpoint."""
        multipliers = self.advantage_estimator.constraints
        optional = {"history": self.history, "multipliers": multipliers, "replay": self.replay}
        present = {name: part for name, part in optional.items() if part is not None}
        return {"prompts": self.prompts, "rewards": self.suite, "lengths": self.lengths} | present

    def _advantages(self, collected: CollectedRollouts) -> Tensor:
        """Return [R] advantages; 0 in rows outside the baseline."""
        rows = collected.in_baseline.nonzero()[:, 0]
        output = select_rows(collected.scored.output, rows.tolist())
        advantages = torch.zeros(len(collected.in_baseline))
        config = self.advantage_estimator.config
        shared = shared_rows(collected.scored.rollouts)
        trees = collected.groups if shared is None else shared[:, 0]
        by_tree = isinstance(config, AdvantageConfig) and config.baseline == "tree"
        if self.history is None:
            compared = trees if by_tree else collected.groups
            facts = {name: each[rows] for name, each in self._row_facts(collected).items()}
            advantages[rows] = self.advantage_estimator.advantages(output, compared[rows], facts)
        else:
            samples = collected.scored.samples
            ids = [samples[row].id for row in rows.tolist()]
            relative = self.history.advantages(collected.scored.total[rows], ids)
            advantages[rows] = self.advantage_estimator.limited(relative)
        if isinstance(config, AdvantageConfig) and config.extremes_threshold is not None:
            advantages = extreme_advantages(advantages, trees, config.extremes_threshold)
        if collected.credit is not None:
            advantages = advantages + collected.credit.where(collected.in_baseline, 0.0)
        if self.aligned is not None:
            known = collected.in_baseline & collected.scored.total.isfinite()
            demonstrated = collected.scored.is_from(Origin.DEMONSTRATION)
            advantages = self.aligned(advantages.where(known, torch.nan), collected.groups, demonstrated)
        if isinstance(config, AdvantageConfig) and config.duration is not None:
            seconds = episode_seconds(collected.scored.rollouts, config.duration.key)
            advantages = advantages * duration_weights(seconds.where(collected.in_baseline, torch.nan))
        return advantages

    def _row_facts(self, collected: CollectedRollouts) -> dict[str, Tensor]:
        """Return [R] of each fact that the estimator reads."""
        config, scored = self.advantage_estimator.config, collected.scored
        facts: dict[str, Tensor] = {}
        for name in config.row_facts if isinstance(config, AdvantageConfig) else ():
            if name == "tasks":
                numbers: dict[str, int] = {}
                tasks = [numbers.setdefault(sample.source, len(numbers)) for sample in scored.samples]
                facts[name] = torch.tensor(tasks, dtype=torch.long)
            elif name == "recorded_norms":
                facts[name] = recorded_squared_norms(scored.rollouts)
            else:
                total = scored.total.where(collected.in_baseline, torch.nan)
                varies = total.isfinite() & (group_spread(total, collected.groups) > 0)
                facts[name] = exact_squared_norms(self.policy, scored.rollouts, varies)
        return facts

    def _branch_credit(self, collected: CollectedRollouts) -> Tensor | None:
        """Return [R, T] advantages of steps that rows share until they branch; None for whole trajectories."""
        config, scored = self.advantage_estimator.config, collected.scored
        if not isinstance(config, AdvantageConfig) or config.baseline != "branch":
            return None
        rewards = scored.total.where(collected.in_baseline, torch.nan)
        return self.advantage_estimator.limited(branch_credit(config, rewards, scored.group_index, scored.rollouts))

    def _turn_credit(self, collected: CollectedRollouts, advantages: Tensor) -> Tensor | None:
        """Return [R, K] advantages of turns; None for whole trajectories."""
        config, scored = self.advantage_estimator.config, collected.scored
        if not isinstance(config, AdvantageConfig) or config.turns is None:
            return None
        total = scored.total.where(collected.in_baseline, torch.nan)
        found = turn_advantages(config, advantages, total, collected.groups, scored.rollouts)
        return self.advantage_estimator.limited(found)

    def _without_empty_turns(self, collected: CollectedRollouts) -> CollectedRollouts:
        return collected if self.turn_filter is None else self.turn_filter(collected)[0]

    def _learn_rewards(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Let rewards learn from all answers in process 0, and pass their state on to the other processes."""
        items = shared_inputs(rollouts)
        if processes.size() == 1:
            return self.suite.learn(items)
        metrics, state = processes.on_main(lambda: (self.suite.learn(items), self.suite.state_dict()))
        if not processes.is_main():
            self.suite.load_state_dict(state)
        return metrics

    def _learn_prompts(self, collected: CollectedRollouts) -> None:
        """Pass the outcomes of all prompts on to their source, with the whole answers that it reads."""
        found = _outcomes(collected)
        outcomes = [outcome for outcome, _ in found]
        wanted = [
            None if place is None else rows[place]
            for place, (_, rows) in zip(self.prompts.wanted_answers(outcomes), found, strict=True)
        ]
        if any(row is not None for row in wanted):
            media = shared_media(collected.scored.rollouts, [row for row in wanted if row is not None])
            outcomes = [
                outcome if row is None else replace(outcome, answer=media[row])
                for outcome, row in zip(outcomes, wanted, strict=True)
            ]
        self.prompts.learn(outcomes)

    def _micro_batches(
        self, collected: CollectedRollouts, advantages: Tensor, branches: Tensor | None, turns: Tensor | None
    ) -> list[MicroBatch]:
        """Return a micro-batch for each rollout with rows to train on; other rows are cut off or left out of the loss.

        `advantages` are [R]; `branches` are [R, T] and `turns` [R, K], or None for advantages of whole trajectories.
        """
        scored, sizes = collected.scored, collected.scored.sizes
        apart = self.advantage_estimator.parts(scored.output, collected.groups)
        valid = scored.total.isfinite() & collected.trained
        batches = []
        parts = zip(
            scored.rollouts,
            scored.origins,
            *(each.split(sizes) for each in (advantages, valid, collected.trained, scored.total)),
            [None] * len(sizes) if branches is None else branches.split(sizes),
            [None] * len(sizes) if turns is None else turns.split(sizes),
            [None] * len(sizes) if apart is None else apart.split(sizes, dim=1),
            strict=True,
        )
        for rollout, origin, own, known, trained, totals, branched, by_turn, channels in parts:
            if not trained.any():
                continue
            if self._selects_rows and not trained.all():
                rows = trained.nonzero()[:, 0]
                rollout, own, known, totals = rollout.select(rows.tolist()), own[rows], known[rows], totals[rows]
                by_turn = None if by_turn is None else by_turn[rows]
                channels = None if channels is None else channels[:, rows]
            mask = rollout.mask
            steps = self.advantage_estimator.decisions(own, mask) if branched is None else branched.to(mask.device)
            if by_turn is not None:
                steps = credit_by_turn(by_turn.to(mask.device), rollout.channel, mask)
            demonstrated = origin is Origin.DEMONSTRATION and self.demonstrations is not None
            if demonstrated and self.demonstrations is not None:
                steps = steps * self.demonstrations.scale(rollout)
            batches.append(MicroBatch(rollout, own, known, steps, channels, sampled=not demonstrated, totals=totals))
        return batches

    def _replay_reader(self) -> ReplayReader:
        policy: TeacherForcingPolicy = self.policy  # type: ignore[assignment]  # __post_init__ checks the capability
        return ReplayReader(policy, self.prompts.sample, self.micro_batch)

    def _reward_metrics(self, collected: CollectedRollouts) -> dict[str, float]:
        """Return the metrics of the on-policy rows."""
        scored, rows = collected.scored, _indices(collected.on_policy)
        samples, lengths = scored.samples, _lengths(scored)
        media = [each for rollout in scored.rollouts for each in rollout.media]
        diversity = group_diversity([media[row] for row in rows], scored.group_index[rows].tolist())
        return ({} if diversity is None else {"diversity": diversity}) | reward_metrics(
            select_rows(scored.output, rows),
            self.suite,
            [samples[row].source for row in rows],
            scored.group_index[rows],
            None if lengths is None else [lengths[row] for row in rows],
        )

    def _demonstration_metrics(self, scored: ScoredRollouts) -> dict[str, float]:
        if self.demonstrations is None:
            return {}
        total = scored.total[scored.is_from(Origin.DEMONSTRATION)]
        return {"demonstrations/rows": float(len(total)), "demonstrations/reward": float(total.nanmean())}


def live_share(batches: Sequence[MicroBatch], places: int) -> float:
    """Return the number of rows with an advantage over `places`, the rows of an iteration before any is replaced."""
    return sum(int((batch.step_advantages != 0).any(1).sum()) for batch in batches) / max(1, places)


def interleaved(many: Sequence[MicroBatch], few: Sequence[MicroBatch]) -> list[MicroBatch]:
    """Merge two lists so that both are spread evenly over the updates of an iteration."""
    placed = [((n + 0.5) / len(batches), batch) for batches in (many, few) for n, batch in enumerate(batches)]
    return [batch for _, batch in sorted(placed, key=lambda each: each[0])]


def _indices(selected: Tensor) -> list[int]:
    return selected.nonzero()[:, 0].tolist()


def _lengths(scored: ScoredRollouts) -> list[int] | None:
    """Return the number of tokens of each row; None where answers have no tokens."""
    if any(rollout.token_ids is None for rollout in scored.rollouts):
        return None
    return [len(ids) for rollout in scored.rollouts for ids in rollout.token_ids or ()]


def _outcomes(collected: CollectedRollouts) -> list[tuple[Outcome, list[int]]]:
    """Return the rewards and answers of each prompt, and the row of each of the rewards."""
    scored, samples = collected.scored, collected.scored.samples
    total, places = scored.total.tolist(), scored.places()
    groups: dict[int, list[int]] = {}
    for row, (group, counts) in enumerate(zip(scored.group_index.tolist(), collected.on_policy.tolist(), strict=True)):
        if counts:
            groups.setdefault(group, []).append(row)
    outcomes = []
    for _, rows in sorted(groups.items()):
        answers = [_words(scored.rollouts[places[row][0]], places[row][1]) for row in rows]
        known = [row for row in rows if math.isfinite(total[row])]
        outcome = Outcome(samples[rows[0]], [total[row] for row in known], [a for a in answers if a])
        outcomes.append((outcome, known))
    return outcomes


def _zero_variance_share_trained(collected: CollectedRollouts) -> float:
    """Return the share of groups without a signal, in [0, 1], over all answers that a group's baseline has."""
    rows = collected.in_baseline
    return zero_variance_share(collected.scored.total[rows], collected.groups[rows])


def _words(rollout: Rollout, row: int) -> Sequence[int | str]:
    """Return an answer's tokens, or the words of a text without tokens; nothing for an image or a video."""
    if rollout.token_ids is not None:
        return rollout.token_ids[row]
    media = rollout.media[row]
    return media.split() if isinstance(media, str) else ()
