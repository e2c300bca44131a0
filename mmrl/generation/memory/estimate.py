"""Estimate the memory of a training run from the model's configuration files.

The policy runs a rollout and the update of one denoising step on the meta device (`meta_run`): its recording, the
denoiser calls of its guidance and the tensors that autograd keeps are measured, not derived.

Most of a denoiser is one block, repeated: the cost of a block is measured with two and three of them, and extrapolated.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from diffusers import DiffusionPipeline
from PIL import Image
from torch import Tensor, nn

from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.named_models import POLICY, kind_of
from mmrl.config.sampling import SamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.data.media.sample_media import media_kind
from mmrl.data.sample import Sample
from mmrl.distributed.divided_blocks import all_blocks
from mmrl.errors import UnsupportedError
from mmrl.finetuning.diffusers_modules import DiffusersFull
from mmrl.generation.diffusion.denoiser_hook import find_denoisers
from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
from mmrl.generation.diffusion.pytree import map_leaves
from mmrl.generation.diffusion.recording import Recording
from mmrl.generation.diffusion.scheduler_families import convert_scheduler
from mmrl.generation.memory.architecture import Architecture, build_component
from mmrl.generation.memory.memory_report import (
    OLD_POLICY,
    ComponentWeights,
    MemoryEstimate,
    OtherModel,
    UpdateMemory,
)
from mmrl.generation.memory.meta_run import meta_pipeline
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest

WORDS = 64
"""The number of words of the assumed prompt."""

LITTLE_NOISE = 0.02
"""A noise level at which the last of several denoisers computes."""

_MEDIA_BY_NAME = {
    "Kontext": ("image",),
    "Edit": ("image",),
    "Img2Img": ("image",),
    "InstructPix2Pix": ("image",),
    "Inpaint": ("image", "mask_image"),
    "Fill": ("image", "mask_image"),
    "Control": ("image", "control_image", "control_mask"),
}
"""The media that a pipeline with this part in its name needs if it takes them: its signature makes them optional."""


def estimate_memory(config: TrainConfig, architecture: Architecture) -> MemoryEstimate:
    """Return the estimated memory of a run.

    Raises:
        ConfigError: the configuration does not fit the pipeline.
        UnsupportedError: the pipeline cannot be trained, or cannot run on the meta device.
    """
    policy, geometry = config.policy, BatchPlan.of(config)
    dtype = getattr(torch, policy.dtype)
    full = policy.train == "full"
    trial = Trial(config, architecture, torch.float32 if full else dtype)
    plain, recomputed = trial.updates()
    weights, reference = count_weights(architecture, dtype), 0
    frozen = weights
    if full:
        trained = {name: build_component(architecture, name, kind, dtype) for name, kind in trial.trained.items()}
        frozen = [each for each in frozen if each.name not in trained] + _buffers(trained)
        with DiffusersFull(trained).reference():
            reference = sum(p.nbytes for each in trained.values() for p in each.parameters())
        if dtype != torch.float32:
            copies = trial.parameters * dtype.itemsize
            plain, recomputed = _with_copies(plain, copies), recomputed and _with_copies(recomputed, copies)
    rollout_at, rollout = max(trial.recorder.peaks.items(), key=lambda peak: peak[1])
    return MemoryEstimate(
        frozen=tuple(frozen),
        trained=trial.parameters,
        copies=(
            *(["moving average"] if config.optimizer.ema is not None else []),
            *([OLD_POLICY] if config.algorithm.name in ("diffusion_nft", "awm") else []),
            *(name for name, model in config.models.items() if model.changes and model.of == POLICY),
        ),
        reference=reference,
        adapted=0 if full else sum(each.bytes for each in frozen if each.name in trial.trained),
        gathered=trial.gathered(),
        recording=trial.recording,
        micro_batches=geometry.micro_batches,
        rollout=rollout,
        rollout_at=rollout_at,
        plain=plain,
        recomputed=recomputed,
        checkpointing=policy.gradient_checkpointing,
        assumptions=tuple(_assumptions(config, architecture)),
        others=tuple(
            OtherModel(name, sum(each.bytes for each in weights), offloaded=config.models[name].offload)
            for name in teachers_of(config)
        ),
    )


def teachers_of(config: TrainConfig) -> list[str]:
    """Return the names of further pipelines that a run loads whole, those beside a policy that is one."""
    return [name for name, model in config.models.items() if model.model and kind_of(config, name) == "pipeline"]


def models_that_write(config: TrainConfig) -> list[str]:
    """Return the names of further models that no configuration file describes here: they are counted once loaded."""
    return [name for name, model in config.models.items() if model.model and kind_of(config, name) != "pipeline"]


def count_weights(architecture: Architecture, dtype: torch.dtype) -> list[ComponentWeights]:
    """Return the sizes of all networks of a pipeline."""
    counted = []
    for name, kind in architecture.classes():
        if kind is not None and issubclass(kind, nn.Module):
            network = build_component(architecture, name, kind, dtype)
            counted.append(ComponentWeights(name, sum(p.numel() for p in network.parameters()), module_bytes(network)))
    return counted


def module_bytes(module: nn.Module) -> int:
    """Return the bytes of a module's parameters and buffers."""
    return sum(each.nbytes for each in [*module.parameters(), *module.buffers()])


