"""A model at its real size with random weights: Flow-GRPO steps on a GPU, without downloading anything.

    python benchmarks/full_size.py                      # stable-diffusion-3.5-medium, as its recipe says, on CUDA
    python benchmarks/full_size.py flux-dev-lora
    python benchmarks/full_size.py --loop               # beside the loop that Flow-GRPO published (flow_grpo_loop.py)
    python benchmarks/full_size.py --profile            # what the GPU does, and how long it waits
    python benchmarks/full_size.py --smoke              # the same code on a CPU, on a model of a few million parameters

Prints pictures per second of the rollout, seconds of the update, their shares of the speed of a large matrix product,
the replay gap, and the peak memory beside the estimate of `--dry-run` for a run of this one micro-batch. Random weights
draw noise, but cost what trained ones cost.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from diffusers import DiffusionPipeline
from flow_grpo_loop import FlowGRPOLoop
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mmrl.build.training_setup import build_objective
from mmrl.config import BatchPlan, TrainConfig, load_config
from mmrl.data.sample import Sample
from mmrl.generation.diffusion.denoiser_hook import find_denoisers, set_attention
from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
from mmrl.generation.diffusion.scheduler_families import convert_scheduler
from mmrl.generation.memory.architecture import Architecture, build_component, find_architecture
from mmrl.generation.memory.estimate import estimate_memory, placeholder_sample
from mmrl.generation.memory.meta_run import placeholder_tokenizer
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator

SMALL = ["sampling.height=64", "sampling.width=64", "sampling.steps=3", "data.micro_batch=2", "policy.dtype=float32"]
_CLIP = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "projection_dim": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
SHRUNK = {
    "transformer": {
        "num_layers": 2,
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "caption_projection_dim": 32,
        "joint_attention_dim": 32,
        "pooled_projection_dim": 32,
        "dual_attention_layers": [0],
    },
    "text_encoder": _CLIP,
    "text_encoder_2": _CLIP,
    "text_encoder_3": {"d_model": 32, "d_ff": 32, "d_kv": 16, "num_heads": 2, "num_layers": 1},
    "vae": {"block_out_channels": [32, 32, 32, 32], "layers_per_block": 1},
}
"""The sizes that a smoke run changes in Stable Diffusion 3.5 Medium."""
REPEATS = 3


def random_pipeline(architecture: Architecture, dtype: torch.dtype, device: str) -> DiffusionPipeline:
    """Every network of the architecture at its real size; tokenizers know no word."""
    torch.manual_seed(0)
    parts = {}
    for name, kind in architecture.classes():
        if kind is not None and issubclass(kind, nn.Module):
            parts[name] = build_component(architecture, name, kind, dtype, device)
        elif kind is not None and "tokenizer" in name:
            encoder = architecture.configs.get(name.replace("tokenizer", "text_encoder"), {})
            parts[name] = placeholder_tokenizer(encoder.get("max_position_embeddings"))
        else:
            found = kind is not None and name in architecture.configs
            parts[name] = build_component(architecture, name, kind, dtype) if found else None
    return architecture.pipeline(**parts, **architecture.settings())


@contextmanager
def seconds(into: list[float]):
    """Wall time of what is done inside, the GPU's queue included."""
    synchronise()
    begin = time.perf_counter()
    yield
    synchronise()
    into.append(time.perf_counter() - begin)


def synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def batch_of(rollout: Rollout) -> MicroBatch:
    """Credit that alternates: what it is does not matter to the cost."""
    advantages = torch.ones(rollout.rows)
    advantages[1::2] = -1
    scored, device = torch.ones(rollout.rows, dtype=torch.bool), rollout.mask.device
    return MicroBatch(rollout, advantages, scored, (advantages[:, None].to(device) * rollout.mask))


@dataclass(frozen=True)
class Measured:
    """Medians of one loop, and all bytes that were in use at once."""

    rows: int
    decisions: int
    rollout_s: float
    update_s: float
    peak_bytes: int
    rollout_flops: float
    update_flops: float
    replay_gap: float | None = None

    def lines(self, name: str, peak_flops: float) -> Iterator[str]:
        """Yield the text of each figure."""
        yield f"{name}: rows {self.rows}, decisions {self.decisions}"
        yield f"{name}: rollout {self.rows / self.rollout_s:.3f} pictures/s ({self.rollout_s:.3f} s a call)"
        yield f"{name}: update {self.update_s:.3f} s, {self.update_s / max(1, self.decisions):.3f} s a decision"
        yield f"{name}: peak memory {self.peak_bytes / 2**30:.2f} GiB"
        yield f"{name}: {self.rollout_flops / 1e9:.2f} and {self.update_flops / 1e9:.2f} GFLOP in rollout and update"
        if peak_flops:
            shares = (self.rollout_flops / self.rollout_s, self.update_flops / self.update_s)
            yield f"{name}: {shares[0] / peak_flops:.0%} and {shares[1] / peak_flops:.0%} of a large product's speed"
        if self.replay_gap is not None:
            yield f"{name}: replay gap {self.replay_gap:.1e}"


