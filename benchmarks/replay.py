"""Measure the cost of the mechanism: rollout and update through `PipelinePolicy`, against a loop written by hand.

    python benchmarks/replay.py            # fails where the policy takes more than 1.05 times the CPU time
    python benchmarks/replay.py --smoke    # seconds: does it still run, and do both compute the same?

By hand means what a trainer for Stable Diffusion 3 alone would do. A rollout saves embeddings, timesteps and latents;
an update calls the transformer on them, one trained step at a time, and backpropagates each. Both sides use one model,
encode the prompts once, decode the pictures once, and take the same noise. Before anything is timed, log-probabilities
and gradients of the two must agree. Then they take turns, in alternating order, and the median of their ratios counts.
The optimizer's step, which is the same for both, is left out.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Any

import torch
from diffusers import SD3Transformer2DModel, StableDiffusion3Pipeline
from diffusers.utils import logging as diffusers_logging
from torch import Tensor
from transformers.utils import logging as transformers_logging

from mmrl.config.algorithms.policy_gradient import GRPOConfig
from mmrl.config.policy import LoraConfig
from mmrl.config.sampling import SamplingConfig
from mmrl.data.sample import Sample
from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.seeds import row_generators, stream_seed
from mmrl.training.experience import MicroBatch
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl_shapeworld.shipped_models import PIPELINE

BOUND = 1.05
LARGE = {"num_layers": 4, "num_attention_heads": 5, "attention_head_dim": 64, "caption_projection_dim": 320}
"""The settings that differ from the shipped transformer: 14 M parameters instead of 1.3 M."""
PIXELS = 64  # 16 x 16 latents: 64 tokens
PROMPT, GROUP = "a big red circle", 2
STEPS, GUIDANCE, NOISE, CLIP, TEXT = 6, 4.5, 0.7, 1e-4, 8


def build(changes: dict[str, int]) -> StableDiffusion3Pipeline:
    """The shipped pipeline with a transformer of another size, with random weights."""
    config = dict(SD3Transformer2DModel.load_config(PIPELINE / "transformer"))
    torch.manual_seed(0)
    transformer = SD3Transformer2DModel.from_config({**config, **changes})
    return StableDiffusion3Pipeline.from_pretrained(PIPELINE, transformer=transformer)


class Mechanism:
    """Through `PipelinePolicy`, with the objective that a run has."""

    def __init__(self, pipeline: StableDiffusion3Pipeline) -> None:
        self.pipeline = pipeline
        sampling = SamplingConfig(
            steps=STEPS,
            guidance_scale=GUIDANCE,
            height=PIXELS,
            width=PIXELS,
            pipeline_args={"max_sequence_length": TEXT},
            transition={"name": "flow_sde", "noise_level": NOISE},
        )
        self.policy = PipelinePolicy(pipeline, sampling, train="lora", lora=LoraConfig())
        self._objective = PolicyGradient(self.policy, GRPOConfig(clip={"low": CLIP}))
        self._requests = [RolloutRequest(Sample("0", prompt=PROMPT), n=GROUP, group=0)]

    def rollout(self, seed: int) -> Rollout:
        return self.policy.rollout(self._requests, seed)

    def update(self, rollout: Rollout, advantages: Tensor) -> None:
        credit = advantages[:, None].expand_as(rollout.log_probs)
        batch = MicroBatch(rollout, advantages, torch.ones_like(advantages, dtype=torch.bool), credit)
        self._objective.backward(batch, 1.0, 0, MetricAccumulator())


@dataclass
class Saved:
    """The data that a hand-written trainer keeps of a rollout."""

    embeddings: Tensor  # [2 B, L, C], the unconditional half first
    pooled: Tensor  # [2 B, C]
    latents: list[Tensor]  # STEPS + 1 of [B, c, h, w]
    log_probs: Tensor  # [B, STEPS - 1]
    images: list[Any]


class ByHand:
    """Flow-GRPO on the transformer of Stable Diffusion 3, and on nothing else."""

    def __init__(self, pipeline: StableDiffusion3Pipeline) -> None:
        self.pipeline = pipeline

    @torch.no_grad()
    def rollout(self, seed: int) -> Saved:
        pipe = self.pipeline
        cond, uncond, pooled_cond, pooled_uncond = pipe.encode_prompt(
            prompt=[PROMPT] * GROUP,
            prompt_2=None,
            prompt_3=None,
            do_classifier_free_guidance=True,
            max_sequence_length=TEXT,
        )
        embeddings, pooled = torch.cat([uncond, cond]), torch.cat([pooled_uncond, pooled_cond])
        channels = pipe.transformer.config.in_channels
        noise = row_generators(seed, range(GROUP))
        start = pipe.prepare_latents(GROUP, channels, PIXELS, PIXELS, cond.dtype, cond.device, noise)
        pipe.scheduler.set_timesteps(STEPS)
        explorer = torch.Generator().manual_seed(stream_seed(seed, "explore"))
        latents, log_probs = [start], []
        for step in range(STEPS):
            velocity = self._velocity(latents[-1], step, embeddings, pooled)
            if step == STEPS - 1:  # the last step adds no noise
                sigma, sigma_next = self._sigmas(step)
                latents.append(latents[-1] + velocity * (sigma_next - sigma))
                continue
            mean, std = self._moments(latents[-1], velocity, step)
            latents.append(mean + std * torch.randn(mean.shape, generator=explorer))
            log_probs.append(log_density(latents[-1], mean, std))
        vae = pipe.vae
        pictures = vae.decode(latents[-1] / vae.config.scaling_factor + vae.config.shift_factor, return_dict=False)[0]
        images = pipe.image_processor.postprocess(pictures, output_type="pil")
        return Saved(embeddings, pooled, latents, torch.stack(log_probs, dim=1), images)

    def update(self, saved: Saved, advantages: Tensor) -> None:
        for step in range(STEPS - 1):
            velocity = self._velocity(saved.latents[step], step, saved.embeddings, saved.pooled)
            mean, std = self._moments(saved.latents[step], velocity, step)
            log_prob = log_density(saved.latents[step + 1], mean, std)
            ratio = torch.exp(log_prob - saved.log_probs[:, step])
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
            (loss / (STEPS - 1)).backward()

    def _velocity(self, latents: Tensor, step: int, embeddings: Tensor, pooled: Tensor) -> Tensor:
        doubled = torch.cat([latents] * 2)
        output = self.pipeline.transformer(
            hidden_states=doubled,
            timestep=self.pipeline.scheduler.timesteps[step].expand(len(doubled)),
            encoder_hidden_states=embeddings,
            pooled_projections=pooled,
            return_dict=False,
        )[0]
        uncond, cond = output.chunk(2)
        return uncond + GUIDANCE * (cond - uncond)

    def _sigmas(self, step: int) -> tuple[float, float]:
        sigmas = self.pipeline.scheduler.sigmas
        return sigmas[step].item(), sigmas[step + 1].item()

    def _moments(self, x: Tensor, velocity: Tensor, step: int) -> tuple[Tensor, float]:
        """Mean and standard deviation of Flow-GRPO's step, arXiv:2505.05470."""
        sigma, sigma_next = self._sigmas(step)
        dt = sigma_next - sigma
        variance = NOISE**2 * sigma / (1 - (self._sigmas(1)[0] if step == 0 else sigma))
        mean = x * (1 + variance * dt / (2 * sigma)) + velocity * (1 + variance * (1 - sigma) / (2 * sigma)) * dt
        return mean, (-variance * dt) ** 0.5