class Trial:
    """A rollout call of a policy on the meta device, and its update."""

    def __init__(self, config: TrainConfig, architecture: Architecture, dtype: torch.dtype) -> None:
        policy, self._sampling = config.drawing()
        self._config = config
        self._pipeline, self.recorder = meta_pipeline(architecture, dtype)
        if policy.scheduler:
            self._pipeline.scheduler = convert_scheduler(self._pipeline.scheduler, policy.scheduler)
        self._denoisers = find_denoisers(self._pipeline)
        chosen = policy.denoisers or self._denoisers
        self.trained = {name: kind for name, kind in architecture.classes() if kind and name in chosen}
        self.policy = PipelinePolicy(
            self._pipeline, self._sampling, train=policy.train, lora=policy.lora, denoisers=policy.denoisers
        )
        parameters = self.policy.parameters_to_train().values()
        self.parameters = sum(p.numel() for p in parameters)
        for parameter in parameters:  # counted separately; they exist from the second micro-batch on
            parameter.grad = torch.zeros_like(parameter)
        self.recording = 0
        """The bytes that the rollout call keeps for its replays."""
        self._rollout: Rollout | None = None

    def gathered(self) -> int:
        """Return the bytes of all parameters outside of a denoiser's blocks and of its two largest blocks."""
        outside, blocks = 0, [0, 0]
        for denoiser in (self._denoisers[name] for name in self.trained):
            counted: set[int] = set()
            for block in all_blocks(denoiser):
                own = {id(each): each for each in block.parameters() if id(each) not in counted}
                counted |= own.keys()
                needed = sum(each.nbytes * (2 if each.requires_grad else 1) for each in own.values())
                if block is denoiser:
                    outside += needed
                else:
                    blocks.append(needed)
        return outside + sum(sorted(blocks)[-2:])

    def updates(self) -> tuple[UpdateMemory, UpdateMemory | None]:
        """Return the update's memory without and with gradient checkpointing; None if a denoiser has none."""
        runs = [run for denoiser in self._denoisers.values() for run in find_block_runs(denoiser)]
        figures = extrapolate(runs, self._measure)
        pairs = [UpdateMemory(*figures[i : i + 2]) for i in range(0, len(figures), 2)]
        return pairs[0], pairs[1] if len(pairs) > 1 else None

    def _measure(self) -> list[int]:
        if self._rollout is None:
            self._rollout = self._roll_out()
        figures = self._update(self._rollout)
        if all(denoiser._supports_gradient_checkpointing for denoiser in self._denoisers.values()):
            for denoiser in self._denoisers.values():
                denoiser.enable_gradient_checkpointing()
            figures += self._update(self._rollout)
            for denoiser in self._denoisers.values():
                denoiser.disable_gradient_checkpointing()
        return figures

    def _roll_out(self) -> Rollout:
        with placeholder_sample(self._pipeline, self._sampling) as sample, torch.no_grad():
            request = RolloutRequest(sample, n=BatchPlan.of(self._config).micro_batch, group=0)
            rollout = self.policy.rollout([request], 0)
        self.recording = recording_bytes(rollout)
        return rollout

    def _update(self, rollout: Rollout) -> list[int]:
        """Return the bytes that a pass keeps, and its peak; of two denoisers one may be frozen, and keep nothing."""
        if len(self.trained) == len(self._denoisers):
            return self._update_at(rollout, 0, 0.5)
        ends = self._update_at(rollout, 0, 1.0), self._update_at(rollout, -1, LITTLE_NOISE)
        return [max(each) for each in zip(*ends, strict=True)]

    def _update_at(self, rollout: Rollout, decision: int, sigma: float) -> list[int]:
        """Return the figures of a decision, or of a velocity at a noise level where there are none."""
        counter = self.recorder.bytes
        counter.restart()
        before, seen = counter.now, []

        def backward(_: Any = None) -> None:
            seen.append(counter.now - before)
            self.recorder.backward()

        with torch.enable_grad():
            if rollout.log_probs.shape[1]:
                self.policy.replay(rollout, [decision % rollout.log_probs.shape[1]], backward)
            elif rollout.clean is not None:
                self.policy.predict_velocity(rollout, rollout.clean, sigma)
                backward()
        return [*seen, counter.peak - before]


@contextmanager
def placeholder_sample(pipeline: DiffusionPipeline, sampling: SamplingConfig) -> Iterator[Sample]:
    """Yield a sample with a prompt of `WORDS` words, and images of the sampling size if the pipeline needs them."""
    kind = type(pipeline)
    arguments = inspect.signature(kind.__call__).parameters
    media = {name: media_kind(name) for name, each in arguments.items() if each.default is inspect.Parameter.empty}
    needed = {name for name, its_kind in media.items() if its_kind}
    for part, names in _MEDIA_BY_NAME.items():
        needed |= set(names) & arguments.keys() if part in kind.__name__ else set()
    if "video" in media.values():
        raise UnsupportedError(f"{kind.__name__} needs a video beside the prompt, which the estimate does not have")
    with TemporaryDirectory() as folder:
        picture = Path(folder) / "picture.png"
        if needed:
            side = _own_size(pipeline)
            Image.new("RGB", (sampling.width or side, sampling.height or side)).save(picture)
        yield Sample("0", prompt=" ".join(["word"] * WORDS), conditions=dict.fromkeys(needed, str(picture)))


