"""Measure one micro-batch of each phase with the model, the objective and the rewards of a recipe.

The training loop itself runs iterations of a single call. The first one is a warm-up. Of the others the median counts;
where calls differ because answers do, the mean. Further ones count memory, of which the largest counts. Optimizer
updates are made, because some algorithms compute more once the parameters differ from those that sampled, but the model
is thrown away and nothing is written.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, pstdev
from typing import Any, cast

import torch
from torch import Tensor

from mmrl.build.datasets import load_samples
from mmrl.build.load_models import build_learners, build_models
from mmrl.build.model_references import resolve_model
from mmrl.build.policies import build_policy, prepare_samples, resolve_model_path
from mmrl.build.reward_suites import build_rewards, replace_named_rewards
from mmrl.build.training_setup import build_training_setup, samples_of_terms
from mmrl.config.algorithms.base import SCORED
from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.data import FixedGroupSamplingConfig
from mmrl.config.named_models import POLICY, ModelKind, kind_of
from mmrl.config.policy import AnyPolicyConfig
from mmrl.config.train import TrainConfig
from mmrl.config.training import OverlapConfig
from mmrl.data.sample import Sample
from mmrl.distributed.sharding_plan import blocks_to_shard
from mmrl.errors import ConfigError
from mmrl.generation.memory.memory_report import (
    OLD_POLICY,
    ComponentWeights,
    MemoryEstimate,
    OtherModel,
    UpdateMemory,
)
from mmrl.planning.assumptions import Device
from mmrl.planning.loop_observers import (
    COLLECT,
    UPDATE,
    AllocationPeaks,
    ModelCalls,
    ObservedObjective,
    ObservedSource,
    PlacedModules,
    Stopwatch,
)
from mmrl.planning.prediction import PhaseSeconds, Workload
from mmrl.rewards.core.routing import SharedLoader
from mmrl.training.offloaded_weights import tensors_of
from mmrl.training.run.display import build_display
from mmrl.training.training_loop import TrainingLoop

COUNTED_WEIGHTS = 2**28
"""The most bytes of weights that `count_memory` loads: a dry run takes seconds, also where a model would not fit."""
MEMORY_CALLS = 8
"""The most calls whose memory is counted. Prompts of a vision-language model have pictures and clips of many sizes."""


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
    """The work of the recipe that one call does not show."""


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
            stack.enter_context(_threads(int(os.environ.get("OMP_NUM_THREADS", "1").partition(",")[0])))
        probe.time(1)
        seconds = probe.time(repeats)
        estimate = probe.count_memory()
        calls = [one + other for one, other in zip(seconds["rollout"], seconds["update"], strict=True)]
        cuda = probe.device.type == "cuda"
        name = torch.cuda.get_device_name(probe.device) if cuda else f"CPU, {torch.get_num_threads()} thread(s)"
        average = median if config.policy.kind == "pipeline" else mean
        return Measurement(
            phases=PhaseSeconds(**{phase: max(0.0, average(values)) for phase, values in seconds.items()}),
            work=probe.workload(),
            memory=estimate,
            device="cuda" if cuda else "cpu",
            device_name=name,
            spread=pstdev(calls) / mean(calls),
            obstacles=probe.obstacles(),
            notes=tuple(_notes(config)),
        )


def count_memory(config: TrainConfig) -> MemoryEstimate | None:
    """Run up to 1 + `MEMORY_CALLS` iterations of one call, and return the memory of a run, counted on this device.

    Return None unless the model and those beside it are folders of this machine, or ship with the package, and have at
    most `COUNTED_WEIGHTS` bytes of weights together.

    Raises:
        ConfigError, DataError, RunError: as `measure`.
    """
    sizes = [_bytes_on_disk(each) for each in (config.policy, *_policies_beside(config))]
    if not all(sizes) or sum(sizes) > COUNTED_WEIGHTS:
        return None
    with ExitStack() as stack:
        torch.manual_seed(config.seed)
        probe = _Probe(config, SharedLoader(), stack)
        if probe.device.type != "cuda":
            stack.enter_context(_threads(1))
        probe.time(1)
        return probe.count_memory()


def _policies_beside(config: TrainConfig) -> Iterator[AnyPolicyConfig]:
    """Yield how each other model of the run is loaded; snapshots and parts of the policy's codec are not."""
    for name, chosen in config.models.items():
        if chosen.model is not None:
            yield resolve_model(chosen.model, cast(ModelKind, kind_of(config, name))).policy


def _bytes_on_disk(policy: AnyPolicyConfig) -> int:
    """Return the bytes of a model's weights; 0 if it is no folder of this machine."""
    folder = Path(resolve_model_path(cast(Any, policy)).model)
    return sum(file.stat().st_size for file in folder.glob("**/*.safetensors"))


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
        "starts": None,
        "demonstrations": None,
    }
    if sampled:
        data["group_size"] = group_size
    loop = {"updates": 1, "epochs": 1, "max_kl": None}
    return config.model_copy(
        update={
            "algorithm": config.algorithm.for_one_call(),
            "data": config.data.model_copy(update=data),
            "training": config.training.model_copy(update=loop),
            "pretraining": None,
            "stages": (),
            "rounds": 1,
            "run": config.run.model_copy(update={"overlap": OverlapConfig()}),
        }
    )


