"""Checkpoints compared: the same samples, noise and settings, whatever kills it in between."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import mmrl
from mmrl.atomic_io import replace_file
from mmrl.benchmarks.metrics import build_metric
from mmrl.benchmarks.protocol import ProtocolConfig, load_protocol
from mmrl.build.checkpoint_pool import Kind
from mmrl.config.policy import AnyPolicyConfig
from mmrl.data.media.reader import reader_of
from mmrl.errors import ConfigError, EvaluationError, RunError
from mmrl.evaluation.comparison import AggregationPlan, EvaluatedModel, Result, aggregate, write_result
from mmrl.evaluation.comparison.comparison_page import write_pages
from mmrl.evaluation.comparison.progress import ComparisonDisplay
from mmrl.evaluation.image_grid import prompt_image
from mmrl.rewards import Reward
from mmrl.rewards.core.routing import SharedLoader
from mmrl.rewards.core.suite import TOTAL
from mmrl.rewards.models.clip_encoder import EmbeddingReward, Encoder, load_encoder
from mmrl.statistics.diversity import Distances, Embedder
from mmrl.training.run.run_folder import only_writer
from mmrl.workflows.compare.answers import Job, Scored, generate_answers
from mmrl.workflows.compare.entries import ComparedModel, Shared, find_contenders, share_settings
from mmrl.workflows.compare.inputs import (
    MADE,
    Chosen,
    Source,
    choose_rewards,
    digest_of_samples,
    read_material,
    refuse_unscored,
)
from mmrl_shapeworld import shipped_models

SETTINGS = "settings.json"
LIBRARIES = ("torch", "diffusers", "transformers", "peft", "safetensors", "numpy", "Pillow")


@dataclass(frozen=True)
class Request:
    """What is to be compared, on what, and how."""

    subjects: tuple[str, ...]  # as `resolve_model` takes them
    protocol: str | None = None  # its name or file
    data: str | None = None  # as `data.path`; a folder with the files of the protocol; or `shapeworld`
    rewards: Mapping[str, float] = field(default_factory=dict)  # with weights
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of rewards, by name
    draws: int | None = None  # of each sample; None: as the protocol says, or 1
    samples: int | None = None  # from the first; None: all
    seed: int = 1234
    batch: int = 32  # rows that are drawn at once, and kept or lost together
    kind: Kind = "pipeline"  # of subjects that no run trained
    bases: bool = True  # whether runs are compared with what they began with
    out: Path | None = None  # None: evaluations/<protocol or data>-<digest of the settings>


@dataclass(frozen=True)
class Outcome:
    """A comparison on the disk."""

    folder: Path
    result: Result


def compare(request: Request, display: ComparisonDisplay) -> Outcome:
    """Let every subject answer what it has not answered yet, and sum up.

    Raises:
        ConfigError, DataError: what is asked for does not fit together; nothing was drawn.
        EvaluationError: no subject could answer, or another process writes into the folder.
    """
    protocol = load_protocol(request.protocol) if request.protocol else None
    path = _data(request, protocol)
    contenders = find_contenders(request.subjects, request.kind, request.bases)
    first = next(each.subject for each in contenders if each.name == request.subjects[0])
    shared = share_settings(first, contenders, protocol)
    source = Source(path, protocol, request.samples)
    chosen = choose_rewards(protocol, source.is_made, request.rewards, request.arguments, first)
    for metric in chosen.metrics:
        build_metric(metric)  # what is wrong with one is said before anything is drawn
    samples = [] if source.is_made else read_material(source, first)
    if first.policy.kind != "vlm" and not source.is_made:  # tasks give rewards to samples of VLMs, once they are fitted
        refuse_unscored(samples, chosen, first.name)
    draws = request.draws or (protocol.draws if protocol else 1)
    settings = _settings(request, source, shared, chosen, draws)
    settings |= {} if source.is_made else {"samples": len(samples), "samples_digest": digest_of_samples(samples)}
    folder = request.out or Path("evaluations") / f"{_stem(request)}-{_digest(settings)[:8]}"
    with ExitStack() as stack:
        _lock(stack, folder)
        _refuse_other_settings(folder, settings)
        if source.is_made:
            source = replace(source, folder=folder / "data")
            samples = read_material(source, first)
        load = SharedLoader()
        job = Job(folder, source, samples, shared, chosen, draws, request.batch, request.seed, load, display)
        scored, failed = generate_answers(job, contenders)
        answered = [each for each in contenders if each.name not in failed]
        if not answered:
            raise EvaluationError("\n".join(f"{name}: {why}" for name, why in failed.items()))
        result = _summed(job, answered, scored, failed, settings)
        write_result(result, folder)
        write_pages(result, folder, _shown(job))
    return Outcome(folder, result)


def _summed(
    job: Job, answered: Sequence[ComparedModel], scored: Scored, failed: Mapping[str, str], settings: Mapping[str, Any]
) -> Result:
    there = {each.name for each in answered}
    plan = AggregationPlan(
        metrics=job.chosen.metrics,
        headline=scored.headline,
        shows_total=scored.headline == TOTAL,
        lower=scored.lower,
        distances=Distances(find_embedder(scored.rewards, answered[0].subject.policy)),
        seed=job.seed,
    )
    entrants = [_entrant(each, there) for each in answered]
    return aggregate(job.folder, entrants, job.draws, plan, settings, _provenance(), job.shared.notes, failed)


def _entrant(contender: ComparedModel, there: set[str]) -> EvaluatedModel:
    subject = contender.subject
    return EvaluatedModel(
        name=contender.name,
        file=contender.file,
        model=subject.policy.model,
        step=subject.step,
        checkpoint=str(subject.checkpoint) if subject.checkpoint else None,
        digest=contender.digest,
        base=contender.base if contender.base in there else None,
    )


def _settings(request: Request, source: Source, shared: Shared, chosen: Chosen, draws: int) -> dict[str, Any]:
    """All that numbers depend on, but the subjects."""
    protocol = source.protocol
    data = source.path if protocol is None or not source.is_made else f"shapeworld, as {protocol.format}"
    return {
        "title": protocol.title if protocol else f"Comparison on {data}",
        "protocol": protocol.model_dump(mode="json") if protocol else None,
        "data": data,
        "samples": request.samples or MADE,
        "draws": draws,
        "seed": request.seed,
        "batch": request.batch,
        "sampling": shared.sampling.model_dump(mode="json"),
        "answers": shared.answers.model_dump(mode="json"),
        "media": shared.media.model_dump(mode="json", include={"image", "video"}),
        "rewards": [reward.model_dump(mode="json") for reward in chosen.rewards],
        "rewards_for_all": chosen.for_all,
        "metrics": [metric.model_dump(mode="json") for metric in chosen.metrics],
    }


def _data(request: Request, protocol: ProtocolConfig | None) -> str:
    if request.data is not None:
        return request.data
    if protocol is None:
        raise ConfigError("--data: say what the subjects are to answer, or name a --protocol")
    raise ConfigError(
        f"--data: {protocol.title} needs its files ({protocol.files}): give their folder, or take --data shapeworld "
        "for small data in the same format"
    )


def _stem(request: Request) -> str:
    return Path((request.protocol or request.data or "").replace(":", "-")).stem or "comparison"


def _digest(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _lock(stack: ExitStack, folder: Path) -> None:
    try:
        stack.enter_context(only_writer(folder))
    except RunError as err:
        raise EvaluationError(f"{folder}: another process writes into it: wait, or choose another --out") from err


def _refuse_other_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Write down what the comparison is of, or refuse a folder that holds another one."""
    path = folder / SETTINGS
    if not path.exists():
        replace_file(path, json.dumps(settings, indent=1) + "\n")
        return
    try:
        known = dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as err:
        raise EvaluationError(f"{path}: cannot be read ({err}): choose another --out") from None
    wanted = json.loads(json.dumps(settings))
    if differing := [key for key in {**known, **wanted} if known.get(key) != wanted.get(key)]:
        raise ConfigError(
            f"{folder} holds a comparison with other settings ({', '.join(differing)} differ): choose another --out"
        )