def policy_of(config: TrainConfig, pipeline: DiffusionPipeline) -> PipelinePolicy:
    """Return the policy as `mmrl train` makes it."""
    if config.policy.scheduler:
        pipeline.scheduler = convert_scheduler(pipeline.scheduler, config.policy.scheduler)
    set_attention(find_denoisers(pipeline), config.policy.attention)
    return PipelinePolicy(
        pipeline,
        config.sampling,
        config.policy.train,
        config.policy.lora,
        config.policy.denoisers,
        gradient_checkpointing=config.policy.gradient_checkpointing,
    )


class Step:
    """Rollout, replay and update of one micro-batch."""

    def __init__(self, config: TrainConfig, policy: PipelinePolicy, sample: Sample) -> None:
        self.policy, self.sample = policy, sample
        self.objective = build_objective(config.algorithm, policy, config.sampling)
        self.optimizer = torch.optim.AdamW(policy.parameters_to_train().values(), lr=config.optimizer.lr)
        self.rows = BatchPlan.of(config).micro_batch

    @torch.no_grad()
    def roll_out(self, seed: int) -> Rollout:
        return self.policy.rollout([RolloutRequest(self.sample, n=self.rows, group=0)], seed=seed)

    def update(self, rollout: Rollout, seed: int) -> None:
        self.optimizer.zero_grad()
        self.objective.backward(batch_of(rollout), 1.0, seed, MetricAccumulator())
        self.optimizer.step()


def measure(step: Step) -> Measured:
    """Time a few steps after one that warms up and counts operations."""
    reset_peak()
    rollouts: list[float] = []
    updates: list[float] = []
    gaps: list[float] = []
    with FlopCounterMode(display=False) as drawing:
        rollout = step.roll_out(0)
    with FlopCounterMode(display=False) as learning:
        step.update(rollout, 0)
    for seed in range(1, REPEATS + 1):
        with seconds(rollouts):
            rollout = step.roll_out(seed)
        if rollout.log_probs.shape[1]:
            gaps.append(step.policy.replay_gap(rollout))
        with seconds(updates):
            step.update(rollout, seed)
    return Measured(
        step.rows,
        rollout.log_probs.shape[1],
        median(rollouts),
        median(updates),
        peak_bytes(),
        drawing.get_total_flops(),
        learning.get_total_flops(),
        max(gaps, default=None),
    )


def measure_loop(config: TrainConfig, pipeline: DiffusionPipeline, prompt: str, rows: int, decisions: int) -> Measured:
    """The same work by the published loop."""
    reset_peak()
    loop = FlowGRPOLoop(pipeline, config)
    advantages = torch.ones(rows, device=pipeline.device)
    advantages[1::2] = -1
    rollouts: list[float] = []
    updates: list[float] = []
    with FlopCounterMode(display=False) as drawing:
        found = loop.rollout([prompt] * rows)
    with FlopCounterMode(display=False) as learning:
        loop.update(found, advantages, decisions)
    for _ in range(REPEATS):
        with seconds(rollouts):
            found = loop.rollout([prompt] * rows)
        with seconds(updates):
            loop.update(found, advantages, decisions)
    operations = (drawing.get_total_flops(), learning.get_total_flops())
    return Measured(rows, decisions, median(rollouts), median(updates), peak_bytes(), *operations)


def reset_peak() -> None:
    """Begin a new peak."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> int:
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def matmul_flops(dtype: torch.dtype) -> float:
    """Operations per second of a product of two matrices of 8192 x 8192; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0.0
    one, other = (torch.randn(8192, 8192, device="cuda", dtype=dtype) for _ in range(2))
    took: list[float] = []
    for _ in range(8):
        with seconds(took):
            for _ in range(10):
                one @ other
    return 10 * 2 * 8192**3 / median(took[2:])


