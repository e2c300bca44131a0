"""The training loop: collect experience, accumulate gradients, update, evaluate, save."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from mmrl.config.named_models import POLICY
from mmrl.config.policy import Precision
from mmrl.config.sampling import SamplingKind
from mmrl.config.training import OptimizerConfig, TrainingConfig
from mmrl.distributed import processes
from mmrl.distributed.gradients import check_replicas
from mmrl.distributed.position import position
from mmrl.errors import RunError, RunStopped
from mmrl.policy import Capability, Policy
from mmrl.seeds import fold_in
from mmrl.training.experience import Experience, ExperienceSource, MicroBatch
from mmrl.training.hacking_gauge import HackingGauge
from mmrl.training.learner import Learner
from mmrl.training.monitors import KLEarlyStopping, ZeroAdvantageMonitor
from mmrl.training.objectives.base import MetricAccumulator, Objective
from mmrl.training.rollouts.lagged_rollouts import LaggedRollouts
from mmrl.training.rollouts.streamed_rollouts import StreamedRollouts
from mmrl.training.run.checkpoints import Checkpoints, TrainerState
from mmrl.training.run.display import Display, StepReport, by_source
from mmrl.training.run.stop_signals import stop_requests
from mmrl.training.run.timers import Phases, combined
from mmrl.training.run.trackers import Tracker
from mmrl.training.run_models import NamedModels

Evaluate = Callable[[int], Mapping[str, float]]
"""A function that scores the policy at a step, saves its answers, and returns means by name."""


@dataclass
class TrainingLoop:
    """A loop that trains one policy with one objective from one source of experience.

    All randomness follows from `seed` and the step, so a resumed run computes what an uninterrupted one computes.
    """

    policy: Policy
    objective: Objective
    source: ExperienceSource
    optimizer_config: OptimizerConfig
    config: TrainingConfig
    seed: int
    run: Path
    trackers: list[Tracker]
    display: Display
    evaluate: Evaluate | None = None
    evaluate_every: int | None = None
    best: str = "total"  # the metric of evaluations that the best checkpoint has the highest mean of
    warnings: Callable[[], Sequence[str]] | None = None  # about the last evaluation
    name: str = "run"
    recipe: Mapping[str, Any] = field(default_factory=dict)  # the whole configuration, saved in checkpoints
    precision: Precision = "float32"  # of the policy's computations
    sampling: SamplingKind = "denoising"  # with the precision, it decides the bound on the replay gap
    ahead: LaggedRollouts | StreamedRollouts | None = None  # the source, or the one behind it, where a thread samples
    models: NamedModels | None = None  # beside the policy
    others: Mapping[str, Learner] = field(default_factory=dict)  # the models beside the policy that are trained
    hacking: HackingGauge | None = None  # the one that the source asks, too
    step: int = field(default=0, init=False)  # iterations done
    tokens: int = field(default=0, init=False)  # of all answers trained on; 0 for policies that draw

    def __post_init__(self) -> None:
        self.learner = Learner(self.policy, self.optimizer_config, self.precision)
        self.learners = {POLICY: self.learner, **self.others}
        self.checkpoints = Checkpoints(self.run, self.config.keep_every)
        self._best_reward = -math.inf
        self._zero_advantages = ZeroAdvantageMonitor(self.display.message)
        self._kl_stop = KLEarlyStopping(self.config.max_kl)

    def train(self) -> None:
        """Train to the last iteration.

        Raises:
            RunError: the run cannot continue; the last checkpoint stays.
            RunStopped: Ctrl-C or SIGTERM came; a checkpoint of the last finished iteration is written.
        """
        position.run, position.saved = self.run, self.step or None
        check_replicas(self._trained_parameters())
        self.display.start(self.name, self.config.iterations)
        try:
            if self.step == 0:
                self._evaluate()
            with stop_requests(self.display.message) as stop_requested:
                while self._continues():
                    if self._step(stop_requested) and self._continues():
                        self.save()
                        raise RunStopped(
                            f"stopped after iteration {self.step} of {self.config.iterations}, which is saved; "
                            f"go on with: mmrl train --resume {self.run}"
                        )
            if self._kl_stop.exceeded:
                self.display.message(
                    f"ended after iteration {self.step} of {self.config.iterations}: {self._kl_stop.describe()}. "
                    f"To go on: mmrl train --resume {self.run} training.max_kl=..."
                )
            elif self.hacking is not None and self.hacking.stops:
                self.display.message(
                    f"ended after iteration {self.step} of {self.config.iterations}: {self.hacking.describe_stop()}. "
                    f"To go on: mmrl train --resume {self.run} training.hacking.then=warn"
                )
            elif self._tokens_are_spent:
                self.display.message(
                    f"ended after iteration {self.step} of {self.config.iterations}: {self.tokens} tokens, "
                    f"training.max_tokens is {self.config.max_tokens}. "
                    f"To go on: mmrl train --resume {self.run} training.max_tokens=..."
                )
        except KeyboardInterrupt:
            last = self.checkpoints.index().get("last", "none")
            self.display.message(
                f"left at once, the last checkpoint is {last}; go on with: mmrl train --resume {self.run}"
            )
            raise
        except OSError as err:  # a full disk, a folder that went away: no metrics or pictures with holes in them
            raise RunError(
                f"stopped after iteration {self.step}: {err}. Fix that, then go on from the last checkpoint "
                f"with: mmrl train --resume {self.run}"
            ) from err
        finally:
            self.display.close()
            for tracker in self.trackers:
                tracker.close()
            if self.ahead is not None:
                self.ahead.close()

    def _step(self, stop_requested: Callable[[], bool]) -> bool:
        """Run an iteration, then the evaluation and checkpoint that follow it; return True if a process shall stop."""
        stops = self._report(*self.iterate(), stop_requested)
        last = not self._continues()
        evaluates = last or bool(self.evaluate_every and self.step % self.evaluate_every == 0)
        score = self._evaluate() if evaluates else None
        if last or score is not None or self.step % self.config.save_every == 0:
            self.save(score)
        elif not evaluates and processes.size() > 1:
            return stops  # of a moment ago
        return any(processes.gather(stop_requested()))

    def _continues(self) -> bool:
        if self.hacking is not None and self.hacking.stops:
            return False
        return self.step < self.config.iterations and not self._kl_stop.exceeded and not self._tokens_are_spent

    @property
    def _tokens_are_spent(self) -> bool:
        return self.config.max_tokens is not None and self.tokens >= self.config.max_tokens

    def iterate(self) -> tuple[dict[str, float], Phases]:
        """Collect experience, then make `epochs` passes of `updates` updates over it; return metrics and timings."""
        phases, accumulator = Phases(), MetricAccumulator()
        position.iteration = self.step + 1
        if isinstance(self.ahead, StreamedRollouts):
            experience, gap = self._learn_streamed(self.ahead, phases, accumulator)
        else:
            experience, gap = self._learn_collected(phases, accumulator)
        with phases("update"):
            self.objective.finish_iteration(self._leading.updates)
            if self.models is not None:
                self.models.finish_iteration(self.step + 1)
        accumulated = accumulator.over_processes().values()
        metrics = experience.metrics | accumulated | self._leading.loss_scale.metrics() | {"replay_gap": gap}
        with phases("update"):
            rollouts = [batch.rollout for batch in experience.micro_batches if batch.term is None]
            if POLICY in self.objective.trained:
                with nullcontext() if self.config.max_kl is None else self.learner.layout.whole():
                    self._kl_stop.update(metrics, self.policy, rollouts, fold_in(self.seed, self.step))
        if self.hacking is not None and POLICY in self.objective.trained:
            self.hacking.update(self.step + 1, metrics)
        self.step += 1
        self.tokens += int(experience.metrics.get("tokens", 0))
        return metrics, phases

    def _learn_collected(self, phases: Phases, accumulator: MetricAccumulator) -> tuple[Experience, float]:
        """Collect all experience of the iteration, then make its updates; return it with the replay gap."""
        with self._whole():
            experience = self.source.collect(self.step, self.step / self.config.iterations, phases)
            self._release_models()
            gap = self._sampled_gap(experience)
        with phases("update"):
            for epoch in range(self.config.epochs):
                for number, batches in enumerate(self._split(experience.micro_batches)):
                    first = epoch == number == 0
                    gap = max(gap, self._update(batches, accumulator, check_gap=first))
        self._release_models()
        return experience, gap

    def _learn_streamed(
        self, source: StreamedRollouts, phases: Phases, accumulator: MetricAccumulator
    ) -> tuple[Experience, float]:
        """Backpropagate each micro-batch as soon as it comes, then make one update; return as `_learn_collected`.

        The loss is divided by the number of terms that the iteration has if all micro-batches are as the first one, and
        the gradient is scaled at the end if that was wrong: if it was right, it is that of `_update` to the bit.
        """
        self.learner.zero_grad()
        first, gap, total, expected = MetricAccumulator(), 0.0, 0.0, 1.0
        batches: list[MicroBatch] = []
        for batch in source.batches(self.step, self.step / self.config.iterations, phases):
            with phases("update"):
                amount = self.objective.loss_normalizer(batch)
                if not batches:
                    gap = 0.0 if source.schedule.lag else self._sampled_gap(Experience([batch], {}))
                    expected = amount / batch.rollout.rows * source.rows() or 1.0
                seed = fold_in(self.seed, self.step, self.learner.updates, len(batches))
                self.objective.backward(batch, self.learner.loss_scale.factor * amount / expected, seed, first)
                total, batches = total + amount, [*batches, batch]
        experience = replace(source.finish(), micro_batches=batches)
        gap = max(gap, self._sampled_gap(experience) if experience.gap is not None else 0.0)
        with phases("update"):
            if total and total != expected:
                for parameter in self.learner.parameters.values():
                    if parameter.grad is not None:
                        parameter.grad.mul_(expected / total)
            gap = max(gap, self._optimize(accumulator, first))
        return experience, gap

    def save(self, score: float | None = None) -> Path:
        """Write a checkpoint and return its folder. With a moving average, a model's files contain the average.

        Raises:
            RunError: the processes have different parameters, or the checkpoint cannot be written.
        """
        check_replicas(self._trained_parameters())
        tensors = self.learner.tensors()
        for name, learner in self.others.items():
            tensors |= {f"{part}.{name}": values for part, values in learner.tensors().items()}
        if objective := self.objective.state_dict():
            tensors["objective"] = objective
        if self.models is not None and (models := self.models.state_dict()):
            tensors["models"] = models
        if self.ahead is not None and (behaviour := self.ahead.tensors()):
            tensors["behaviour"] = behaviour
        tensors = {part: {k: t.clone() for k, t in values.items()} for part, values in tensors.items()}
        values = {
            **self.learner.values(),
            "others": {name: learner.values() for name, learner in self.others.items()},
            "best_reward": self._best_reward if math.isfinite(self._best_reward) else None,
            "source": self.source.state_dict(),
            "kl": self._kl_stop.last,
            "tokens": self.tokens,
            "hacking": self.hacking.state_dict() if self.hacking is not None else {},
            "recipe": dict(self.recipe),
        }
        with self.averaged(), self.learner.layout.saving(), position.phase("save"):
            folder = processes.on_main(lambda: self._write(TrainerState(self.step, tensors, values), score))
        position.saved = self.step
        return folder

    def _write(self, state: TrainerState, score: float | None) -> Path:
        others = {name: learner.model for name, learner in self.others.items()}
        folder = self.checkpoints.save(self.policy, state, score, others)
        position.saved = state.step  # before the others know: one of them may have ended
        return folder

    def resume(self) -> None:
        """Continue exactly from the last checkpoint of the run's folder; from the beginning if none was finished."""
        with position.phase("resume"):
            self._resume()

    def _resume(self) -> None:
        if not processes.on_main(self.checkpoints.any_finished):
            self.display.message(f"{self.run} has no checkpoint yet: starting from the beginning")
            for tracker in self.trackers:
                tracker.truncate_after(-1)
            return
        state = self.checkpoints.load_state()
        processes.on_main(self.checkpoints.repair)
        self.learner.load(state.tensors, state.values)
        for name, learner in self.others.items():
            parts = {part: state.tensors.get(f"{part}.{name}", {}) for part in ("parameters", "optimizer", "average")}
            if name not in (saved := state.values.get("others", {})):
                raise RunError(
                    f"the checkpoint has no model {name} that is trained (models.{name}.train): start a new run"
                )
            learner.load(parts, saved[name])
        self.objective.load_state_dict(state.tensors.get("objective", {}))
        if self.models is not None:
            self.models.load_state_dict(state.tensors.get("models", {}))
        self.source.load_state_dict(state.values["source"])
        if self.ahead is not None:
            self.ahead.load_tensors(state.tensors.get("behaviour", {}))
        self.step = state.step
        self.tokens = state.values.get("tokens", 0)
        best = state.values["best_reward"]
        self._best_reward = -math.inf if best is None else best
        self._kl_stop.last = state.values.get("kl")
        if self.hacking is not None:
            self.hacking.load_state_dict(state.values.get("hacking", {}), self.step)
        position.saved = self.step
        for tracker in self.trackers:
            tracker.truncate_after(self.step)

    def _update(self, batches: list[MicroBatch], accumulator: MetricAccumulator, check_gap: bool) -> float:
        """Make one optimizer update. Return the replay gap with `check_gap`, else 0."""
        for learner in self._active():
            learner.zero_grad()
        first, leading = MetricAccumulator(), self._leading
        seeds = [fold_in(self.seed, self.step, leading.updates, number) for number in range(len(batches))]
        with self._whole():
            self.objective.accumulate(
                batches,
                leading.loss_scale.factor,
                seeds,
                first if check_gap else accumulator,
                leading.layout.gathers_in_calls,
            )
        return self._optimize(accumulator, first if check_gap else None)

    def _optimize(self, accumulator: MetricAccumulator, first: MetricAccumulator | None) -> float:
        """Make an update with the gradients that are there; `first` has the metrics of an iteration's first one.

        Return the replay gap with `first`, else 0.
        """
        gap = 0.0
        if first is not None:
            changes = {name: f"{self._prefix(name)}log_prob_change_max" for name in self.objective.trained}
            gaps = {name: processes.largest(first.values().get(key, 0.0)) for name, key in changes.items()}
            for name, own in gaps.items():
                self._check_replay_gap(own, self.learners[name])
            gap = gaps[self.objective.trained[0]]
            accumulator.absorb(first, without=tuple(changes.values()))
        for name in self.objective.trained:
            learner, prefix = self.learners[name], self._prefix(name)
            total = self.config.iterations * self.config.epochs * self.config.updates
            made = learner.update(total, self.step + 1, self.objective.lr_scale)
            if made is not None:
                accumulator.mean(f"{prefix}grad_norm", made.grad_norm)
                accumulator.mean(f"{prefix}learning_rate", made.learning_rate)
        return gap

    def _prefix(self, name: str) -> str:
        """Return what the metrics of a trained model begin with: nothing for the one whose rollouts are learnt from."""
        return "" if name == self.objective.trained[0] else f"{name}/"

    def _split(self, batches: list[MicroBatch]) -> list[list[MicroBatch]]:
        """Split micro-batches evenly over the updates; there are fewer updates where there are fewer micro-batches."""
        cuts = [round(k * len(batches) / self.config.updates) for k in range(self.config.updates + 1)]
        return [batches[start:end] for start, end in pairwise(cuts) if start < end]

    @property
    def _leading(self) -> Learner:
        """The model whose rollouts are learnt from."""
        return self.learners[self.objective.trained[0]]

    def _active(self) -> list[Learner]:
        """Return the models that the objective trains now."""
        return [self.learners[name] for name in self.objective.trained]

    def _trained_parameters(self) -> list[nn.Parameter]:
        return [parameter for learner in self.learners.values() for parameter in learner.parameters.values()]

    def _sampled_gap(self, experience: Experience) -> float:
        """Return the replay gap that is measured before an update; 0 where the first update measures it."""
        if experience.gap is None:
            return 0.0 if Capability.LOG_PROBS in self.objective.needs else self._velocity_gap(experience)
        gap = processes.largest(experience.gap)
        self._check_replay_gap(gap)
        return gap

    def _velocity_gap(self, experience: Experience) -> float:
        """Return the replay gap of each process's first rollout, the largest of them."""
        own = next((batch.rollout for batch in experience.micro_batches if not batch.rollout.remote), None)
        gap = 0.0
        if own is not None:
            with torch.no_grad(), self.objective.sampling_weights():
                gap = cast(Policy, self._leading.model).replay_gap(own)
        gap = processes.largest(gap)
        self._check_replay_gap(gap)
        return gap

    def _check_replay_gap(self, gap: float, learner: Learner | None = None) -> None:
        """Raise unless a gap is within the bound of a learner's decisions; None: those of the leading one."""
        bound = self.config.replay_gap_bound(self.precision, (learner or self._leading).sampling or self.sampling)
        if not gap <= bound:
            raise RunError(
                f"replay differs from the rollout by {gap:.1e} (training.max_replay_gap is "
                f"{bound:.1e}): the gradient would be wrong. Something between rollout and update "
                "is not repeated exactly (a batch of another shape, dropout, a low-precision kernel); "
                "no parameter was updated with it"
            )

    def _evaluate(self) -> float | None:
        """Evaluate and log. Return the mean that decides the best checkpoint, of `best`; None without an evaluation.

        Raises:
            RunError: evaluations have no such metric.
        """
        if self.evaluate is None:
            return None
        if self.ahead is not None:
            with position.phase("wait"):
                self.ahead.wait_idle()  # an evaluation has the rewards for itself
        with self.averaged(), self.learner.layout.whole(copies=False), position.phase("evaluate"):
            metrics = dict(self.evaluate(self.step))
        self._release_models()
        for tracker in self.trackers:
            tracker.log("evaluation", self.step, metrics)
        sources = by_source(metrics, "evaluation_by_source/")
        summary = "  ".join(
            f"{name.replace('evaluation/', '')} {value:.3f}"
            for name, value in metrics.items()
            if "by_source" not in name
            and not name.startswith(("evaluation_gap/", "evaluation_parted"))
            and (not sources or name.endswith("evaluation/total"))
        )
        self.display.message(f"evaluation after {self.step} iterations: {summary}{f' ({sources})' if sources else ''}")
        for text in self.warnings() if self.warnings else ():
            self.display.message(f"caution: {text}")
        if (name := f"evaluation/{self.best}") not in metrics:
            known = [each.removeprefix("evaluation/") for each in metrics if each.startswith("evaluation/")]
            raise RunError(
                f"evaluation.best: evaluations have no metric {self.best}, by which the best checkpoint would be "
                f"chosen; there are {', '.join(known)}"
            )
        return metrics[name]

    def _report(self, metrics: dict[str, float], phases: Phases, stop_requested: Callable[[], bool]) -> bool:
        """Log and display an iteration; return True if a process shall stop."""
        reward = metrics.get("reward/total", math.nan)
        self._best_reward = max(self._best_reward, reward)
        if Capability.DECODE_WITH_GRAD not in self.objective.needs:  # such objectives compare no answers
            self._zero_advantages.update(self.step, metrics.get("zero_variance_share", 0.0))
        if self.hacking is not None and self.hacking.message:
            self.display.message(f"caution: {self.hacking.message}")
        timings, stops = zip(*processes.gather((phases.metrics(), stop_requested())), strict=True)
        for tracker in self.trackers:
            tracker.log("train", self.step, metrics | combined(timings))
            if len(timings) > 1:
                each = {f"{rank}/{name}": own[name] for rank, own in enumerate(timings) for name in own}
                tracker.log("processes", self.step, each)
        self.display.step(
            StepReport(
                index=self.step,
                total=self.config.iterations,
                reward=reward,
                best=self._best_reward,
                replay_gap=metrics["replay_gap"],
                seconds=phases.total_seconds,
                metrics=metrics,
            )
        )
        return any(stops)

    def _release_models(self) -> None:
        """Free the device's copies of offloaded models; `evaluation.logits` and writers of pairs leave theirs."""
        if self.models is not None:
            self.models.release()

    def _whole(self) -> AbstractContextManager[None]:
        """Return a context in which the policy is whole, and the copies that the objective uses."""
        return self.learner.layout.whole(self.objective.uses_copies())

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """While open, each trained model that has a moving average of its parameters computes with it."""
        with ExitStack() as stack:
            for learner in self.learners.values():
                stack.enter_context(learner.averaged())
            yield
