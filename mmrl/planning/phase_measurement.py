"""One micro-batch of each phase, measured with the model, the objective and the rewards of a recipe.

The training loop itself runs iterations of a single call. The first one is a warm-up, the median of the others counts,
and one more counts memory. Optimizer updates are made, because some algorithms compute more once the parameters differ
from those that sampled, but the model is thrown away and nothing is written.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Any

import torch
from torch import nn

from mmrl.build.datasets import load_samples
from mmrl.build.policies import build_policy, prepare_samples
from mmrl.build.reward_suites import build_rewards, replace_named_rewards
from mmrl.build.training_setup import build_training_setup
from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.data import FixedGroupSamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.distributed.layout import Replicas
from mmrl.distributed.sharding_plan import blocks_to_shard
from mmrl.errors import ConfigError, RunError
from mmrl.generation.memory.memory_report import OLD_POLICY, ComponentWeights, MemoryEstimate, UpdateMemory
from mmrl.generation.memory.meta_run import AllocationTracker
from mmrl.planning.assumptions import Device
from mmrl.planning.prediction import PhaseSeconds, Workload
from mmrl.policy import Rollout
from mmrl.rewards.core.routing import SharedLoader
from mmrl.training.experience import Experience, ExperienceSource, MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective
from mmrl.training.run.display import build_display
from mmrl.training.run.timers import Phases
from mmrl.training.training_loop import TrainingLoop

COLLECT, UPDATE = "collect", "update"
THUMBNAIL_BYTES = 16 * 16 * 3

Section = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True)
class Measurement:
    """The result of measuring one call of each phase."""

    phases: PhaseSeconds
    work: Workload
    memory: MemoryEstimate
    """Counted from what was allocated, tensor by tensor on a CPU, by CUDA's allocator on a GPU."""
    device: Device
    device_name: str
    spread: float
    """The standard deviation of the seconds of the measured calls, as a share of their mean."""
    obstacles: dict[str, str]
    """The reason why a place cannot be used, by place."""
    notes: tuple[str, ...]
    """What the recipe does that one call does not show."""


def measure(config: TrainConfig, repeats: int = 3, load_reward: SharedLoader | None = None) -> Measurement:
    """Run iterations of one call as a recipe says, and return the seconds and bytes of its phases.

    On a CPU it computes with as many threads as `torchrun` gives each process: those of OMP_NUM_THREADS, else one.

    Raises:
        ConfigError, DataError: the recipe cannot be run.
        RunError: no answer of a call could be learnt from.
    """
    if repeats < 1:
        raise ConfigError(f"--repeats: {repeats} is not a number of measured calls: choose 1 or more")
    with ExitStack() as stack:
        torch.manual_seed(config.seed)
        probe = _Probe(config, load_reward or SharedLoader(), stack)
        if probe.device.type != "cuda":
            stack.enter_context(_threads(int(os.environ.get("OMP_NUM_THREADS", "1"))))
        probe.time(1)
        seconds = probe.time(repeats)
        estimate = probe.count_memory()
        calls = [one + other for one, other in zip(seconds["rollout"], seconds["update"], strict=True)]
        cuda = probe.device.type == "cuda"
        name = torch.cuda.get_device_name(probe.device) if cuda else f"CPU, {torch.get_num_threads()} thread(s)"
        return Measurement(
            phases=PhaseSeconds(**{name: max(0.0, median(values)) for name, values in seconds.items()}),
            work=probe.workload(),
            memory=estimate,
            device="cuda" if cuda else "cpu",
            device_name=name,
            spread=pstdev(calls) / mean(calls),
            obstacles=probe.obstacles(),
            notes=tuple(_notes(config)),
        )


