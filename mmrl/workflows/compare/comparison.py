"""`mmrl evaluate`: compare checkpoints on the same samples, noise and settings.

Every batch of answers is kept when it is done, so an interrupted comparison continues where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import mmrl
from mmrl.atomic_io import replace_text
from mmrl.benchmarks.metrics import build_metric
from mmrl.benchmarks.protocol import ProtocolConfig, load_protocol
from mmrl.build.model_references import ModelKind
from mmrl.build.schemes import BENCHMARK_DATA, IMAGE_EMBEDDERS, scheme_of
from mmrl.components import named_files
from mmrl.data.media.reader import reader_of
from mmrl.errors import ConfigError, EvaluationError, RunError
from mmrl.evaluation.comparison import AggregationPlan, EvaluatedModel, Result, aggregate, write_result
from mmrl.evaluation.comparison.comparison_page import write_pages
from mmrl.evaluation.comparison.progress import ComparisonDisplay
from mmrl.evaluation.image_grid import prompt_image
from mmrl.file_digest import file_digest
from mmrl.rewards import Reward
from mmrl.rewards.core.reward_io import TOTAL
from mmrl.rewards.core.routing import SharedLoader
from mmrl.rewards.models.clip_encoder import EmbeddingReward, Encoder
from mmrl.statistics.distances import Distances, Embedder
from mmrl.training.run.run_folder import only_writer
from mmrl.workflows.compare.answers import CompareJob, ScoredBy, generate_answers
from mmrl.workflows.compare.entries import ComparedModel, SharedSettings, find_models, share_settings
from mmrl.workflows.compare.inputs import (
    GENERATED_SAMPLES,
    SampleSource,
    SelectedRewards,
    check_scored,
    digest_of_samples,
    read_samples,
    select_rewards,
)

SETTINGS = "settings.json"
LIBRARIES = ("torch", "diffusers", "transformers", "peft", "safetensors", "numpy", "Pillow")


@dataclass(frozen=True)
class CompareRequest:
    """The models, samples and settings of a comparison."""

    models: tuple[str, ...]
    """Names as `resolve_model` takes them."""
    protocol: str | None = None
    """The name or YAML file of a benchmark protocol."""
    data: str | None = None
    """A `data.path`, a folder with the protocol's files, or the scheme of a package that generates them."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Weights of further rewards, by name."""
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Arguments of rewards, by name."""
    draws: int | None = None
    """Answers to each sample; None: the protocol's number, or 1."""
    samples: int | None = None
    """The number of samples, from the first; None: all."""
    seed: int = 1234
    batch: int = 32
    """Answers that are generated together, and kept or lost together."""
    kind: ModelKind = "pipeline"
    """The kind of models that no run trained."""
    api_key_env: str = ""
    """The environment variable with the key of servers among the models; empty: they need none."""
    bases: bool = True
    """True also compares the models that the runs' training began with."""
    out: Path | None = None
    """The folder of the results; None: evaluations/<protocol or data>-<digest of the settings>."""


@dataclass(frozen=True)
class CompareResult:
    """A finished comparison and the folder of its files."""

    folder: Path
    result: Result


def compare(request: CompareRequest, display: ComparisonDisplay) -> CompareResult:
    """Generate the answers that are missing, score them, and write results and pages.

    Raises:
        ConfigError, DataError: The request cannot be carried out; nothing was generated.
        EvaluationError: No model could answer, or another process writes into the folder.
    """
    protocol = load_protocol(request.protocol) if request.protocol else None
    path = _data_path(request, protocol)
    entries = find_models(request.models, request.kind, request.bases, request.api_key_env)
    first = next(each.model for each in entries if each.name == request.models[0])
    shared = share_settings(first, entries, protocol)
    source = SampleSource.find(path, request.samples, protocol)
    selected = select_rewards(source, request.rewards, request.arguments, first)
    for metric in selected.metrics:
        build_metric(metric)  # raises for a wrong metric before anything is generated
    kind = first.policy.kind
    samples = [] if source.is_generated else read_samples(source, kind, first.media)
    if kind != "vlm" and not source.is_generated:  # samples of VLMs get rewards from their tasks later
        check_scored(samples, selected, first.name)
    draws = request.draws or (protocol.draws if protocol else 1)
    settings = _settings(request, source, shared, selected, draws)
    if not source.is_generated:
        settings |= {"samples": len(samples), "samples_digest": digest_of_samples(samples)}
    scored_with = named_files([settings["rewards"], settings["metrics"], settings["protocol"]])
    if files := {path: file_digest(Path(path)) for path in scored_with}:
        settings["files"] = files
    folder = request.out or _default_folder(request, settings)
    with ExitStack() as stack:
        try:
            stack.enter_context(only_writer(folder))
        except RunError as err:
            raise EvaluationError(f"{folder}: another process writes into it: wait, or choose another --out") from err
        _check_settings(folder, settings)
        if source.is_generated:
            samples = read_samples(source, kind, folder=folder / "data")
        load = SharedLoader()
        job = CompareJob(folder, source, samples, shared, selected, draws, request.batch, request.seed, load, display)
        scored_by, failed = generate_answers(job, entries)
        answered = [each for each in entries if each.name not in failed]
        if not answered:
            raise EvaluationError("\n".join(f"{name}: {error}" for name, error in failed.items()))
        result = _aggregate(job, answered, scored_by, failed, settings)
        write_result(result, folder)
        reader = reader_of(shared.media)
        write_pages(result, folder, lambda number: prompt_image(samples[number], reader))
    return CompareResult(folder, result)