def _shown(job: Job) -> Any:
    """From the number of a sample to the picture that was shown with it."""
    reader = reader_of(job.shared.media)

    def shown(number: int) -> Image.Image | None:
        sample = job.samples[number]
        return prompt_image(sample, reader) if sample.images or sample.videos else None

    return shown


def _provenance() -> dict[str, Any]:
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "mmrl": mmrl.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "device": device,
        "versions": versions,
    }


# What sees how alike two pictures are, where a model for it is at hand.


@dataclass(frozen=True)
class PictureEmbedder:
    """A CLIP."""

    name: str
    encoder: Encoder

    def __call__(self, pictures: Sequence[Image.Image]) -> NDArray[np.float32]:
        """[B, D]: a unit vector of each picture."""
        device = next(self.encoder.network.parameters()).device
        with torch.no_grad():
            points = self.encoder.embed_pixels(self.encoder.pixels(pictures).to(device))
        return np.asarray(points.float().cpu().numpy(), np.float32)


def find_embedder(rewards: Sequence[Reward], policy: AnyPolicyConfig) -> Embedder | None:
    """The encoder of the first reward that has one; else ShapeWorld's CLIP for its own models; else none."""
    for reward in rewards:
        if isinstance(reward, EmbeddingReward):
            return PictureEmbedder(f"the CLIP of {reward.name}", reward.encoder)
    if shipped_models.is_shipped(policy.model):
        from mmrl_shapeworld.clip_model import CLIP

        return PictureEmbedder("ShapeWorld's CLIP", load_encoder("evaluate", str(CLIP)))
    return None
