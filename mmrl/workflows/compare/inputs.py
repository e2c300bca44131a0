"""The inputs of a comparison: its samples, and the rewards that score the answers.

Samples come from a data set, from the public files of a benchmark, or from benchmark files that an installed package
generates (`mmrl.build.schemes.BenchmarkData`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mmrl.benchmarks.protocol import MetricConfig, ProtocolConfig
from mmrl.benchmarks.readers import read_benchmark
from mmrl.build.datasets import load_samples
from mmrl.build.model_references import ModelKind, ModelRef
from mmrl.build.policies import prepare_samples
from mmrl.build.schemes import BENCHMARK_DATA, scheme_of
from mmrl.config.media import MediaConfig
from mmrl.config.rewards import RewardConfig
from mmrl.data.media.bad_media import check_media_files
from mmrl.data.sample import RewardChoice, Sample
from mmrl.errors import ConfigError
from mmrl.rewards.parsing.boxes import Space
from mmrl.understanding.tasks.answer_instructions import Thinking
from mmrl.understanding.tasks.definitions import apply_tasks
from mmrl.workflows.compare.entries import SharedSettings

if TYPE_CHECKING:
    from mmrl.build.policies import AnyPolicy
    from mmrl.understanding.vlm_policy import VLMPolicy

GENERATED_SAMPLES = 200
"""The number of generated samples, unless the command sets another."""
GENERATED_SEED = 51


@dataclass(frozen=True)
class SampleSource:
    """The origin of the samples."""

    path: str
    """A `data.path`, the folder of a protocol's public files, or the scheme of a package that generates such files."""
    limit: int | None = None
    """The number of samples that are read, from the first, or that are generated; None: all, or the default."""
    protocol: ProtocolConfig | None = None
    """The benchmark as published; None: the samples are a data set."""
    overridden: ProtocolConfig | None = None
    """The protocol with the values that a package sets for its generated data; None: the files are public."""

    @classmethod
    def find(cls, path: str, limit: int | None = None, protocol: ProtocolConfig | None = None) -> SampleSource:
        """Look up which package generates the data, if any does. Nothing is read."""
        if protocol is None or path not in BENCHMARK_DATA.names():
            return cls(path, limit, protocol)
        changes = BENCHMARK_DATA.load(path).overrides(protocol.name)
        return cls(path, limit, protocol, protocol.overridden(changes))

    @property
    def is_generated(self) -> bool:
        """Return whether a package generates the benchmark's files."""
        return self.overridden is not None

    @property
    def scoring(self) -> ProtocolConfig | None:
        """The protocol whose rewards and metrics hold for these samples."""
        return self.overridden or self.protocol


@dataclass(frozen=True)
class SelectedRewards:
    """The rewards and metrics of a comparison."""

    rewards: tuple[RewardConfig, ...]
    for_all: bool
    """True replaces the rewards that samples name."""
    metrics: tuple[MetricConfig, ...] = ()


def read_samples(
    source: SampleSource,
    kind: ModelKind = "pipeline",
    media: MediaConfig | None = None,
    folder: Path | None = None,
    seed: int = GENERATED_SEED,
) -> list[Sample]:
    """Read the samples; those of a protocol with the prompts of its files.

    A package's default split depends on the kind of the policies. Generated files, which depend on `seed`, go to
    `folder`; files that exist there are read again.

    Raises:
        ConfigError, DataError: The samples cannot be read.
    """
    protocol = source.protocol
    if protocol is None:
        path = source.path
        if path in BENCHMARK_DATA.names():
            path = BENCHMARK_DATA.load(path).validation.get(kind, path)
        return load_samples(path, media)[: source.limit]
    if source.is_generated:
        assert folder is not None
        _generate(source.path, protocol.format, folder, source.limit or GENERATED_SAMPLES, seed)
        return read_benchmark(protocol.format, folder)[: source.limit]
    samples = read_benchmark(protocol.format, source.path)
    check_media_files(samples)
    return samples[: source.limit]


def fit_samples(
    samples: Sequence[Sample],
    source: SampleSource,
    model: ModelRef,
    policy: AnyPolicy,
    shared: SharedSettings,
    selected: SelectedRewards,
) -> list[Sample]:
    """Prepare the samples for a policy: its prompts, and the rewards that score its answers.

    Raises:
        ConfigError, DataError: The policy cannot take a sample, or no reward scores one.
    """
    answers = shared.answers
    if source.protocol is not None and model.policy.kind == "vlm":
        own = scheme_of(model.policy.model) == source.path
        fitted = for_vlm(source, samples, cast("VLMPolicy", policy), own, answers.thinking, answers.space)
    else:
        prompted = samples if source.protocol is None else for_generator(source, samples)
        fitted = prepare_samples(policy, model.policy, answers, shared.sampling, prompted)
    scored = [with_rewards(sample, selected) for sample in fitted]
    check_scored(scored, selected, model.name)
    return scored


def for_generator(source: SampleSource, samples: Sequence[Sample]) -> list[Sample]:
    """Return a protocol's samples with the prompts that it gives to generators."""
    assert source.scoring is not None
    return [replace(sample, prompt=source.scoring.question(sample.prompt)) for sample in samples]