def _notes(config: TrainConfig) -> Iterator[str]:
    data = config.data
    if data.group_sampling.name != "fixed":
        yield f"data.group_sampling: {data.group_sampling.name} may sample several rounds; one is counted"
    if data.starts is not None:
        yield f"data.starts: {data.starts.name} may sample several rounds and lengthen prompts; it is left out"
    if data.replay is not None:
        yield "data.replay: answers of earlier iterations are not counted"
    if data.demonstrations is not None:
        yield "data.demonstrations: calls for demonstrations are not counted"
    if config.algorithm.name == "ranke":
        yield "algorithm: the losses of the decoder are counted as if divided; two processes compute them for all"
    if config.algorithm.experience == "answers":
        yield "algorithm: what is answered and scored once, before the first update, is not counted"
    if config.pretraining is not None:
        yield "pretraining: the stage after it is measured"
    if config.stages:
        yield "stages: the last stage is measured"
    if config.training.max_kl is not None:
        yield "training.max_kl: the measurement of the distance is not counted"
    if config.run.overlap.is_on:
        yield "run.overlap: rollouts, scoring and updates are counted one after another"
    if config.run.servers is not None:
        yield "run.servers: rollouts are measured in this process"
    yield "evaluations and checkpoints are not part of a step"


class _Probe:
    """A training loop with iterations of one call, whose phases are observed."""

    def __init__(self, config: TrainConfig, load_reward: SharedLoader, stack: ExitStack) -> None:
        self._config, reduced = config, one_call(config)
        self._watch, self._peaks = Stopwatch(), AllocationPeaks()
        self.policy = build_policy(config.policy, config.sampling, config.media, config.environment)
        self._placed = PlacedModules()
        self.policy.place(self._placed)

        def read(path: str) -> list[Sample]:
            loaded = replace_named_rewards(load_samples(path, config.media), config.scoring)
            return prepare_samples(self.policy, config.policy, config.answers, config.sampling, loaded)

        samples = read(config.data.path)
        if config.algorithm.experience == "answers":
            samples = samples[: reduced.data.groups]
        self._rewards = None
        if config.algorithm.experience in SCORED:
            self._rewards = stack.enter_context(closing(build_rewards(config, samples, load_reward)))
        self._models = build_models(config, self.policy)
        setup = build_training_setup(reduced, self.policy, samples, samples, self._rewards, models=self._models,
                                     term_samples=samples_of_terms(config.algorithm, read))  # fmt: skip
        self._objective = ObservedObjective(setup.objective, self._watch)
        self._source = ObservedSource(setup.source, setup.objective, self._watch)
        self._calls = ModelCalls(self._placed.modules, lambda: self._watch.section)
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
            models=self._models,
            others=build_learners(config, self._models),
        )
        self.device = next(iter(self._loop.learner.parameters.values())).device
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
        """Run further iterations, and return the memory of the run by purpose."""
        for part in (self._objective, self._source):
            part.section = self._peaks
        self._objective.rehearse = True
        rollout = 0
        for _ in range(min(MEMORY_CALLS, BatchPlan.of(self._config).micro_batches)):
            before = torch.cuda.memory_allocated() if self.device.type == "cuda" else 0
            _, phases = self._loop.iterate()
            if self.device.type == "cuda":  # `Phases` resets the allocator's peak, and has it
                rollout = max(rollout, int(phases.metrics()["memory_mib/rollout"] * 2**20) - before)
        rollout = max(rollout, self._peaks.peaks[COLLECT])
        parameters = self._loop.learner.parameters
        config, tensors = self._config, tensors_of(self.policy.networks())
        trained = {id(parameter) for parameter in parameters.values()}
        frozen = [each for key, each in tensors.items() if key not in trained]
        copies = ["moving average"] if self._loop.learner.average is not None else []
        copies += [OLD_POLICY] if config.algorithm.name in ("diffusion_nft", "awm") else []
        copies += [name for name, model in config.models.items() if model.changes and model.of == POLICY]
        return MemoryEstimate(
            frozen=(
                ComponentWeights("model", sum(each.numel() for each in frozen), sum(each.nbytes for each in frozen)),
            ),
            trained=sum(parameter.numel() for parameter in parameters.values()),
            copies=tuple(copies),
            reference=_reference_bytes(self.policy),
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
            others=tuple(self._other_models(tensors)),
        )

    def _other_models(self, counted: Mapping[int, Tensor]) -> Iterator[OtherModel]:
        """Yield the size of each other model, without the tensors that are counted: those of the policy's own codec."""
        for name, chosen in self._config.models.items():
            if chosen.of is not None:
                continue
            named = self._models.get(name)
            model: Any = self._loop.others[name].model if named is None else named.policy
            own = [each for key, each in tensors_of(model.networks()).items() if key not in counted]
            apart = named is not None and chosen.shares is None  # has another reference than the policy
            copies = sum(other.changes and other.of == name for other in self._config.models.values())
            learner = self._loop.others.get(name)
            yield OtherModel(
                name,
                sum(each.nbytes for each in own) + (_reference_bytes(model) if apart else 0),
                0 if learner is None else sum(parameter.numel() for parameter in learner.parameters.values()),
                copies + (learner is not None and learner.average is not None),
                chosen.offload,
            )

    def workload(self) -> Workload:
        """Return the work of an iteration of the whole recipe."""
        config, plan, modules = self._config, BatchPlan.of(self._config), self._placed.modules
        placed = {id(each): each.nbytes for module in modules for each in module.parameters()}
        gradients = sum(4 * parameter.numel() for parameter in self._loop.learner.parameters.values())
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


def _reference_bytes(policy: Any) -> int:
    """Return the bytes of the parameters that replace those of a policy while it is its reference."""
    own = tensors_of(policy.networks())
    with policy.reference():
        return sum(each.nbytes for key, each in tensors_of(policy.networks()).items() if key not in own)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Compute with `count` threads while open."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
