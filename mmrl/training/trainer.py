"""The loop: collect experience, accumulate gradients, update, look, save."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from torch import nn

from mmrl.config.optimizer import OptimizerConfig
from mmrl.config.policy import Precision
from mmrl.config.sampling import SamplingKind
from mmrl.config.training import TrainingConfig
from mmrl.errors import RunError, RunStopped
from mmrl.policy import Capability, Policy
from mmrl.seeds import fold_in
from mmrl.training.ema import ParameterCopy
from mmrl.training.experience import Experience, ExperienceSource, MicroBatch
from mmrl.training.kl_early_stopping import KLEarlyStopping
from mmrl.training.loss_scale import LossScale
from mmrl.training.objectives.base import MetricAccumulator, Objective
from mmrl.training.run.checkpoints import (
    Checkpoints,
    TrainerState,
    load_optimizer_tensors,
    load_parameters,
    optimizer_tensors,
)
from mmrl.training.run.display import Display, StepReport, by_source
from mmrl.training.run.timers import Phases
from mmrl.training.run.trackers import Tracker

Evaluate = Callable[[int], Mapping[str, float]]
"""Scores the policy as it is at a step, keeps the pictures, and returns means by name; `score` picks the best."""


@dataclass
class Trainer:
    """Trains one policy with one objective from one source of experience.

    All randomness follows from `seed` and the step, so a resumed run repeats what it would have done.
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
    cautions: Callable[[], Sequence[str]] | None = None  # what is to be said about the last evaluation
    name: str = "run"
    recipe: Mapping[str, Any] = field(default_factory=dict)  # the whole configuration, which checkpoints remember
    precision: Precision = "float32"  # what the policy computes in
    sampling: SamplingKind = "denoising"  # with the precision, it says how far a replay may be from its rollout
    step: int = field(default=0, init=False)  # iterations done
    updates: int = field(default=0, init=False)  # optimizer updates done

    def __post_init__(self) -> None:
        settings = self.optimizer_config
        self.parameters = self.policy.parameters_to_train()
        self.optimizer = torch.optim.AdamW(
            self._parameter_groups(),
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
        self.average = ParameterCopy(self.parameters) if settings.ema is not None else None
        self.loss_scale = LossScale(self.precision)
        self.checkpoints = Checkpoints(self.run)
        self._best_reward = -math.inf
        self._signal = ZeroAdvantageMonitor(self.display.say)
        self._budget = KLEarlyStopping(self.config.max_kl)

    def train(self) -> None:
        """Train to the last iteration.

        Raises:
            RunError: the run must not go on; the last checkpoint stays.
            RunStopped: Ctrl-C or SIGTERM came; a checkpoint of the last finished iteration is written.
        """
        self.display.start(self.name, self.config.iterations)
        try:
            if self.step == 0:
                self._look()
            with stop_requests(self.display.say) as stop_asked:
                while self._goes_on():
                    self._step()
                    if stop_asked() and self._goes_on():
                        self.save()
                        raise RunStopped(
                            f"stopped after iteration {self.step} of {self.config.iterations}, which is saved; "
                            f"go on with: mmrl train --resume {self.run}"
                        )
            if self._budget.spent:
                self.display.say(
                    f"ended after iteration {self.step} of {self.config.iterations}: {self._budget.told()}. To go on: "
                    f"mmrl train --resume {self.run} training.max_kl=..."
                )
        except KeyboardInterrupt:
            self.display.say(f"left at once, in iteration {self.step + 1}; go on with: mmrl train --resume {self.run}")
            raise
        except OSError as err:  # a full disk, a folder that went away: no metrics or pictures with holes in them
            raise RunError(
                f"stopped after iteration {self.step}: {err}. When that is mended, go on from the last checkpoint "
                f"with: mmrl train --resume {self.run}"
            ) from err
        finally:
            self.display.close()
            for tracker in self.trackers:
                tracker.close()

    def _step(self) -> None:
        """An iteration, and what is due after it."""
        self._report(*self.iterate())
        last = not self._goes_on()
        score = None
        if last or (self.evaluate_every and self.step % self.evaluate_every == 0):
            score = self._look()
        if last or score is not None or self.step % self.config.save_every == 0:
            self.save(score)

    def _goes_on(self) -> bool:
        return self.step < self.config.iterations and not self._budget.spent

    def iterate(self) -> tuple[dict[str, float], Phases]:
        """One iteration: experience, then `epochs` passes of `updates` updates over it."""
        phases, gauges = Phases(), MetricAccumulator()
        experience = self.source.collect(self.step, self.step / self.config.iterations, phases)
        gap = 0.0 if Capability.LOG_PROBS in self.objective.needs else self._velocity_gap(experience)
        with phases("update"):
            for epoch in range(self.config.epochs):
                for number, share in enumerate(self._shares(experience.micro_batches)):
                    first = epoch == number == 0
                    gap = max(gap, self._update(share, gauges, check_gap=first))
            self.objective.finish_iteration(self.updates)
        metrics = experience.metrics | gauges.values() | self.loss_scale.metrics() | {"replay_gap": gap}
        with phases("update"):
            rollouts = [batch.rollout for batch in experience.micro_batches]
            self._budget.see(metrics, self.policy, rollouts, fold_in(self.seed, self.step))
        self.step += 1
        return metrics, phases

    def save(self, score: float | None = None) -> Path:
        """Write a checkpoint. With a moving average, the policy's files hold the average."""
        tensors = {
            "parameters": {name: p.detach() for name, p in self.parameters.items()},
            "optimizer": optimizer_tensors(self.optimizer),
        }
        if objective := self.objective.state_dict():
            tensors["objective"] = objective
        if self.average is not None:
            tensors["average"] = self.average.state_dict()
        tensors = {part: {k: t.clone() for k, t in held.items()} for part, held in tensors.items()}
        values = {
            "updates": self.updates,
            "best_reward": self._best_reward if math.isfinite(self._best_reward) else None,
            "loss_scale": self.loss_scale.state_dict(),
            "source": self.source.state_dict(),
            "kl": self._budget.last,
            "recipe": dict(self.recipe),
        }
        with self.averaged():
            return self.checkpoints.save(self.policy, TrainerState(self.step, tensors, values), score)

    def resume(self) -> None:
        """Continue exactly from the last checkpoint of the run's folder; if none was finished, from the beginning."""
        if not self.checkpoints.begun():
            self.display.say(f"{self.run} has no checkpoint yet: starting from the beginning")
            for tracker in self.trackers:
                tracker.truncate_after(-1)
            return
        state = self.checkpoints.load_state()
        self.checkpoints.mend()
        load_parameters(self.parameters, state.tensors["parameters"])
        load_optimizer_tensors(self.optimizer, state.tensors["optimizer"])
        self.objective.load_state_dict(state.tensors.get("objective", {}))
        if self.average is not None:
            self.average.load_state_dict(state.tensors["average"])
        self.source.load_state_dict(state.values["source"])
        self.step, self.updates = state.step, state.values["updates"]
        best = state.values["best_reward"]
        self._best_reward = -math.inf if best is None else best
        self.loss_scale.load_state_dict(state.values.get("loss_scale", {}))
        self._budget.last = state.values.get("kl")
        self.policy.version = self.updates
        for tracker in self.trackers:
            tracker.truncate_after(self.step)

    def _update(self, share: list[MicroBatch], gauges: MetricAccumulator, check_gap: bool) -> float:
        """One optimizer update; returns the replay gap where this update can show it, else 0."""
        self.optimizer.zero_grad(set_to_none=True)
        before = MetricAccumulator()
        amounts = [self.objective.loss_normalizer(batch) for batch in share]
        total = sum(amounts) or 1.0
        for number, (batch, amount) in enumerate(zip(share, amounts, strict=True)):
            held = before if check_gap else gauges
            part = self.loss_scale.factor * amount / total
            self.objective.backward(batch, part, fold_in(self.seed, self.step, self.updates, number), held)
        gap = 0.0
        if check_gap:
            gap = before.values().get("log_prob_change_max", 0.0)
            self._refuse_gap(gap)
            gauges.absorb(before, without=("log_prob_change_max",))
        self.loss_scale.unscale(self.parameters.values())
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.optimizer_config.max_grad_norm).item()
        if not self.loss_scale.accepts(norm):
            return gap
        if not math.isfinite(norm):
            raise RunError(
                f"the gradient's norm is {norm} at iteration {self.step + 1}: lower optimizer.lr, or use float32; "
                "the last checkpoint is kept"
            )
        rate = self._learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["lr_scale"]
        self.optimizer.step()
        self.updates += 1
        self.policy.version = self.updates
        if self.average is not None and self.optimizer_config.ema is not None:
            self.average.follow(min(self.optimizer_config.ema, self.updates / (self.updates + 10)))
        gauges.mean("grad_norm", norm)
        gauges.mean("learning_rate", rate)
        return gap

    def _learning_rate(self) -> float:
        settings = self.optimizer_config
        total = self.config.iterations * self.config.epochs * self.config.updates
        return learning_rate(settings.lr, self.updates, total, settings.warmup, settings.schedule)

    def _shares(self, batches: list[MicroBatch]) -> list[list[MicroBatch]]:
        """The micro-batches of each update, as even as they go; fewer updates where there are fewer micro-batches."""
        cuts = [round(k * len(batches) / self.config.updates) for k in range(self.config.updates + 1)]
        return [batches[start:end] for start, end in pairwise(cuts) if start < end]

    def _parameter_groups(self) -> list[dict[str, Any]]:
        """One for each pace, in the order in which the policy names its parameters."""
        groups: dict[float, list[nn.Parameter]] = {}
        for name, parameter in self.parameters.items():
            groups.setdefault(self.policy.lr_scale(name), []).append(parameter)
        return [{"params": parameters, "lr_scale": scale} for scale, parameters in groups.items()]

    def _velocity_gap(self, experience: Experience) -> float:
        with torch.no_grad(), self.objective.sampling_weights():
            gap = self.policy.replay_gap(experience.micro_batches[0].rollout)
        self._refuse_gap(gap)
        return gap

    def _refuse_gap(self, gap: float) -> None:
        bound = self.config.replay_gap_bound(self.precision, self.sampling)
        if not gap <= bound:
            raise RunError(
                f"replay differs from the rollout by {gap:.1e} (training.max_replay_gap is "
                f"{bound:.1e}): the gradient would be wrong. Something between rollout and update "
                "is not repeated exactly (a batch of another shape, dropout, a low-precision kernel); "
                "nothing was updated with it"
            )

    def _look(self) -> float | None:
        """Evaluate, log, and return what decides the best checkpoint."""
        if self.evaluate is None:
            return None
        with self.averaged():
            metrics = dict(self.evaluate(self.step))
        for tracker in self.trackers:
            tracker.log("evaluation", self.step, metrics)
        sources = by_source(metrics, "evaluation_by_source/")
        shown = "  ".join(
            f"{name.replace('evaluation/', '')} {value:.3f}"
            for name, value in metrics.items()
            if "by_source" not in name
            and not name.startswith(("evaluation_gap/", "evaluation_parted"))
            and (not sources or name.endswith("evaluation/total"))
        )
        self.display.say(f"evaluation after {self.step} iterations: {shown}{f' ({sources})' if sources else ''}")
        for text in self.cautions() if self.cautions else ():
            self.display.say(f"caution: {text}")
        return metrics.get("evaluation/total")

    def _report(self, metrics: dict[str, float], phases: Phases) -> None:
        reward = metrics.get("reward/total", math.nan)
        self._best_reward = max(self._best_reward, reward)
        if Capability.DECODE_WITH_GRAD not in self.objective.needs:  # a reward's own gradient needs no other answer
            self._signal.see(self.step, metrics.get("zero_variance_share", 0.0))
        for tracker in self.trackers:
            tracker.log("train", self.step, metrics | phases.metrics())
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

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """While open, the policy holds the moving average, if there is one."""
        if self.average is None:
            yield
        else:
            with self.average.in_place():
                yield