def one_call(config: TrainConfig) -> TrainConfig:
    """Return the recipe with iterations of one call and one update; its groups have as many rows as fit evenly."""
    plan = BatchPlan.of(config)
    sampled = config.algorithm.experience == "rollouts"
    group_size = math.gcd(plan.micro_batch, plan.group_size) if sampled else plan.group_size
    data: dict[str, Any] = {
        "groups": plan.micro_batch // group_size,
        "micro_batch": plan.micro_batch,
        "group_sampling": FixedGroupSamplingConfig(),
        "replay": None,
        "demonstrations": None,
    }
    if sampled:
        data["group_size"] = group_size
    loop = {"updates": 1, "epochs": 1, "max_kl": None}
    return config.model_copy(
        update={
            "data": config.data.model_copy(update=data),
            "training": config.training.model_copy(update=loop),
            "pretraining": None,
        }
    )


def _notes(config: TrainConfig) -> Iterator[str]:
    data = config.data
    if data.group_sampling.name != "fixed":
        yield f"data.group_sampling: {data.group_sampling.name} may sample several rounds; one is counted"
    if data.replay is not None:
        yield "data.replay: answers of earlier iterations are not counted"
    if data.demonstrations is not None:
        yield "data.demonstrations: calls for demonstrations are not counted"
    if config.pretraining is not None:
        yield "pretraining: the stage after it is measured"
    if config.training.max_kl is not None:
        yield "training.max_kl: the measurement of the distance is not counted"
    yield "evaluations and checkpoints are not part of a step"