def log_density(following: Tensor, mean: Tensor, std: float) -> Tensor:
    """[B]: the mean over latent dimensions of the Gaussian log-density."""
    scale = torch.tensor(std)
    each = -((following - mean) ** 2) / (2 * scale**2) - scale.log() - 0.5 * torch.log(torch.tensor(2 * torch.pi))
    return each.mean(dim=(1, 2, 3))


def check_equal(ours: Mechanism, theirs: ByHand, advantages: Tensor) -> None:
    """Both must do the same work.

    Raises:
        SystemExit: log-probabilities, pictures or gradients differ by more than rounding.
    """
    parameters = ours.policy.parameters_to_train()
    with torch.no_grad():  # away from zero adapters, half of whose gradients vanish
        for parameter in parameters.values():
            parameter += 0.02 * torch.randn_like(parameter)
    rollout, saved = ours.rollout(1), theirs.rollout(1)
    gradients = []
    for update in (lambda: ours.update(rollout, advantages), lambda: theirs.update(saved, advantages)):
        update()
        gradients.append(torch.cat([p.grad.flatten() for p in parameters.values() if p.grad is not None]))
        clear(ours)
    log_probs = (rollout.log_probs - saved.log_probs).abs().max().item()
    gradient = ((gradients[0] - gradients[1]).norm() / gradients[1].norm()).item()
    same_pictures = all(a.tobytes() == b.tobytes() for a, b in zip(rollout.media, saved.images, strict=True))
    print(f"differences: log-probabilities {log_probs:.1e}, gradient {gradient:.1e} of its norm,", end=" ")
    print("pictures " + ("none" if same_pictures else "some"))
    if not (log_probs <= 1e-6 and gradient <= 1e-5 and same_pictures):
        raise SystemExit("the two do not compute the same: no comparison of their speed would mean anything")


