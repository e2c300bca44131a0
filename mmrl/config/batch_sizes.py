"""The numbers of images, pipeline calls and optimizer updates of a configuration, without a model."""

from __future__ import annotations

from dataclasses import dataclass

from mmrl.config.algorithms.base import NoiseLevelsConfig
from mmrl.config.policy import Precision
from mmrl.config.sampling import (
    ImageTokenSamplingConfig,
    SamplingConfig,
    TokenSamplingConfig,
    decisions_per_trajectory,
)
from mmrl.config.train import TrainConfig
from mmrl.config.validation import validation_errors
from mmrl.errors import ConfigError


@dataclass(frozen=True)
class BatchPlan:
    """The sizes of one run. A trajectory is one picture, video or answer; a micro-batch is one call of the policy."""

    groups: int
    group_size: int
    """Trajectories of one prompt: 1 where it has a demonstration or a stored answer, 2 where it has a pair."""
    steps: int
    """Denoising steps of a trajectory; 0 for answers of tokens."""
    decisions: int
    """Trained stochastic steps of a trajectory, or the most tokens of an answer; 0 for objectives on velocities, and
    for pictures of tokens, whose number the model knows."""
    noise_levels: int
    """Noise levels at which a trajectory's velocity is trained in one pass; 0 for objectives on decisions."""
    micro_batch: int
    updates_per_epoch: int
    epochs: int
    iterations: int
    evaluations: int
    evaluation_size: int
    """Trajectories in one evaluation, at most; 0 without validation data."""
    precision: Precision
    max_replay_gap: float

    @classmethod
    def of(cls, config: TrainConfig) -> BatchPlan:
        """Return the sizes of a run.

        Raises:
            ConfigError: sizes that do not divide, or parts that cannot work together; all of them, one a line.
        """
        data, training, evaluation = config.data, config.training, config.evaluation
        algorithm, sampling = config.algorithm, config.sampling
        draws = isinstance(sampling, SamplingConfig)
        group_size = {"rollouts": data.group_size, "demonstrations": 1, "pairs": 2, "answers": 1}[algorithm.experience]
        plan = cls(
            groups=data.groups,
            group_size=group_size,
            steps=sampling.steps if isinstance(sampling, SamplingConfig) else 0,
            decisions=0
            if isinstance(sampling, ImageTokenSamplingConfig)
            else decisions_per_trajectory(sampling)
            if algorithm.on_decisions or isinstance(sampling, TokenSamplingConfig)
            else 0,
            noise_levels=algorithm.num_noise_levels if isinstance(algorithm, NoiseLevelsConfig) and draws else 0,
            micro_batch=data.micro_batch or data.groups * group_size,
            updates_per_epoch=training.updates,
            epochs=training.epochs,
            iterations=training.iterations,
            evaluations=0 if data.validation is None else _evaluations(training.iterations, evaluation.every),
            evaluation_size=0 if data.validation is None else _evaluation_size(config),
            precision=config.policy.dtype,
            max_replay_gap=training.replay_gap_bound(config.policy.dtype, sampling.kind),
        )
        if problems := plan.errors() + validation_errors(config):
            raise ConfigError("\n".join(problems))
        return plan

    @property
    def trajectories(self) -> int:
        """The trajectories of one iteration."""
        return self.groups * self.group_size

    @property
    def micro_batches(self) -> int:
        """Pipeline calls of one iteration's rollout."""
        return self.trajectories // self.micro_batch

    @property
    def micro_batches_per_update(self) -> int:
        """The micro-batches whose gradients are summed for one optimizer update."""
        return self.micro_batches // self.updates_per_epoch

    @property
    def updates(self) -> int:
        """Optimizer updates in one iteration."""
        return self.updates_per_epoch * self.epochs

    @property
    def total_trajectories(self) -> int:
        """The trajectories sampled for training in the whole run."""
        return self.trajectories * self.iterations

    @property
    def total_updates(self) -> int:
        """Optimizer updates in the whole run."""
        return self.updates * self.iterations

    def idle_processes(self, processes: int) -> str | None:
        """Return a message if an iteration has fewer calls of the policy than there are processes, else None."""
        if self.micro_batches >= processes:
            return None
        idle, rows = processes - self.micro_batches, max(1, self.trajectories // processes)
        return (
            f"an iteration is {_count(self.micro_batches, 'call')} of the policy, so {idle} of {processes} processes "
            f"have nothing to do: set data.micro_batch to {rows} or less"
        )

    def errors(self) -> list[str]:
        """Return one message for each size that does not divide."""
        if self.trajectories % self.micro_batch:
            fits = _nearest_divisors(self.trajectories, self.micro_batch)
            return [
                f"data.micro_batch: {self.micro_batch} does not divide groups x group_size = {self.groups} x "
                f"{self.group_size} = {self.trajectories}: {fits} would"
            ]
        if self.micro_batches % self.updates_per_epoch:
            fits = _nearest_divisors(self.micro_batches, self.updates_per_epoch)
            smaller = self.trajectories // self.updates_per_epoch
            remedy = (
                f"set data.micro_batch to {smaller} or a divisor of it, or training.updates to {fits}"
                if self.trajectories % self.updates_per_epoch == 0
                else f"set training.updates to {fits}"
            )
            return [
                f"training.updates: {self.updates_per_epoch} cannot share "
                f"{_count(self.micro_batches, 'micro-batch')} of {self.micro_batch} equally: {remedy}"
            ]
        return []

    def rows(self) -> list[tuple[str, str]]:
        """Return names and figures for a table."""
        trained = (
            f"{_count(self.decisions, 'of them a trained decision', 'of them trained decisions')}"
            if self.decisions
            else f"velocity trained at {_count(self.noise_levels, 'noise level')}"
        )
        sample = (
            f"{_count(self.steps, 'step')}, {trained}"
            if self.steps
            else f"an answer of at most {_count(self.decisions, 'token')}"
            if self.decisions
            else "a picture, token by token"
        )
        looked = f"{_count(self.evaluations, 'time')}, each of at most {_count(self.evaluation_size, 'sample')}"
        return [
            ("one iteration", f"{_count(self.groups, 'prompt')} x {self.group_size} = {self.trajectories:,} samples"),
            ("one sample", sample),
            ("rollout", f"{_count(self.micro_batches, 'micro-batch')} (calls of the policy) of {self.micro_batch:,}"),
            (
                "update",
                f"{_count(self.epochs, 'pass')} x {_count(self.updates_per_epoch, 'optimizer update')}, "
                f"each over {_count(self.micro_batches_per_update, 'micro-batch')}",
            ),
            (
                "whole run",
                f"{_count(self.iterations, 'iteration')}, {_count(self.total_trajectories, 'sample')}, "
                f"{_count(self.total_updates, 'optimizer update')}",
            ),
            ("precision", f"{self.precision}; a replay may differ from its rollout by {self.max_replay_gap:.0e}"),
            ("evaluation", looked if self.evaluations else "none: data.validation is not set"),
        ]


def _count(number: int, one: str, many: str | None = None) -> str:
    plural = many or (f"{one}es" if one.endswith(("s", "ch")) else f"{one}s")
    return f"{number:,} {one if number == 1 else plural}"


def _evaluations(iterations: int, every: int | None) -> int:
    """Return the number of evaluations: before training, each `every` iterations, and after the last."""
    return 1 + (1 if every is None else -(-iterations // every))


def _evaluation_size(config: TrainConfig) -> int:
    """Return the trajectories of one evaluation: validation set, held-out set, and groups that measure diversity."""
    evaluation, sets = config.evaluation, 1 if config.data.heldout is None else 2
    return sets * evaluation.prompts * evaluation.samples + evaluation.diversity_prompts * evaluation.diversity_draws


def _nearest_divisors(whole: int, wanted: int) -> str:
    divisors = [n for n in range(1, whole + 1) if whole % n == 0]
    below = max(n for n in divisors if n <= wanted) if wanted >= 1 else 1
    above = min((n for n in divisors if n > wanted), default=below)
    return str(below) if above == below else f"{below} or {above}"
