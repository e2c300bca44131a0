"""A protocol's samples as a policy is to be asked them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmrl.config.protocol import MetricConfig, ProtocolConfig
from mmrl.config.rewards import RewardConfig
from mmrl.data.benchmarks import read
from mmrl.data.sample import RewardChoice, Sample
from mmrl.rewards.parsing.boxes import Space
from mmrl.shapeworld.benchmarks import write
from mmrl.understanding.instructions import Thinking
from mmrl.understanding.tasks import LookingPolicy, fit_to_tasks

SHAPEWORLD = "shapeworld"
"""What may stand in place of a folder: ShapeWorld's data, written in the public format."""


@dataclass(frozen=True)
class Benchmark:
    """The samples of a protocol, in the words of its files, and how they are scored and summed up."""

    protocol: ProtocolConfig
    samples: tuple[Sample, ...]
    shapeworld: bool

    @property
    def rewards(self) -> tuple[RewardConfig, ...]:
        """What each answer is scored by."""
        return self.protocol.measured(self.shapeworld)[0]

    @property
    def metrics(self) -> tuple[MetricConfig, ...]:
        """What is told of all answers; the first is the one that the paper reports."""
        return self.protocol.measured(self.shapeworld)[1]


def load_benchmark(
    protocol: ProtocolConfig,
    data: str,  # a folder with the public files, or `shapeworld`
    scratch: Path,  # where ShapeWorld's files are written
    count: int | None = None,  # of samples; None: all there are, of ShapeWorld 100
    seed: int = 0,  # of ShapeWorld's data
) -> Benchmark:
    """Read a protocol's data.

    Raises:
        DataError: the folder does not hold it.
    """
    if data == SHAPEWORLD:
        write(protocol.format, scratch, count or 100, seed)
        return Benchmark(protocol, tuple(read(protocol.format, scratch)), shapeworld=True)
    return Benchmark(protocol, tuple(read(protocol.format, data)[:count]), shapeworld=False)


def for_generator(benchmark: Benchmark) -> list[Sample]:
    """The samples as whoever draws is asked."""
    return [_asked(benchmark, sample, embedded=benchmark.shapeworld) for sample in benchmark.samples]


def for_vlm(
    benchmark: Benchmark,
    policy: LookingPolicy,
    embedded: bool,  # it is the model of ShapeWorld, which knows questions and no instructions
    thinking: Thinking = "off",
    space: Space | None = None,
) -> list[Sample]:
    """The samples as a vision-language model is asked: with its task's instruction, in its family's coordinates.

    Their rewards are the protocol's, which are told what coordinates answers count in.

    Raises:
        DataError: a sample does not fit the protocol's task, or the model cannot take its media.
    """
    asked = [_asked(benchmark, sample, embedded and benchmark.shapeworld) for sample in benchmark.samples]
    chosen = [RewardChoice(each.name, each.weight, each.args) for each in benchmark.rewards]
    if embedded and benchmark.shapeworld:
        return fit_to_tasks(policy, [replace(sample, rewards=tuple(chosen)) for sample in asked], thinking, space)
    fitted = fit_to_tasks(policy, asked, thinking, space, task=benchmark.protocol.task)
    return [replace(sample, rewards=_placed(chosen, sample)) for sample in fitted]


def _asked(benchmark: Benchmark, sample: Sample, embedded: bool) -> Sample:
    return replace(sample, prompt=benchmark.protocol.asked(sample.prompt, embedded))


def _placed(chosen: Sequence[RewardChoice], sample: Sample) -> tuple[RewardChoice, ...]:
    """The rewards, told what coordinates the task says that answers count in."""
    space = next((own.args["space"] for own in sample.rewards if "space" in own.args), None)
    if space is None:
        return tuple(chosen)
    return tuple(replace(each, args={"space": space, **each.args}) for each in chosen)
