"""What subjects are compared on: samples, and what scores them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mmrl.benchmarks.protocol import MetricConfig, ProtocolConfig
from mmrl.benchmarks.readers import read
from mmrl.build.checkpoint_pool import ModelRef
from mmrl.build.datasets import load_samples
from mmrl.build.policies import fit_to
from mmrl.config.rewards import RewardConfig
from mmrl.data.media.decode import refuse_unreadable
from mmrl.data.sample import RewardChoice, Sample
from mmrl.errors import ConfigError
from mmrl.evaluation.comparison.aggregate import tags_of
from mmrl.rewards.parsing.boxes import Space
from mmrl.understanding.tasks.answer_instructions import Thinking
from mmrl.understanding.tasks.definitions import MultimodalPolicy, apply_tasks
from mmrl.workflows.compare.entries import Shared
from mmrl_shapeworld import shipped_models
from mmrl_shapeworld.benchmarks import write

if TYPE_CHECKING:
    from mmrl.build.policies import AnyPolicy
    from mmrl.understanding.tasks.definitions import MultimodalPolicy

MADE = 200  # samples of ShapeWorld's data in a benchmark's format, unless another number is asked for
MADE_SEED = 51
OWN_SPLIT = {"pipeline": "shapeworld:validation", "vlm": "shapeworld:vlm-validation"}
"""What `shapeworld` is without a protocol."""


@dataclass(frozen=True)
class Chosen:
    """The rewards of a comparison."""

    rewards: tuple[RewardConfig, ...]
    for_all: bool  # whether samples that ask for rewards of their own are scored by these instead
    metrics: tuple[MetricConfig, ...] = ()


@dataclass(frozen=True)
class Source:
    """Where samples come from."""

    path: str
    protocol: ProtocolConfig | None
    limit: int | None  # of samples, from the first; ShapeWorld's are made in this number
    folder: Path | None = field(default=None)  # where ShapeWorld's data in the protocol's format go, if made

    @property
    def is_made(self) -> bool:
        """Whether the data are ShapeWorld's, written in the format of the protocol."""
        return self.protocol is not None and self.path == SHAPEWORLD


def read_material(source: Source, subject: ModelRef) -> list[Sample]:
    """The samples, a protocol's in the words of its files.

    Raises:
        ConfigError, DataError: they cannot be read.
    """
    protocol = source.protocol
    if protocol is None:
        path = OWN_SPLIT.get(subject.policy.kind, source.path) if source.path == SHAPEWORLD else source.path
        found = [_with_clauses(sample) for sample in load_samples(path, subject.media)]
    elif source.is_made:
        assert source.folder is not None
        _make(protocol.format, source.folder, source.limit or MADE)
        found = read(protocol.format, source.folder)
    else:
        found = read(protocol.format, source.path)
        refuse_unreadable(found)
    return found[: source.limit]


def fit_material(
    samples: Sequence[Sample],
    source: Source,
    subject: ModelRef,
    policy: AnyPolicy,
    shared: Shared,
    chosen: Chosen,
) -> list[Sample]:
    """The samples as this policy is asked them, with the rewards that score its answers.

    Raises:
        ConfigError, DataError: it cannot take a sample, or nothing says what scores one.
    """
    if source.protocol is None:
        fitted = fit_to(policy, subject.policy, shared.answers, shared.sampling, samples)
    else:
        benchmark = Benchmark(source.protocol, tuple(samples), source.is_made)
        if subject.policy.kind == "vlm":
            embedded = shipped_models.is_shipped(subject.policy.model)
            looking, answers = cast("MultimodalPolicy", policy), shared.answers
            fitted = for_vlm(benchmark, looking, embedded, answers.thinking, answers.space)
        else:
            fitted = fit_to(policy, subject.policy, shared.answers, shared.sampling, for_generator(benchmark))
    scored = [asked_for(sample, chosen) for sample in fitted]
    refuse_unscored(scored, chosen, subject.name)
    return scored


def choose_rewards(
    protocol: ProtocolConfig | None,
    made: bool,
    named: Mapping[str, float],
    arguments: Mapping[str, Mapping[str, Any]],
    subject: ModelRef,
) -> Chosen:
    """Those that are named; else the protocol's; else those of the subject's run, what it only watched included."""
    run = subject.run.config if subject.run else None
    known = {reward.name: reward.args for reward in run.rewards} if run else {}
    metrics = protocol.measured(made)[1] if protocol else ()
    extra = [
        RewardConfig(name=name, weight=weight, args={**known.get(name, {}), **arguments.get(name, {})})
        for name, weight in named.items()
    ]
    if protocol is not None:
        own = {reward.name for reward in extra}
        listed = [reward for reward in protocol.measured(made)[0] if reward.name not in own]
        return Chosen((*listed, *extra), True, metrics)
    if extra:
        return Chosen(tuple(extra), True)
    if run is None:
        return Chosen((), False)
    trained = [_without_training(reward) for reward in run.rewards]
    names = {reward.name for reward in trained}
    watched = [RewardConfig(name=name, weight=0.0) for name in run.evaluation.rewards if name not in names]
    return Chosen((*trained, *watched), False)