# Learning-rate schedules.


def learning_rate(
    base: float,
    update: int,  # from 0
    total: int,  # updates of the whole run
    warmup: int,
    schedule: Literal["constant", "linear", "cosine"],
) -> float:
    """The learning rate of one update: a linear warm-up, then constant or down to zero at the last update.

    >>> [learning_rate(1.0, update, 10, 2, "linear") for update in (0, 1, 2, 6)]
    [0.5, 1.0, 1.0, 0.5]
    """
    if update < warmup:
        return base * (update + 1) / warmup
    if schedule == "constant":
        return base
    done = min(1.0, (update - warmup) / max(1, total - warmup))
    return base * (1 - done if schedule == "linear" else 0.5 + 0.5 * math.cos(math.pi * done))


# Stopping on request: the first Ctrl-C or SIGTERM lets the iteration finish, the second acts at once.


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_requests(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """While open, the function given tells whether a stop was asked for.

    At the first signal the handlers of before come back, so that a second one does what it always does. Outside of
    the main thread, which alone may handle signals, nothing is ever asked for; nor by signals that are ignored, as
    Ctrl-C is by a program in the background.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = False
    found = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in found.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        restore()
        with suppress(OSError, RuntimeError):  # `mmrl train 2>&1 | tee log`: Ctrl-C ended tee first; or amid a print
            say(f"{signal.Signals(number).name}: finishing this iteration, then saving; once more to leave at once")

    for number in before:
        signal.signal(number, ask)
    try:
        yield lambda: asked
    finally:
        restore()


# Whether rewards tell trajectories apart: where they do not, training runs and teaches nothing.


PATIENCE = 10
"""Iterations without any signal after which it is said again, and again after twice as many."""


class ZeroAdvantageMonitor:
    """Says when all groups of an iteration have equal rewards, so that every advantage is zero."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._silent = 0  # iterations in a row
        self._next = 1

    def see(self, step: int, zero_variance_share: float) -> None:
        """Take the share of groups whose rewards are all equal, in [0, 1]."""
        if not zero_variance_share >= 1:
            self._silent, self._next = 0, 1
            return
        self._silent += 1
        if self._silent < self._next:
            return
        if self._silent == 1:
            self._say(f"iteration {step}: in every group all rewards are equal, or missing, so it taught nothing")
        else:
            self._say(
                f"iteration {step}: for {self._silent} iterations in a row all rewards of every group were equal, so "
                "nothing is learnt. Look at the pictures and the reward; larger data.group_size or more exploration "
                "(sampling.transition.noise_level) may help"
            )
        self._next = max(PATIENCE, 2 * self._silent)