def for_vlm(
    source: SampleSource,
    samples: Sequence[Sample],
    policy: VLMPolicy,
    own: bool,
    thinking: Thinking = "off",
    space: Space | None = None,
) -> list[Sample]:
    """Return a protocol's samples with its task's instruction, coordinates in the model's format, and its rewards.

    `own`: one package provides the model and generates the data; such a model gets the questions that it was trained
    on, without an instruction.

    Raises:
        DataError: A sample does not fit the protocol's task, or the model cannot take its media.
    """
    protocol, scoring = source.protocol, source.scoring
    assert protocol is not None and scoring is not None
    rewards = tuple(RewardChoice(each.name, each.weight, each.args) for each in scoring.rewards)
    if own and source.is_generated:
        questions = [replace(each, prompt=scoring.question(each.prompt), rewards=rewards) for each in samples]
        return apply_tasks(policy, questions, thinking, space)
    questions = [replace(each, prompt=protocol.question(each.prompt)) for each in samples]
    fitted = apply_tasks(policy, questions, thinking, space, task=protocol.task)
    return [replace(sample, rewards=_with_space(rewards, sample)) for sample in fitted]


def select_rewards(
    source: SampleSource,
    named: Mapping[str, float],
    arguments: Mapping[str, Mapping[str, Any]],
    model: ModelRef,
) -> SelectedRewards:
    """Select the named rewards and the protocol's; without either, those of the model's run and its held-out ones."""
    run = model.run.config if model.run else None
    known = {reward.name: reward.args for reward in run.rewards} if run else {}
    extra = [
        RewardConfig(name=name, weight=weight, args={**known.get(name, {}), **arguments.get(name, {})})
        for name, weight in named.items()
    ]
    if source.scoring is not None:
        listed = [reward for reward in source.scoring.rewards if reward.name not in named]
        return SelectedRewards((*listed, *extra), True, source.scoring.metrics)
    if extra:
        return SelectedRewards(tuple(extra), True)
    if run is None:
        return SelectedRewards((), False)
    trained = [_as_measure(reward) for reward in run.rewards]
    names = {reward.name for reward in trained}
    heldout = [RewardConfig(name=name, weight=0.0) for name in run.evaluation.rewards if name not in names]
    return SelectedRewards((*trained, *heldout), False)


def with_rewards(sample: Sample, selected: SelectedRewards) -> Sample:
    """Return the sample with the rewards that score it.

    A reward that the sample named already keeps the arguments that its task gave it, such as the coordinates of the
    answers, unless the selection sets others.
    """
    if not selected.for_all or not sample.rewards:
        return sample
    own = {each.name: each.args for each in sample.rewards}
    if not any(reward.name in own for reward in selected.rewards):
        return replace(sample, rewards=())
    rewards = tuple(RewardChoice(r.name, r.weight, {**own.get(r.name, {}), **r.args}) for r in selected.rewards)
    return replace(sample, rewards=rewards)


def check_scored(samples: Sequence[Sample], selected: SelectedRewards, model: str) -> None:
    """Raise unless a reward with a weight scores every sample.

    Raises:
        ConfigError: A sample has no reward, or all weights are 0.
    """
    bare = next((sample for sample in samples if not sample.rewards), None)
    if bare is None:
        return
    if not selected.rewards:
        raise ConfigError(
            f"no reward scores sample {bare.id!r}: {model} has no rewards, nor has the sample: name one with --reward"
        )
    if not any(reward.weight for reward in selected.rewards):
        raise ConfigError("--reward: all weights are 0; give one of them another, as in --reward clip_score=1")


def digest_of_samples(samples: Sequence[Sample]) -> str:
    """Return the SHA-256 of the samples; of media files it covers the names alone."""

    def file_name(path: str) -> str:
        return path if path.startswith("data:") else Path(path).name

    digest = hashlib.sha256()
    for sample in samples:
        fields = asdict(sample) | {
            "images": [file_name(path) for path in sample.images],
            "videos": [file_name(path) for path in sample.videos],
            "conditions": {k: file_name(v) if isinstance(v, str) else v for k, v in sample.conditions.items()},
        }
        digest.update(json.dumps(fields, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _generate(scheme: str, format: str, folder: Path, count: int, seed: int) -> None:
    """Write a benchmark's files, all of them or none; a folder that exists is left as it is."""
    if folder.exists():
        return
    draft = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        BENCHMARK_DATA.load(scheme).write(format, draft, count, seed)
    except KeyError as err:
        shutil.rmtree(draft)
        raise ConfigError(f"--data: {err.args[0]}") from err
    draft.rename(folder)


def _as_measure(reward: RewardConfig) -> RewardConfig:
    """Return a run's reward as a measure: no constraint, whose weight is then 0, no gate, condition or cascade."""
    weight = reward.weight if reward.at_least is None else 0.0
    return reward.model_copy(update={"weight": weight, "at_least": None, "gate": None, "counts_if": None, "after": {}})


def _with_space(rewards: Sequence[RewardChoice], sample: Sample) -> tuple[RewardChoice, ...]:
    """Return the rewards with the coordinates that the sample's task set for its answers."""
    space = next((own.args["space"] for own in sample.rewards if "space" in own.args), None)
    if space is None:
        return tuple(rewards)
    return tuple(replace(each, args={"space": space, **each.args}) for each in rewards)
