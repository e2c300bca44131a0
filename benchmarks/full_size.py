"""A model at its real size with random weights: Flow-GRPO steps on a GPU, without downloading anything.

    python benchmarks/full_size.py                      # stable-diffusion-3.5-medium, as its recipe says, on CUDA
    python benchmarks/full_size.py flux-dev-lora
    python benchmarks/full_size.py --smoke              # the same code on a CPU, on a model of a few million parameters

Prints pictures per second of the rollout, seconds of the update, the replay gap and peak memory, and then the estimate
of `--dry-run`. That one counts what a whole iteration records, and a moving average: here is one micro-batch, without.
Random weights draw noise, but cost what trained ones cost.
"""

from __future__ import annotations

import argparse
import time
from contextlib import contextmanager
from dataclasses import replace
from statistics import median

import torch
from diffusers import DiffusionPipeline
from torch import nn

from mmrl.build.training_setup import build_objective
from mmrl.config import BatchPlan, TrainConfig, load_config
from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
from mmrl.generation.diffusion.scheduler_families import convert_scheduler
from mmrl.generation.memory.architecture import Architecture, build_component, find_architecture
from mmrl.generation.memory.estimate import estimate_memory, placeholder_sample
from mmrl.generation.memory.meta_run import placeholder_tokenizer
from mmrl.policy import Rollout, RolloutRequest
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


def measure(config: TrainConfig, pipeline: DiffusionPipeline) -> None:
    """Roll out, replay and update one micro-batch a few times."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    if config.policy.scheduler:
        pipeline.scheduler = convert_scheduler(pipeline.scheduler, config.policy.scheduler)
    policy = PipelinePolicy(
        pipeline,
        config.sampling,
        config.policy.train,
        config.policy.lora,
        config.policy.denoisers,
        gradient_checkpointing=config.policy.gradient_checkpointing,
    )
    objective = build_objective(config.algorithm, policy, config.sampling)
    optimizer = torch.optim.AdamW(policy.parameters_to_train().values(), lr=config.optimizer.lr)
    rows = BatchPlan.of(config).micro_batch
    rollouts: list[float] = []
    updates: list[float] = []
    gaps: list[float] = []
    with placeholder_sample(pipeline, config.sampling) as sample:
        for repeat in range(REPEATS + 1):  # the first warms up
            with seconds(rollouts), torch.no_grad():
                rollout = policy.rollout([RolloutRequest(sample, n=rows, group=0)], seed=repeat)
            gaps.append(policy.replay_gap(rollout))
            optimizer.zero_grad()
            with seconds(updates):
                objective.backward(batch_of(rollout), 1.0, repeat, MetricAccumulator())
                optimizer.step()
    decisions = rollout.log_probs.shape[1]
    print(f"rows {rows}, decisions {decisions}, {config.sampling.steps} steps")
    print(f"rollout     {rows / median(rollouts[1:]):.3f} pictures/s ({median(rollouts[1:]):.2f} s a call)")
    print(f"update      {median(updates[1:]):.2f} s, {median(updates[1:]) / max(1, decisions):.3f} s a decision")
    print(f"replay gap  {max(gaps):.1e}")
    if torch.cuda.is_available():
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB on {torch.cuda.get_device_name()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recipe", nargs="?", default="sd35-medium-lora")
    parser.add_argument("overrides", nargs="*", help="a.b=c")
    parser.add_argument("--smoke", action="store_true", help="a small model, on the CPU")
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
    measure(config, pipeline)
    for name, figures in estimate_memory(config, architecture).rows():
        print(f"estimated {name}: {figures}")


if __name__ == "__main__":
    main()
