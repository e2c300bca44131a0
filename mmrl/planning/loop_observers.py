"""Parts of a training loop that are observed while it runs: sections, their seconds and bytes, calls of the models."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from mmrl.distributed.layout import Replicas
from mmrl.distributed.sharding_plan import blocks_to_shard
from mmrl.errors import ConfigError, RunError
from mmrl.generation.memory.meta_run import AllocationTracker
from mmrl.rollout import Rollout
from mmrl.training.experience import DerivedSource, Experience, ExperienceSource, MicroBatch
from mmrl.training.objectives.base import MetricAccumulator, Objective
from mmrl.training.run.timers import Phases

COLLECT, UPDATE = "collect", "update"
"""The sections of an iteration: sampling with scoring and advantages, and the passes of the objective."""
THUMBNAIL_BYTES = 16 * 16 * 3

Section = Callable[[str], AbstractContextManager[None]]


class PlacedModules(Replicas):
    """A layout that divides nothing, and keeps the modules that another one would divide."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []

    def place(self, modules: Any) -> None:
        self.modules += modules


class ModelCalls:
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


class Stopwatch:
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


class AllocationPeaks:
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


class ObservedSource(DerivedSource):
    """A source whose micro-batches always have something to learn, observed while it collects."""

    def __init__(self, source: ExperienceSource, objective: Objective, section: Section) -> None:
        self.source, self._objective, self.section = source, objective, section
        self.outline_bytes = 0

    def collect(self, iteration: int, progress: float, phases: Phases) -> Experience:
        with self.section(COLLECT):
            found = self.source.collect(iteration, progress, phases)
        self.outline_bytes = sum(_outline_bytes(batch.rollout) for batch in found.micro_batches)
        return Experience([self._learnable(batch) for batch in found.micro_batches], found.metrics)

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


class ObservedObjective(Objective):
    """An objective that is observed while it differentiates; its old policy stays as it was."""

    def __init__(self, objective: Objective, section: Section) -> None:
        self._objective, self.section = objective, section
        self.rehearse = False
        """True differentiates each micro-batch twice and observes the second time, when gradients exist."""
        vars(self)["needs"] = objective.needs
        self.trained = objective.trained

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

    def accumulate(
        self,
        batches: Sequence[MicroBatch],
        factor: float,
        seeds: Sequence[int],
        metrics: MetricAccumulator,
        gathers_in_calls: bool = False,
    ) -> None:
        if self.rehearse:
            self._objective.accumulate(batches, factor, seeds, MetricAccumulator(), gathers_in_calls)
        with self.section(UPDATE):
            self._objective.accumulate(batches, factor, seeds, metrics, gathers_in_calls)


def _outline_bytes(rollout: Rollout) -> int:
    """Return the bytes of what other processes get of a rollout."""
    tensors = [rollout.group_index, rollout.log_probs, rollout.mask, rollout.channel]
    media = sum(len(each) if isinstance(each, str) else THUMBNAIL_BYTES for each in rollout.media)
    return sum(each.nbytes for each in tensors) + media


def _finish() -> None:
    """Wait until the GPU has finished, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