def _aggregate(
    job: CompareJob,
    answered: Sequence[ComparedModel],
    scored_by: ScoredBy,
    failed: Mapping[str, str],
    settings: Mapping[str, Any],
) -> Result:
    names = {each.name for each in answered}
    plan = AggregationPlan(
        metrics=job.selected.metrics,
        headline=scored_by.headline,
        shows_total=scored_by.headline == TOTAL,
        lower=scored_by.lower,
        distances=Distances(find_embedder(scored_by.rewards, answered[0].model.policy.model)),
        seed=job.seed,
    )
    models = [
        EvaluatedModel(
            name=each.name,
            file=each.file,
            model=each.model.policy.model,
            step=each.model.step,
            checkpoint=str(each.model.checkpoint) if each.model.checkpoint else None,
            digest=each.digest,
            base=each.base if each.base in names else None,
        )
        for each in answered
    ]
    return aggregate(job.folder, models, job.draws, plan, settings, _provenance(), job.shared.notes, failed)


def _settings(
    request: CompareRequest, source: SampleSource, shared: SharedSettings, selected: SelectedRewards, draws: int
) -> dict[str, Any]:
    """Return the settings that the numbers depend on; the models are not among them."""
    protocol = source.protocol
    data = f"{source.path}, as {protocol.format}" if protocol and source.is_generated else source.path
    return {
        "title": protocol.title if protocol else f"Comparison on {data}",
        "protocol": protocol.model_dump(mode="json") if protocol else None,
        "data": data,
        "samples": request.samples or GENERATED_SAMPLES,
        "draws": draws,
        "seed": request.seed,
        "batch": request.batch,
        "sampling": shared.sampling.model_dump(mode="json"),
        "answers": shared.answers.model_dump(mode="json"),
        "media": shared.media.model_dump(mode="json", include={"image", "video"}),
        "rewards": [reward.model_dump(mode="json") for reward in selected.rewards],
        "rewards_for_all": selected.for_all,
        "metrics": [metric.model_dump(mode="json") for metric in selected.metrics],
    }


def _data_path(request: CompareRequest, protocol: ProtocolConfig | None) -> str:
    if request.data is not None:
        return request.data
    if protocol is None:
        raise ConfigError("--data: name the samples, or a --protocol")
    generated = " or ".join(f"--data {scheme}" for scheme in BENCHMARK_DATA.names())
    raise ConfigError(
        f"--data: {protocol.title} needs its files ({protocol.files}): give their folder"
        + (f", or take {generated} for small generated data in the same format" if generated else "")
    )


def _default_folder(request: CompareRequest, settings: Mapping[str, Any]) -> Path:
    stem = Path((request.protocol or request.data or "").replace(":", "-")).stem or "comparison"
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return Path("evaluations") / f"{stem}-{digest[:8]}"


def _check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings into a new folder; raise ConfigError if the folder holds a comparison with other settings."""
    path = folder / SETTINGS
    if not path.exists():
        replace_text(path, json.dumps(settings, indent=1) + "\n", errors="backslashreplace")
        return
    try:
        existing = dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as err:
        raise EvaluationError(f"{path}: cannot be read ({err}): choose another --out") from None
    new = json.loads(json.dumps(settings))
    for each in (existing, new):
        each.update(each.pop("files", {}))  # the message names those that differ
    if differing := [key for key in {**existing, **new} if existing.get(key) != new.get(key)]:
        raise ConfigError(
            f"{folder} holds a comparison with other settings ({', '.join(differing)} differ): choose another --out"
        )


def library_versions(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of the distributions that are installed; mmrl may run from a source folder."""
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _provenance() -> dict[str, Any]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "mmrl": mmrl.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "device": device,
        "versions": library_versions(LIBRARIES),
    }


@dataclass(frozen=True)
class EncoderEmbedder:
    """A CLIP-like network as an `Embedder`, for the diversity and drift columns."""

    name: str
    """The network's name in results."""
    encoder: Encoder

    def __call__(self, pictures: Sequence[Image.Image]) -> NDArray[np.float32]:
        """Return a unit vector for each picture, [B, D]."""
        device = next(self.encoder.network.parameters()).device
        with torch.no_grad():
            embeddings = self.encoder.embed_pixels(self.encoder.pixels(pictures).to(device))
        return np.asarray(embeddings.float().cpu().numpy(), np.float32)


def find_embedder(rewards: Sequence[Reward], model: str) -> Embedder | None:
    """Return the encoder of the first reward that has one, else that of the package that provides `model`, if any."""
    for reward in rewards:
        if isinstance(reward, EmbeddingReward):
            return EncoderEmbedder(f"the CLIP of {reward.name}", reward.encoder)
    scheme = scheme_of(model, IMAGE_EMBEDDERS)
    return None if scheme is None else IMAGE_EMBEDDERS.load(scheme)()