def profile(name: str, work: Callable[[], object]) -> dict[str, Any]:
    """Return, and print, what the GPU spends its time on, and the share of the time in which it computes."""
    on_gpu = torch.cuda.is_available()
    kinds = [torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU]
    took: list[float] = []
    with torch.profiler.profile(activities=kinds) as profiler, seconds(took):
        work()
    (wall,) = took
    rows = [
        {
            "op": event.key,
            "calls": event.count,
            "seconds": (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e6,
        }
        for event in profiler.key_averages()
    ]
    rows.sort(key=lambda row: -row["seconds"])
    busy, calls = sum(row["seconds"] for row in rows), sum(row["calls"] for row in rows)
    print(f"profile of {name}: busy {busy:.3f} s of {wall:.3f} s ({busy / wall:.0%}), {calls} calls", flush=True)
    for row in rows[:15]:
        print(f"  {row['seconds']:8.4f} s {row['calls']:7d} x {row['op'][:110]}", flush=True)
    return {"wall_s": wall, "busy_s": busy, "calls": calls, "top": rows[:15]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recipe", nargs="?", default="sd35-medium-lora")
    parser.add_argument("overrides", nargs="*", help="a.b=c")
    parser.add_argument("--smoke", action="store_true", help="a small model, on the CPU")
    parser.add_argument("--loop", action="store_true", help="measure the published loop of Flow-GRPO, too")
    parser.add_argument("--profile", action="store_true", help="print what the GPU spends its time on")
    parser.add_argument("--out", type=Path, help="a folder for the numbers")
    arguments = parser.parse_args()
    config = load_config(arguments.recipe, [*arguments.overrides, *(SMALL if arguments.smoke else [])])
    dtype, device = getattr(torch, config.policy.dtype), "cpu" if arguments.smoke else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        print("not measured: a model of this size needs a GPU, and there is none here; --smoke runs a small one")
        return
    architecture = find_architecture(config.policy.model)
    if arguments.smoke:
        configs = {name: {**settings, **SHRUNK.get(name, {})} for name, settings in architecture.configs.items()}
        architecture = replace(architecture, configs=configs)
    pipeline = random_pipeline(architecture, dtype, device).to(device)
    peak_flops = matmul_flops(dtype)
    with placeholder_sample(pipeline, config.sampling) as sample:
        weights = sum(each.nbytes for part in pipeline.components.values() if isinstance(part, nn.Module)
                      for each in part.parameters())  # fmt: skip
        step = Step(config, policy_of(config, pipeline), sample)
        found = {"mmrl": measure(step)}
        print("\n".join(found["mmrl"].lines("mmrl", peak_flops)), flush=True)
        if arguments.loop or arguments.smoke:
            decisions = found["mmrl"].decisions
            found["the published loop"] = measure_loop(config, pipeline, sample.prompt, step.rows, decisions)
            print("\n".join(found["the published loop"].lines("the published loop", peak_flops)), flush=True)
        if len(found) > 1:
            ours, theirs = found.values()
            seconds_of = [each.rollout_s + each.update_s for each in (theirs, ours)]
            print(f"mmrl is {seconds_of[0] / seconds_of[1]:.2f} times as fast as the published loop", flush=True)
        if arguments.profile:
            rollout = step.roll_out(9)
            profile("a rollout", lambda: step.roll_out(9))
            profile("an update", lambda: step.update(rollout, 9))
    single = config.model_copy(update={
        "data": config.data.model_copy(update={"groups": 1, "group_size": step.rows}),
        "optimizer": config.optimizer.model_copy(update={"ema": None}),
        "training": config.training.model_copy(update={"updates": 1}),
    })  # fmt: skip
    estimate = estimate_memory(single, architecture)
    for name, figures in estimate.rows():
        print(f"estimated {name}: {figures}")
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        report = {
            "recipe": arguments.recipe,
            "overrides": arguments.overrides,
            "machine": torch.cuda.get_device_name() if device == "cuda" else "CPU",
            "torch": torch.__version__,
            "matmul_flops": peak_flops,
            "weights_bytes": weights,
            "estimated_bytes": estimate.total,
            "transient_estimated": {"rollout": estimate.rollout, "update": estimate.update.peak},
            **{name: asdict(each) for name, each in found.items()},
        }
        label = "-".join([arguments.recipe, config.algorithm.name, str(step.rows)])
        (arguments.out / f"full_size-{label}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
