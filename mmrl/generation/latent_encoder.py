"""`GeneratorEncoder`: a frozen pipeline as the encoder of a reward model that reads noisy latents.

Flow-NRG (arXiv:2501.13918) guides sampling by a reward model of noisy latents; process reward models of videos
(arXiv:2511.21541) read the first layers of a frozen generator. Here the features are averages of the states of some
layers of the denoiser, at the noise level of the latents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmrl.config.policy import FROZEN, PolicyConfig
from mmrl.config.sampling import SamplingConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, UnsupportedError
from mmrl.generation.diffusion.denoiser_hook import find_denoisers
from mmrl.generation.diffusion.denoiser_states import find_modules, pooled_states, row_states
from mmrl.generation.diffusion.pipeline_policy import PipelinePolicy
from mmrl.rollout import Rollout

LEVEL_WAVES = 4
"""Features of the noise level itself: cos(pi k sigma), k = 1 .. 4."""


class GeneratorEncoder:
    """A pipeline that is not trained, and the features of latents under a prompt at a noise level.

    Latents are (1 - sigma) x_0 + sigma noise in the packing of the pipeline's rollouts, for pipelines that predict
    noise too: [B, C, H, W] of most image pipelines, [B, C, F, H, W] of most video pipelines.
    """

    def __init__(
        self,
        model: str,
        layers: Sequence[str],
        sampling: Mapping[str, Any] | None = None,
        revision: str | None = None,
        device: str = "auto",
    ) -> None:
        """
        Args:
            model: a folder or a hub id of a pipeline.
            layers: modules of its denoiser whose states count, such as `transformer_blocks.2`; the last layers are not
                computed.
            sampling: keys of `sampling` that its calls need, such as num_frames; without guidance if it says nothing.
            revision: of the hub repository.
            device: where it computes.

        Raises:
            ConfigError: there is no such layer, no layer is named, or the pipeline has several denoisers.
        """
        if not layers:
            raise ConfigError("encoder.layers: name at least one module of the denoiser, such as transformer_blocks.2")
        settings = SamplingConfig.model_validate({"steps": 2, "guidance_scale": 1.0, **(sampling or {})})
        chosen = PolicyConfig(model=model, revision=revision, train="lora", lora=FROZEN, device=device)
        self.policy = PipelinePolicy.from_config(chosen, settings)
        for parameter in self.policy.parameters_to_train().values():
            parameter.requires_grad_(False)
        denoisers = find_denoisers(self.policy.pipeline)
        if len(denoisers) > 1:
            raise ConfigError(f"encoder.model: {type(self.policy.pipeline).__name__} has {', '.join(denoisers)}, and "
                              "states are read from a single denoiser")  # fmt: skip
        self.denoiser = next(iter(denoisers.values()))
        self.layers = tuple(layers)
        self._find()
        self._recorded: tuple[tuple[str, ...], Rollout, Tensor | None] | None = None

    def encode(self, media: Sequence[Any]) -> Tensor:  # [B, ...]
        """Return the clean latents of pictures, or of videos as lists of frames.

        Raises:
            UnsupportedError: the pipeline's autoencoder cannot encode media of this kind.
        """
        return self.policy.encode(media)

    def features(self, latents: Tensor, sigma: float, prompts: Sequence[str]) -> Tensor:  # [B, ...] -> [B, F] float32
        """Return the features of noisy latents, with gradients in the latents where these are enabled.

        float64 latents give float64 features, once the pipeline is in float64 itself.

        Raises:
            UnsupportedError: the pipeline is guided, so that the denoiser computes two rows for each prompt.
        """
        rollout, _ = self._call(latents, prompts)
        outputs = self.policy.denoiser_states(rollout, latents, sigma, self._modules)
        pooled = [pooled_states(row_states(output, len(prompts))) for output in outputs]
        level = torch.arange(1, LEVEL_WAVES + 1, device=latents.device) * torch.pi * sigma
        found = torch.cat([*pooled, level.cos().expand(len(prompts), -1).to(pooled[0])], dim=1)
        return found if found.dtype == torch.float64 else found.float()

    def prompt_states(self, latents: Tensor, prompts: Sequence[str]) -> Tensor:  # [B, ...] -> [B, E]
        """Return what the denoiser reads of each prompt, the mean over its positions.

        It costs nothing beside `features` of the same prompts.

        Raises:
            UnsupportedError: the denoiser has no input of the name encoder_hidden_states.
        """
        _, states = self._call(latents, prompts)
        if states is None:
            raise UnsupportedError(f"{type(self.denoiser).__name__} reads no prompt as encoder_hidden_states: set "
                                   "encoder.prompt_components to 0")  # fmt: skip
        return states

    def to(self, dtype: torch.dtype) -> GeneratorEncoder:
        """Convert the pipeline, and return this encoder."""
        self.policy.pipeline.to(dtype)
        self._find()
        self._recorded = None
        return self

    def _find(self) -> None:
        self._modules = find_modules(self.denoiser, self.layers)

    def _call(self, latents: Tensor, prompts: Sequence[str]) -> tuple[Rollout, Tensor | None]:
        """Return the recorded call of the pipeline for these prompts, and their states; those of the last are kept."""
        if self._recorded is None or self._recorded[0] != tuple(prompts):
            samples = [Sample(str(row), prompt=prompt) for row, prompt in enumerate(prompts)]
            none: list[Any] = [None] * len(samples)
            states: list[Tensor] = []

            def keep(module: Any, inputs: Any, named: Mapping[str, Any]) -> None:
                noisy = next(each for each in (*inputs, *named.values()) if isinstance(each, Tensor))
                if len(noisy) != len(samples):
                    raise UnsupportedError(f"{type(module).__name__} computes {len(noisy)} rows for {len(samples)} "
                                           "prompts: set encoder.sampling.guidance_scale to 1")  # fmt: skip
                read = named.get("encoder_hidden_states")
                if isinstance(read, Tensor):  # [B N, E], repeated for each frame in some pipelines of videos
                    states.append(read.reshape(len(samples), -1, read.shape[-1]).mean(1))

            hook = self.denoiser.register_forward_pre_hook(keep, with_kwargs=True)
            try:
                with torch.no_grad():
                    rollout = self.policy.rollout_from_latents(samples, range(len(samples)), latents.detach(), none)
            finally:
                hook.remove()
            self._recorded = (tuple(prompts), rollout, states[0] if states else None)
        return self._recorded[1:]