class _Probe:
    """A training loop with iterations of one call, whose phases are observed."""

    def __init__(self, config: TrainConfig, load_reward: SharedLoader, stack: ExitStack) -> None:
        self._config, reduced = config, one_call(config)
        self._watch, self._peaks = _Stopwatch(), _AllocationPeaks()
        self.policy = build_policy(config.policy, config.sampling, config.media)
        self._placed = _PlacedModules()
        self.policy.place(self._placed)
        loaded = replace_named_rewards(load_samples(config.data.path, config.media), config.scoring)
        samples = prepare_samples(self.policy, config.policy, config.answers, config.sampling, loaded)
        self._rewards = None
        if config.algorithm.experience == "rollouts":
            self._rewards = stack.enter_context(closing(build_rewards(config, samples, load_reward)))
        setup = build_training_setup(reduced, self.policy, samples, samples, self._rewards)
        self._objective = _ObservedObjective(setup.objective, self._watch)
        self._source = _ObservedSource(setup.source, setup.objective, self._watch)
        self._calls = _ModelCalls(self._placed.modules, lambda: self._watch.section)
        self._loop = TrainingLoop(
            policy=self.policy,
            objective=self._objective,
            source=self._source,
            optimizer_config=config.optimizer,
            config=reduced.training,
            seed=config.seed,
            run=Path(),
            trackers=[],
            display=build_display("quiet"),
            precision=config.policy.dtype,
            sampling=config.sampling.kind,
        )
        self.device = next(iter(self._loop.parameters.values())).device
        self._iterations = 0

    def time(self, iterations: int) -> dict[str, list[float]]:
        """Run iterations, and return the seconds of each by the names of `PhaseSeconds`."""
        found: dict[str, list[float]] = defaultdict(list)
        for _ in range(iterations):
            self._watch.seconds.clear()
            self._calls.counts.clear()
            with self._watch("iteration"):
                _, phases = self._loop.iterate()
            self._iterations += 1
            own, known = self._watch.seconds, phases.metrics()
            rollout, scoring = known.get("seconds/rollout", 0.0), known.get("seconds/reward", 0.0)
            found["rollout"].append(rollout)
            found["scoring"].append(scoring)
            found["update"].append(own[UPDATE])
            found["optimizer"].append(known["seconds/update"] - own[UPDATE])
            found["statistics"].append(own[COLLECT] - rollout - scoring)
            found["check"].append(own["iteration"] - own[COLLECT] - known["seconds/update"])
        return found

    def count_memory(self) -> MemoryEstimate:
        """Run one more iteration, and return the memory of the run by purpose."""
        for part in (self._objective, self._source):
            part.section = self._peaks
        self._objective.rehearse = True
        before = torch.cuda.memory_allocated() if self.device.type == "cuda" else 0
        _, phases = self._loop.iterate()
        rollout = self._peaks.peaks[COLLECT]
        if self.device.type == "cuda":  # `Phases` resets the allocator's peak, and has it
            rollout = max(rollout, int(phases.metrics()["memory_mib/rollout"] * 2**20) - before)
        parameters = self._loop.parameters
        tensors = {id(each): each for module in self._modules() for each in [*module.parameters(), *module.buffers()]}
        trained = {id(parameter) for parameter in parameters.values()}
        frozen = [each for key, each in tensors.items() if key not in trained]
        with self.policy.reference():
            now = [p for module in self._modules() for p in module.parameters() if id(p) not in tensors]
        config = self._config
        copies = ["moving average"] if self._loop.average is not None else []
        copies += [OLD_POLICY] if config.algorithm.name in ("diffusion_nft", "awm") else []
        return MemoryEstimate(
            frozen=(
                ComponentWeights("model", sum(each.numel() for each in frozen), sum(each.nbytes for each in frozen)),
            ),
            trained=sum(parameter.numel() for parameter in parameters.values()),
            copies=tuple(copies),
            reference=sum(each.nbytes for each in now),
            adapted=sum(each.nbytes for each in frozen) if config.policy.train == "lora" else 0,
            gathered=0,
            recording=self._peaks.kept[COLLECT],
            micro_batches=BatchPlan.of(config).micro_batches,
            rollout=rollout,
            rollout_at="the call that samples",
            plain=UpdateMemory(self._peaks.kept[UPDATE], self._peaks.peaks[UPDATE]),
            recomputed=None,
            checkpointing=False,
            assumptions=(),
        )

    def workload(self) -> Workload:
        """Return the work of an iteration of the whole recipe."""
        config, plan, modules = self._config, BatchPlan.of(self._config), self._placed.modules
        placed = {id(each): each.nbytes for module in modules for each in module.parameters()}
        gradients = sum(4 * parameter.numel() for parameter in self._loop.parameters.values())
        copies = 0
        if self._objective.uses_copies() and config.policy.train == "full":
            copies = gradients * (2 if config.algorithm.name in ("diffusion_nft", "awm") else 1)
        whole_groups = self._rewards is not None and self._rewards.needs_full_groups
        together = math.lcm(plan.group_size, plan.micro_batch) // plan.micro_batch if whole_groups else 1
        recomputed = config.policy.gradient_checkpointing
        counts = self._calls.counts
        return Workload(
            calls=plan.micro_batches,
            rows=plan.micro_batch,
            updates=plan.updates_per_epoch,
            epochs=plan.epochs,
            calls_together=together,
            gradient_bytes=gradients,
            placed_bytes=sum(placed.values()),
            copy_bytes=copies,
            blocks=self._calls.blocks,
            rollout_forwards=counts[COLLECT, False],
            update_forwards=counts[UPDATE, False],
            update_backwards=counts[UPDATE, True] // (2 if recomputed else 1),
            experience_bytes=self._source.outline_bytes,
        )

    def obstacles(self) -> dict[str, str]:
        """Return the reason why a place cannot be used with this model."""
        found = {}
        try:
            for module in self._placed.modules:
                blocks_to_shard(module)
        except ConfigError as err:
            found = {"window": str(err), "strict": str(err)}
        if len(self._placed.modules) > 1:
            found["strict"] = "it divides a single denoiser, and this pipeline has several"
        return found

    def _modules(self) -> list[nn.Module]:
        """Return all networks of the policy: those of a pipeline, or the model that writes tokens."""
        components = getattr(getattr(self.policy, "pipeline", None), "components", {})
        networks = [each for each in components.values() if isinstance(each, nn.Module)]
        return networks or self._placed.modules


class _PlacedModules(Replicas):
    """A layout that divides nothing, and keeps the modules that another one would divide."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []

    def place(self, modules: Any) -> None:
        self.modules += modules


class _ModelCalls:
    """A count of computations of the placed models, by section of the iteration and whether gradients are enabled."""

    def __init__(self, modules: list[nn.Module], section: Callable[[], str]) -> None:
        self.counts: Counter[tuple[str, bool]] = Counter()
        self.blocks = 0
        for module in modules:
            try:
                found = blocks_to_shard(module)
            except ConfigError:
                found = []
            self.blocks += len(found) + 1
            # A block, because a replay calls models for steps that it does not compute.
            first = found[-1] if found else module
            first.register_forward_pre_hook(lambda *_: self.counts.update([(section(), torch.is_grad_enabled())]))


class _Stopwatch:
    """Seconds of named sections; nested ones count in all that are open."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.section = ""

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        _finish()
        before, self.section, started = self.section, name, time.perf_counter()
        try:
            yield
        finally:
            _finish()
            self.seconds[name] += time.perf_counter() - started
            self.section = before