def _without_training(reward: RewardConfig) -> RewardConfig:
    """A constraint is watched; a gate is no part of a total that is compared."""
    weight = reward.weight if reward.at_least is None else 0.0
    return reward.model_copy(update={"weight": weight, "at_least": None, "gate": None})


def asked_for(sample: Sample, chosen: Chosen) -> Sample:
    """The sample with the rewards that score it. A reward of its own keeps what its task gave it, such as the
    coordinates that answers count in, where nothing else is said."""
    if not chosen.for_all or not sample.rewards:
        return sample
    own = {each.name: each.args for each in sample.rewards}
    if not any(reward.name in own for reward in chosen.rewards):
        return replace(sample, rewards=())
    rewards = tuple(RewardChoice(r.name, r.weight, {**own.get(r.name, {}), **r.args}) for r in chosen.rewards)
    return replace(sample, rewards=rewards)


def refuse_unscored(samples: Sequence[Sample], chosen: Chosen, who: str) -> None:
    """
    Raises:
        ConfigError: nothing says what scores a sample.
    """
    bare = next((sample for sample in samples if not sample.rewards), None)
    if not chosen.rewards and bare is not None:
        raise ConfigError(
            f"nothing says what scores sample {bare.id!r}: {who} has no rewards, nor has the sample: name one with "
            "--reward"
        )
    if chosen.rewards and bare is not None and not any(reward.weight for reward in chosen.rewards):
        raise ConfigError("--reward: all weights are 0; give one of them another, as in --reward clip_score=1")


def digest_of_samples(samples: Sequence[Sample]) -> str:
    """SHA-256 of what is asked; of files of media, of their names alone."""

    def named(path: str) -> str:
        return path if path.startswith("data:") else Path(path).name

    digest = hashlib.sha256()
    for sample in samples:
        known = asdict(sample) | {
            "images": [named(path) for path in sample.images],
            "videos": [named(path) for path in sample.videos],
            "conditions": {k: named(v) if isinstance(v, str) else v for k, v in sample.conditions.items()},
        }
        digest.update(json.dumps(known, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _make(format: str, folder: Path, count: int) -> None:
    """Write ShapeWorld's data in a benchmark's format, whole or not at all."""
    if folder.exists():
        return
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    write(format, draft, count, MADE_SEED)
    draft.rename(folder)


def _with_clauses(sample: Sample) -> Sample:
    """A caption of ShapeWorld with its clauses as tags."""
    answer = sample.answer
    if sample.task != "text-to-image" or tags_of(sample) or not isinstance(answer, Mapping) or "clauses" not in answer:
        return sample
    tags: list[str] = []
    for clause in answer["clauses"]:
        tags += [f"colour: {clause['colour']}", f"shape: {clause['shape']}"]
        tags += [f"size: {clause['size']}"] if clause.get("size") else []
        tags += [f"count: {clause['count']}"] if clause["count"] > 1 else []
    if answer.get("relation"):
        tags.append(f"relation: {answer['relation']}")
    return replace(sample, metadata={**sample.metadata, "tags": list(dict.fromkeys(tags))})


# A protocol's samples as a policy is to be asked them.


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
    policy: MultimodalPolicy,
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
        return apply_tasks(policy, [replace(sample, rewards=tuple(chosen)) for sample in asked], thinking, space)
    fitted = apply_tasks(policy, asked, thinking, space, task=benchmark.protocol.task)
    return [replace(sample, rewards=_placed(chosen, sample)) for sample in fitted]


def _asked(benchmark: Benchmark, sample: Sample, embedded: bool) -> Sample:
    return replace(sample, prompt=benchmark.protocol.asked(sample.prompt, embedded))


def _placed(chosen: Sequence[RewardChoice], sample: Sample) -> tuple[RewardChoice, ...]:
    """The rewards, told what coordinates the task says that answers count in."""
    space = next((own.args["space"] for own in sample.rewards if "space" in own.args), None)
    if space is None:
        return tuple(chosen)
    return tuple(replace(each, args={"space": space, **each.args}) for each in chosen)