def clear(side: Mechanism | ByHand) -> None:
    """Drop the gradients; both sides train the same model."""
    side.pipeline.transformer.zero_grad(set_to_none=True)


Seconds = tuple[float, float]
"""CPU, wall."""
PHASES = ("rollout", "update")
Turn = dict[str, dict[str, Seconds]]
"""By side and phase."""


def timed(do: Callable[[], Any]) -> tuple[Any, Seconds]:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    result = do()
    return result, (time.process_time() - cpu, time.perf_counter() - wall)


def take_turn(sides: dict[str, Mechanism | ByHand], seed: int, advantages: Tensor) -> Turn:
    """A rollout of each side, then an update of each: what is compared lies next to each other in time."""
    seconds: Turn = {name: {} for name in sides}
    drawn: dict[str, Any] = {}
    for name, side in sides.items():
        drawn[name], seconds[name]["rollout"] = timed(partial(side.rollout, seed))
    for name, side in sides.items():
        _, seconds[name]["update"] = timed(partial(side.update, drawn[name], advantages))
        clear(side)
    return seconds


def compare(turns: list[Turn]) -> dict[str, float]:
    """The median over turns of policy / by hand, of whole iterations, by clock; prints the table on the way."""
    print(f"{'medians':18}{'by hand':>10}{'policy':>10}{'ratio':>8}   its quartiles")
    found = {}
    for clock, name in enumerate(("CPU", "wall")):
        for label, phases in {**{each: (each,) for each in PHASES}, "both": PHASES}.items():
            hand, policy = (
                [sum(turn[side][phase][clock] for phase in phases) for turn in turns] for side in ("by hand", "policy")
            )
            each = [ours / theirs for theirs, ours in zip(hand, policy, strict=True)]
            low, middle, high = quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
            medians = f"{median(hand):12.3f}{median(policy):10.3f}"
            print(f"{label:8}{name:>5} s {medians}{middle:8.3f}   {low:.3f} to {high:.3f}")
            found[name] = middle
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="one turn on the transformer that ships; no bound")
    parser.add_argument("--turns", type=int, default=31, help="how many are timed (default: 31)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    diffusers_logging.set_verbosity_error()
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    pipeline = build({} if arguments.smoke else LARGE)
    size = sum(parameter.numel() for parameter in pipeline.transformer.parameters())
    ours, theirs = Mechanism(pipeline), ByHand(pipeline)
    advantages = torch.tensor([1.0, -1.0])
    print(
        f"SD3Transformer2DModel with {size / 1e6:.1f} M parameters and adapters of rank {LoraConfig().rank}; "
        f"{GROUP} rows of {PIXELS // 8} x {PIXELS // 8} tokens with guidance, {STEPS} steps, "
        f"{STEPS - 1} trained; float32, one CPU thread, torch {torch.__version__}"
    )
    check_equal(ours, theirs, advantages)
    sides = {"by hand": theirs, "policy": ours}
    take_turn(sides, 0, advantages)  # warms up
    turns = []
    for number in range(1 if arguments.smoke else arguments.turns):
        sides = dict(reversed(sides.items()))
        turns.append(take_turn(sides, number + 1, advantages))
    ratio = compare(turns)["CPU"]
    if not arguments.smoke:
        print(f"ratio {ratio:.3f} in CPU time over {len(turns)} turns, bound {BOUND}")
        raise SystemExit(ratio > BOUND)


if __name__ == "__main__":
    main()