def _own_size(pipeline: DiffusionPipeline) -> int:
    """Return the side in pixels of the pictures that a pipeline makes where no size is set; 1024 if it does not say."""
    denoiser: Any = getattr(pipeline, "unet", None) or getattr(pipeline, "transformer", None)
    cells = getattr(getattr(denoiser, "config", None), "sample_size", None)
    scale = getattr(pipeline, "vae_scale_factor", None)
    return cells * scale if isinstance(cells, int) and isinstance(scale, int) else 1024


def recording_bytes(rollout: Rollout) -> int:
    """Return the bytes that a rollout keeps on its device for its replays."""
    storages: dict[int, int] = {}

    def add(tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage.nbytes()

    recording = rollout.recording
    assert isinstance(recording, Recording)
    entries = [entry.value for entry in recording.call_cache.entries]
    tensors = [entries, recording.next_latents, recording.probe, rollout.clean, rollout.log_probs, rollout.mask]
    map_leaves(Tensor, add, tensors)
    return sum(storages.values())


def _buffers(networks: Mapping[str, nn.Module]) -> list[ComponentWeights]:
    """Return the sizes of the buffers of fully trained denoisers, which keep their dtype."""
    found = {name: list(network.buffers()) for name, network in networks.items()}
    return [
        ComponentWeights(f"{name}'s buffers", sum(b.numel() for b in buffers), sum(b.nbytes for b in buffers))
        for name, buffers in found.items()
        if buffers
    ]


def _with_copies(update: UpdateMemory, copies: int) -> UpdateMemory:
    return UpdateMemory(update.kept + copies, update.peak + copies)


def _assumptions(config: TrainConfig, architecture: Architecture) -> Iterator[str]:
    yield f"Shapes from {architecture.origin}, prompts of {WORDS} words, fused attention."
    if config.policy.train == "full" and config.policy.dtype != "float32":
        yield f"Full training: as in float32, with a {config.policy.dtype} copy of the weights while a graph lives."
    if teachers := teachers_of(config):
        yield f"Models beside the policy are taken for as large as it: {', '.join(teachers)}."
    if others := models_that_write(config):
        yield f"Not counted: models that write ({', '.join(others)}), which `mmrl plan` counts."
    yield "Not counted: reward models, pictures on their way to the CPU, CUDA's own memory, fragmentation."
    if config.data.validation:
        yield f"Not counted: evaluation, which generates evaluation.batch = {config.evaluation.batch} at once."


SHORT = 2
"""The number of blocks of each run in the shortened model. The first may differ: its input needs no gradient."""


@dataclass(frozen=True)
class BlockRun:
    """Consecutive equal blocks in a list of blocks."""

    blocks: nn.ModuleList
    names: tuple[str, ...]


def find_block_runs(module: nn.Module) -> list[BlockRun]:
    """Return the runs of more than `SHORT` equal blocks in the module's direct block lists."""
    found = []
    for blocks in module.children():
        if isinstance(blocks, nn.ModuleList):
            for _, run in groupby(blocks.named_children(), key=lambda named: _shape(named[1])):
                names = tuple(name for name, _ in run)
                if len(names) > SHORT:
                    found.append(BlockRun(blocks, names))
    return found


def extrapolate(runs: Sequence[BlockRun], measure: Callable[[], Sequence[int]]) -> list[int]:
    """Return the result of `measure` for the whole module, given that each block of a run adds the same amount.

    `measure` is called with all runs shortened, then once for each run with one block more.
    """
    lengths = [SHORT] * len(runs)
    with _cut(runs, lengths):
        short = measure()
    whole = list(short)
    for number, run in enumerate(runs):
        with _cut(runs, [length + (place == number) for place, length in enumerate(lengths)]):
            longer = measure()
        left_out = len(run.names) - SHORT
        whole = [sum_ + left_out * (more - less) for sum_, more, less in zip(whole, longer, short, strict=True)]
    return whole


@contextmanager
def _cut(runs: Sequence[BlockRun], lengths: Sequence[int]) -> Iterator[None]:
    """While open, each run has `lengths` blocks."""
    before = [(run.blocks, dict(run.blocks._modules)) for run in runs]
    try:
        for run, length in zip(runs, lengths, strict=True):
            for name in run.names[length:]:
                del run.blocks._modules[name]
        yield
    finally:
        for blocks, modules in before:
            blocks._modules.update(modules)
            for name in modules:
                blocks._modules[name] = blocks._modules.pop(name)  # restores the order


def _shape(block: nn.Module) -> tuple[object, ...]:
    parts = [(name, type(part).__name__) for name, part in block.named_modules()]
    return type(block), tuple(parts), tuple((name, tuple(p.shape)) for name, p in block.named_parameters())
