"""The training loop that Flow-GRPO published, written out for one GPU: what a fork of it costs.

It follows yifan123/flow_grpo (scripts/train_sd3.py, sd3_pipeline_with_logprob.py): float32 weights of the transformer
under autocast with LoRA adapters, a float32 autoencoder, both halves of the guidance in one call, and for each step of
the update one call with gradients, one of the reference with adapters off, and a backward pass.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import StableDiffusion3Pipeline
from peft import LoraConfig, get_peft_model
from PIL.Image import Image
from torch import Tensor

from mmrl.config import TrainConfig

TARGETS = ("add_k_proj", "add_q_proj", "add_v_proj", "to_add_out", "to_k", "to_out.0", "to_q", "to_v")
"""The layers that get an adapter there, and by default here."""


@dataclass(frozen=True)
class Trajectories:
    """The latents and log-probabilities of a rollout, which the update reads."""

    latents: list[Tensor]  # of each step and the last: [B, C, h, w]
    log_probs: list[Tensor]  # of each step: [B]
    images: list[Image]


class FlowGRPOLoop:
    """Rollout and update of Stable Diffusion 3 with the recipe's sampling and algorithm."""

    def __init__(self, pipeline: StableDiffusion3Pipeline, config: TrainConfig) -> None:
        """Copy the transformer and the autoencoder in float32; the text encoders are shared."""
        lora = config.policy.lora
        self._pipeline, self._sampling, self._algorithm = pipeline, config.sampling, config.algorithm
        self._dtype = getattr(torch, config.policy.dtype)
        self._vae = copy.deepcopy(pipeline.vae).float()
        adapters = LoraConfig(
            r=lora.rank, lora_alpha=lora.alpha, init_lora_weights="gaussian", target_modules=list(TARGETS)
        )
        self._transformer: Any = get_peft_model(_fresh(pipeline.transformer), adapters)
        self.parameters = [each for each in self._transformer.parameters() if each.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self.parameters, lr=config.optimizer.lr, weight_decay=config.optimizer.weight_decay
        )
        self._max_norm = config.optimizer.max_grad_norm
        self._kl = config.algorithm.kl.coef
        self._scheduler = copy.deepcopy(pipeline.scheduler)

    @torch.no_grad()
    def rollout(self, prompts: Sequence[str]) -> Trajectories:
        """Sample one image for each prompt."""
        device = self._pipeline._execution_device
        self._embeddings = self._encode(prompts, device)
        self._scheduler.set_timesteps(self._sampling.steps, device=device)
        side = (self._sampling.height // 8, self._sampling.width // 8)
        latents = torch.randn(len(prompts), self._pipeline.transformer.config.in_channels, *side, device=device)
        visited, log_probs = [latents], []
        for step in range(self._sampling.steps):
            mean, deviation = self._step(visited[-1], step)
            latents = mean + deviation * torch.randn_like(mean)
            visited.append(latents)
            log_probs.append(log_density(latents, mean, deviation))
        scaled = visited[-1] / self._vae.config.scaling_factor + self._vae.config.shift_factor
        images = self._pipeline.image_processor.postprocess(self._vae.decode(scaled, return_dict=False)[0])
        return Trajectories(visited, log_probs, images)

    def update(self, found: Trajectories, advantages: Tensor, steps: int) -> None:
        """Take one optimizer step on the first `steps` decisions; advantages [B]."""
        clip = self._algorithm.clip.low
        for step in range(steps):
            mean, deviation = self._step(found.latents[step], step)
            with torch.no_grad(), self._transformer.disable_adapter():
                reference, _ = self._step(found.latents[step], step)
            ratio = (log_density(found.latents[step + 1], mean, deviation) - found.log_probs[step]).exp()
            loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip)).mean()
            distance = (mean - reference).square().mean((1, 2, 3)) / (2 * deviation.square().squeeze())
            ((loss + self._kl * distance.mean()) / steps).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self._max_norm)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _encode(self, prompts: Sequence[str], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the embeddings [2 B, L, D] and pooled ones [2 B, D] of the empty prompts and of the prompts."""
        text, empty, pooled, empty_pooled = self._pipeline.encode_prompt(
            list(prompts), None, None, device=device, negative_prompt=[""] * len(prompts), max_sequence_length=256
        )
        return torch.cat([empty, text]), torch.cat([empty_pooled, pooled])

    def _step(self, latents: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return the mean [B, C, h, w] and the deviation of the step's normal distribution."""
        embeddings, pooled = self._embeddings
        time = self._scheduler.timesteps[step].expand(2 * len(latents))
        with torch.autocast(latents.device.type, self._dtype, enabled=self._dtype != torch.float32):
            predicted = self._transformer(
                hidden_states=torch.cat([latents] * 2),
                timestep=time,
                encoder_hidden_states=embeddings,
                pooled_projections=pooled,
                return_dict=False,
            )[0]
        empty, text = predicted.float().chunk(2)
        velocity = empty.detach() + self._sampling.guidance_scale * (text - empty.detach())
        sigma, following = self._scheduler.sigmas[step], self._scheduler.sigmas[step + 1]
        level = self._sampling.transition.noise_level
        noise = level * (sigma / (1 - torch.where(sigma == 1, self._scheduler.sigmas[1], sigma))).sqrt()
        change = following - sigma
        mean = latents * (1 + noise**2 / (2 * sigma) * change)
        mean = mean + velocity * (1 + noise**2 * (1 - sigma) / (2 * sigma)) * change
        return mean, noise * (-change).sqrt()


def log_density(latents: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the mean over a row's latents of the log-density of a normal distribution, [B]."""
    squares = (latents.detach() - mean).square() / (2 * deviation.square())
    return (-squares - deviation.log() - math.log(2 * math.pi) / 2).mean((1, 2, 3))


def _fresh(transformer: Any) -> Any:
    """A transformer of the same size in float32, with random weights and without adapters."""
    with torch.device(transformer.device):
        return type(transformer).from_config(transformer.config).requires_grad_(False)