class _AllocationPeaks:
    """Bytes allocated in named sections: at most at any time, and those that are still in use at the end.

    On a GPU CUDA's allocator counts, elsewhere the storages of torch's operations.
    """

    def __init__(self) -> None:
        self.peaks: defaultdict[str, int] = defaultdict(int)
        self.kept: defaultdict[str, int] = defaultdict(int)
        self._tracker = AllocationTracker()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if torch.cuda.is_available():
            _finish()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            yield
            _finish()
            peak, now = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        else:
            self._tracker.restart()
            before = self._tracker.now
            with self._tracker:
                yield
            peak, now = self._tracker.peak, self._tracker.now
        self.peaks[name] = max(self.peaks[name], peak - before)
        self.kept[name] = max(self.kept[name], now - before)


class _ObservedSource:
    """A source whose micro-batches always have something to learn, observed while it collects."""

    def __init__(self, source: ExperienceSource, objective: Objective, section: Section) -> None:
        self._source, self._objective, self.section = source, objective, section
        self.outline_bytes = 0

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        with self.section(COLLECT):
            found = self._source.collect(iteration, progress, phases)
        self.outline_bytes = sum(_outline_bytes(batch.rollout) for batch in found.micro_batches)
        return Experience([self._learnable(batch) for batch in found.micro_batches], found.metrics)

    def state_dict(self) -> dict[str, Any]:
        return self._source.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._source.load_state_dict(state)

    def _learnable(self, batch: MicroBatch) -> MicroBatch:
        """Return the micro-batch; if all its advantages are 0, as of a group of one, with others.

        Raises:
            RunError: the objective finds nothing to learn in it.
        """
        ones = torch.ones_like(batch.advantages)
        signs = torch.tensor([1.0, -1.0]).repeat(len(ones))[: len(ones)].to(ones)
        choices = [batch] if bool(batch.advantages.any()) else []
        choices += [MicroBatch.of_rows(batch.rollout, each) for each in (ones, signs)]
        for choice in choices:
            if self._objective.loss_normalizer(choice):
                return choice
        raise RunError(
            "no answer of the measured call could be learnt from, so an update cannot be measured: set "
            "data.micro_batch to a multiple of data.group_size"
        )


class _ObservedObjective(Objective):
    """An objective that is observed while it differentiates; its old policy stays as it was."""

    def __init__(self, objective: Objective, section: Section) -> None:
        self._objective, self.section = objective, section
        self.rehearse = False
        """True differentiates each micro-batch twice and observes the second time, when gradients exist."""
        vars(self)["needs"] = objective.needs

    def sampling_weights(self) -> AbstractContextManager[None]:
        return self._objective.sampling_weights()

    def uses_copies(self) -> bool:
        return self._objective.uses_copies()

    def loss_normalizer(self, batch: MicroBatch) -> float:
        return self._objective.loss_normalizer(batch)

    def backward(self, batch: MicroBatch, share: float, seed: int, metrics: MetricAccumulator) -> None:
        if self.rehearse:
            self._objective.backward(batch, share, seed, MetricAccumulator())
        with self.section(UPDATE):
            self._objective.backward(batch, share, seed, metrics)


def _outline_bytes(rollout: Rollout) -> int:
    """Return the bytes of what other processes get of a rollout."""
    tensors = [rollout.group_index, rollout.log_probs, rollout.mask, rollout.channel]
    media = sum(len(each) if isinstance(each, str) else THUMBNAIL_BYTES for each in rollout.media)
    return sum(each.nbytes for each in tensors) + media


def _finish() -> None:
    """Wait until the GPU has finished, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute with so many threads while open."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
