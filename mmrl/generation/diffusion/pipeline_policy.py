"""A diffusers pipeline as a policy: record, replay and velocity are modes of one ordinary call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import torch
from diffusers import DiffusionPipeline, ModelMixin
from PIL.Image import Image
from torch import Tensor, nn

from mmrl.config.policy import LoraConfig, PolicyConfig, Precision
from mmrl.config.sampling import BranchConfig, SamplingConfig, TransitionConfig, WindowConfig
from mmrl.data.sample import Sample
from mmrl.distributed.layout import Layout, Replicas
from mmrl.errors import ConfigError, GenerationError, UnsupportedError
from mmrl.finetuning.diffusers_modules import DenoiserTrainable, DiffusersFull, DiffusersLora, check_without_lora
from mmrl.generation.diffusion.call_arguments import (
    SINGLE_GENERATOR,
    call_arguments,
    guiders_take_scale,
    refused_call,
)
from mmrl.generation.diffusion.decisions import BranchTrees
from mmrl.generation.diffusion.denoiser_hook import (
    Guiders,
    find_branches,
    find_denoisers,
    intercept_denoisers,
    restore_attention,
    set_attention,
)
from mmrl.generation.diffusion.denoiser_states import StatesLoop
from mmrl.generation.diffusion.differentiable_loop import BackpropLoop, LatentBackpropLoop
from mmrl.generation.diffusion.encode_images import (
    ENCODABLE_CLIPS,
    FirstStepLoop,
    encode_clips,
    encode_images,
)
from mmrl.generation.diffusion.learned_noise import NAME, NoiseLevelNetwork
from mmrl.generation.diffusion.loops import Loop, ProbeLoop, RecordLoop, ReplayLoop, StopPipeline, VelocityLoop
from mmrl.generation.diffusion.prompt_mixture import mixed_rollout
from mmrl.generation.diffusion.pytree import map_leaves
from mmrl.generation.diffusion.recording import Recording
from mmrl.generation.diffusion.replay_cache import cache_targets, intercept_calls
from mmrl.generation.diffusion.scheduler_families import (
    check_transition,
    convert_scheduler,
    family_of,
    noise_level_family,
    scheduler_class,
)
from mmrl.generation.diffusion.scheduler_hook import intercept_scheduler
from mmrl.generation.diffusion.support import refused_reason
from mmrl.generation.diffusion.zigzag import ZigzagSteps
from mmrl.policy import BackpropSteps, Capability, DecisionCallback, ReferencePolicy, StepOutputs
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, shared_sampling
from mmrl.seeds import global_generators, row_generators

_HALF: dict[torch.dtype, Precision] = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
_ONE_AT_A_TIME = ("AutoencoderKLHunyuanVideo15",)
"""Autoencoders that fail on a batch of two (diffusers 0.42: the attention mask does not broadcast)."""
_IN_TILES = ("AutoencoderKLAllegro",)
"""Autoencoders that can decode only with tiling."""


class PipelinePolicy:
    """A policy from any diffusers pipeline with a supported scheduler, trained through the pipeline's `__call__`.

    A rollout is a recorded call of the unmodified pipeline. A replay calls it again with the same arguments: encoder
    outputs and initial noise come from a cache, untrained denoiser calls are skipped, and only the trained ones are
    computed, with gradients. Guidance, latent packing and the choice between two transformers are the pipeline's own
    arithmetic, so a replay under unchanged parameters repeats the rollout's log-probabilities exactly.

    >>> pipeline = DiffusionPipeline.from_pretrained("stabilityai/stable-diffusion-3.5-medium")  # doctest: +SKIP
    >>> policy = PipelinePolicy(pipeline, SamplingConfig(transition={"name": "flow_sde"}))  # doctest: +SKIP
    """

    capabilities = frozenset(
        {
            *(Capability.LOG_PROBS, Capability.MOMENTS, Capability.DECODE_WITH_GRAD),
            *(Capability.PREDICT_VELOCITY, Capability.FROM_LATENTS, Capability.ENCODE_MEDIA),
        }
    )

    def __init__(
        self,
        pipeline: DiffusionPipeline,
        sampling: SamplingConfig,
        train: Literal["lora", "full"] | LoraConfig = "lora",
        lora: LoraConfig | None = None,
        denoisers: Sequence[str] = (),
        gradient_checkpointing: bool = False,
    ) -> None:
        """Prepare a loaded pipeline, in place, for training.

        Args:
            pipeline: the pipeline, on the device that it is to compute on.
            sampling: the arguments of its calls.
            train: `full`, or `lora` with the settings `lora`; these may stand here themselves.
            lora: rank, alpha and targets of the adapters; None means the default ones.
            denoisers: components to train; empty: all of the pipeline's denoisers.
            gradient_checkpointing: True recomputes activations in the backward pass.

        Raises:
            UnsupportedError: the pipeline's class or scheduler is not supported, or there is no known denoiser.
            ConfigError: the sampling does not fit the pipeline, or a denoiser has a LoRA.
        """
        adapters = train if isinstance(train, LoraConfig) else lora or LoraConfig()
        full = train == "full"
        self.pipeline = pipeline
        self.config = PolicyConfig(
            model=str(pipeline.name_or_path or type(pipeline).__name__),
            train="full" if full else "lora",
            lora=adapters,
            denoisers=tuple(denoisers),
            dtype=_HALF.get(pipeline.dtype, "float32"),
            gradient_checkpointing=gradient_checkpointing,
        )
        self.attention = "as the pipeline came"  # the backend of each denoiser, and the reason for it
        self.sampling = sampling
        self.version = 0
        self.layout: Layout = Replicas()
        if reason := refused_reason(type(pipeline)):
            raise UnsupportedError(f"{type(pipeline).__name__} cannot be a policy: {reason}")
        self._denoisers, self._branches = find_denoisers(pipeline), find_branches(pipeline)
        check_without_lora(self._denoisers)
        for branch in self._branches:
            if not hasattr(branch, "gradient_checkpointing"):  # Z-Image's reads it, and its class does not set it
                vars(branch)["gradient_checkpointing"] = False
        self._check(sampling)
        chosen = _select_denoisers(self._denoisers, denoisers)
        self.has_frozen_denoisers = len(chosen) < len(self._denoisers)
        for component in pipeline.components.values():
            if isinstance(component, nn.Module):
                component.requires_grad_(False).eval()
        self._trainable: DenoiserTrainable
        self._trainable = DiffusersFull(chosen) if full else DiffusersLora(chosen, adapters, pipeline)
        if gradient_checkpointing:
            for denoiser in chosen.values():
                denoiser.enable_gradient_checkpointing()
        pipeline.set_progress_bar_config(disable=True)
        vae: Any = getattr(pipeline, "vae", None)
        if type(vae).__name__ in _ONE_AT_A_TIME:
            vae.enable_slicing()
        if type(vae).__name__ in _IN_TILES:
            vae.enable_tiling()
        self._noise = NoiseLevelNetwork.from_config(sampling.transition)
        if self._noise is not None:
            self._noise.to(pipeline._execution_device)
        self._targets, self.guiders = cache_targets(pipeline), Guiders(pipeline)
        self._busy = False
        self._keeps_latents = False
        self.draws_globally = False
        """True once a rollout drew from a generator of the whole process, which two threads cannot share."""

    @classmethod
    def from_config(cls, policy: PolicyConfig, sampling: SamplingConfig) -> PipelinePolicy:
        """Load a pipeline from a folder or the Hub: safetensors only, and none of its code."""
        if policy.scheduler:
            scheduler_class(policy.scheduler)  # refused before anything is loaded
        pipeline = DiffusionPipeline.from_pretrained(
            policy.model,
            revision=policy.revision,
            dtype=getattr(torch, policy.dtype),
            use_safetensors=True,
            trust_remote_code=False,
        )
        if not policy.safety_checker and getattr(pipeline, "safety_checker", None) is not None:
            pipeline.safety_checker = None
        if policy.scheduler:
            pipeline.scheduler = convert_scheduler(pipeline.scheduler, policy.scheduler)
        device = policy.device if policy.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        pipeline.to(device)
        attention = set_attention(find_denoisers(pipeline), policy.attention)
        made = cls(pipeline, sampling, policy.train, policy.lora, policy.denoisers, policy.gradient_checkpointing)
        made.attention, made.config = attention, policy
        return made

    def place(self, layout: Layout) -> None:
        """Let the layout divide the trained denoisers over the processes; before an optimizer or a copy is made.

        Raises:
            ConfigError: processes would call the denoisers unequally often, and the layout does not allow that.
        """
        if layout.gathers_in_calls and (len(self._denoisers) > 1 or self._branches):
            raise ConfigError(
                f"run.place: strict divides a single denoiser, which is called equally often at every noise level, and "
                f"{type(self.pipeline).__name__} has {', '.join(self._denoisers)}"
                f"{' and a network beside them' if self._branches else ''}; choose window"
            )
        self.layout = layout
        self._trainable.place(layout)

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        """Sample sum(r.n) trajectories. A row's initial noise depends only on the seed and its tree's first row."""
        if any(request.mixture is not None for request in requests):
            return mixed_rollout(self, requests, self._sampling_of(requests), seed)
        return self.sample_rows(requests, seed)

    def sample_rows(self, requests: Sequence[RolloutRequest], seed: int, copies: int = 1) -> Rollout:
        """Sample trajectories by the prompts of their samples; `copies` neighbours begin with the same noise."""
        sampling = self._sampling_of(requests)
        self._check(sampling)
        samples = [request.sample for request in requests for _ in range(request.n)]
        groups = [request.group for request in requests for _ in range(request.n)]
        arguments = call_arguments(self.pipeline, sampling, samples)
        request = requests[0]
        recording = Recording(
            arguments,
            seed,
            shared_seed=seed if request.shared_seed is None else request.shared_seed,
            branches=self._branches_of(requests, sampling),
            iteration=request.iteration,
            zigzag=None if sampling.zigzag is None else ZigzagSteps(sampling.zigzag),
            keep_means=request.keep_means,
            copies=copies,
        )
        if recording.zigzag is not None and self._keeps_latents:
            raise UnsupportedError("sampling.zigzag: steps that are taken twice cannot be differentiated through: "
                                   "leave it out")  # fmt: skip
        recording.keeps_latents = self._keeps_latents
        if guiders_take_scale(self.pipeline):
            recording.guidance_scale = sampling.guidance_scale
        loop = RecordLoop(self.guiders, recording, sampling, self._noise if sampling.transition.learned else None)
        media = self.run_to_media(loop, recording)
        clean, log_probs = loop.clean(), loop.log_probs()
        branches = recording.branches.table(log_probs.shape[1])
        mask = torch.ones_like(log_probs, dtype=torch.bool)
        if branches is not None:
            branches = branches.to(mask.device)
            mask = branches[:, 1:] == torch.arange(len(mask), device=mask.device)[:, None]
        name = type(self.pipeline).__name__
        frames = [frame for each in media for frame in (each if isinstance(each, list) else [each])]
        if odd := {type(frame).__name__ for frame in frames if not isinstance(frame, Image)}:
            raise UnsupportedError(f"{name} makes {', '.join(sorted(odd))}; rewards take PIL images and lists of them")
        if not len(media) == len(clean) == len(samples):
            raise GenerationError(f"{name} gave {len(media)} outputs from {len(clean)} latents for {len(samples)} rows")
        return Rollout(
            samples=samples,
            group_index=torch.tensor(groups, device=clean.device),
            log_probs=log_probs,
            mask=mask,
            channel=torch.zeros_like(log_probs, dtype=torch.int64),
            media=media,
            policy_version=self.version,
            clean=clean,
            recording=recording,
            means=loop.means(),
            branches=branches,
        )

    def replay(self, rollout: Rollout, step_indices: Sequence[int], visit: DecisionCallback) -> None:
        """Recompute these decisions in order, one at a time, in a single call of the pipeline."""
        recording, chosen = _recording(rollout), list(step_indices)
        count = len(recording.decisions)
        if chosen != sorted(set(chosen) & set(range(count))):
            raise ValueError(f"step indices {chosen} are not increasing numbers below {count}")
        if chosen:
            self._call(ReplayLoop(self.guiders, recording, chosen, visit), recording)

    def noise_level(self, place: float) -> float:
        """Return the noise level in (0, 1] at quantile `place`: of a flow `place`, else that of a training timestep."""
        scheduler = self.pipeline.scheduler
        return noise_level_family(scheduler).noise_level(scheduler, place)

    def predict_velocity(self, rollout: Rollout, noisy: Tensor, sigma: float) -> Tensor:
        """Return the velocity [B, ...] of one denoiser step at (noisy, sigma), guided as in the rollout.

        `noisy` is (1 - sigma) x_0 + sigma noise in the packing of `rollout.clean`, and the velocity is noise - x_0,
        also for pipelines that predict noise. For models that take the end of a step as an input (mean flows), it is
        the velocity at sigma itself.
        """
        if not 0 < sigma <= 1:
            raise ValueError(f"sigma is {sigma}, expected in (0, 1]")
        recording = _recording(rollout)
        if recording.num_schedules > 1:
            raise UnsupportedError(f"{type(self.pipeline).__name__} generates in {recording.num_schedules} sections, "
                                   "each with a separate schedule: it has no single velocity")  # fmt: skip
        if self.layout.gathers_in_calls and len(set(map(len, recording.output_specs))) > 1:
            raise UnsupportedError(f"run.place: strict needs equally many denoiser calls in each step, and "
                                   f"{type(self.pipeline).__name__} makes others in some: choose window")  # fmt: skip
        loop = VelocityLoop(self.guiders, recording, noisy, sigma)
        self._call(loop, recording)
        if loop.velocity is None:
            raise GenerationError("the pipeline took a single step, and a velocity needs two")
        return loop.velocity

    def denoiser_states(self, rollout: Rollout, noisy: Tensor, sigma: float, modules: Sequence[nn.Module]) -> list[Any]:
        """Return what modules of the denoiser give at (noisy, sigma), with gradients in `noisy` where they are enabled.

        `noisy` is as in `predict_velocity`. The denoiser runs up to the last of the modules and no further; under
        classifier-free guidance its rows are those of both halves, so sample without.
        """
        if not 0 < sigma <= 1:
            raise ValueError(f"sigma is {sigma}, expected in (0, 1]")
        loop = StatesLoop(self.guiders, _recording(rollout), noisy, sigma, modules)
        self._call(loop, _recording(rollout))
        if any(each is None for each in loop.states):
            raise GenerationError("the pipeline took a single step, and states need two")
        return loop.states

    def rollout_from_latents(
        self,
        samples: Sequence[Sample],
        groups: Sequence[int],
        clean: Tensor,
        media: Sequence[Any],
        guidance_scale: float | None = None,
    ) -> Rollout:
        """Return a rollout without decisions that ends in the latents `clean`, at the cost of one pipeline step."""
        changes: dict[str, Any] = {"transition": TransitionConfig(), "window": WindowConfig()}
        if guidance_scale is not None:
            changes["guidance_scale"] = guidance_scale
        sampling = self.sampling.model_copy(update=changes)
        arguments = call_arguments(self.pipeline, sampling, samples)
        branches = BranchTrees(BranchConfig(), len(samples))
        recording = Recording(arguments, seed=0, shared_seed=0, branches=branches)
        if guiders_take_scale(self.pipeline):
            recording.guidance_scale = sampling.guidance_scale
        loop = FirstStepLoop(self.guiders, recording, sampling)
        self._call(loop, recording)
        loop.check_latents(clean)
        none = clean.new_zeros(len(samples), 0, dtype=torch.float32)
        return Rollout(
            samples=list(samples),
            group_index=torch.tensor(groups, device=clean.device),
            log_probs=none,
            mask=none.bool(),
            channel=none.long(),
            media=list(media),
            policy_version=self.version,
            clean=clean,
            recording=recording,
        )

    def check_encoder(self) -> None:
        """Raise UnsupportedError unless `encode` takes images or lists of frames."""
        if type(self.pipeline).__name__ not in ENCODABLE_CLIPS:
            self.encode([])

    def encode(self, media: Sequence[Image | Sequence[Image]]) -> Tensor:
        """Return the clean latents [B, ...] of images or of lists of frames.

        Supported for `encode_images.ENCODABLE` and `ENCODABLE_CLIPS`.
        """
        if media and isinstance(media[0], list | tuple):
            return encode_clips(self.pipeline, self.sampling, cast(Sequence[Sequence[Image]], media))
        return encode_images(self.pipeline, self.sampling, cast(Sequence[Image], media))

    @contextmanager
    def keep_latents(self) -> Iterator[None]:
        """While open, rollouts keep the latents of every step and use the family's deterministic transition.

        A solver's own step depends on earlier steps, so a replay could not start from the middle.
        """
        before, self._keeps_latents = self._keeps_latents, True
        try:
            yield
        finally:
            self._keeps_latents = before

    def decode_with_grad(self, rollout: Rollout, steps: BackpropSteps) -> Tensor:
        """Return the media, [B, 3, H, W] or videos [B, F, 3, H, W], float32 in [0, 1], with gradients through `steps`.

        The graphs of all these steps and of the autoencoder stay in memory until `backward()`.

        Raises:
            ValueError: the rollout was not sampled under `keep_latents`.
            UnsupportedError: the pipeline returns no tensors, or detaches them.
        """
        recording, clean = _kept_latents(rollout)
        return self.run_to_tensor(BackpropLoop(self.guiders, recording, steps, clean), recording)

    def clean_with_grad(self, rollout: Rollout, steps: BackpropSteps) -> Tensor:
        """Return the latents [B, ...] that `decode_with_grad` decodes, with gradients through `steps`.

        Raises:
            ValueError: the rollout was not sampled under `keep_latents`.
        """
        recording, clean = _kept_latents(rollout)
        loop = LatentBackpropLoop(self.guiders, recording, steps, clean)
        self._call(loop, recording)
        return loop.clean

    def run_to_tensor(self, loop: Loop, recording: Recording) -> Tensor:
        """Call the pipeline under a loop that does not stop it; return its media as a tensor in [0, 1]."""
        name = type(self.pipeline).__name__
        if "output_type" not in recording.arguments:
            raise UnsupportedError(f"{name} takes no output_type, so it returns no tensors to differentiate")
        try:
            made = self._call(loop, recording, output_type="pt")[0]
        except RuntimeError as err:
            if "requires grad" not in str(err):  # raised by Tensor.numpy(), by which a pipeline leaves the graph
                raise
            raise UnsupportedError(f"{name} makes its pictures outside of torch, without gradients") from err
        if not isinstance(made, Tensor) or made.ndim not in (4, 5) or made.shape[-3] != 3:
            found = list(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise UnsupportedError(f"{name} gave {found} for output_type='pt', not RGB pictures [B, 3, H, W]")
        if torch.is_grad_enabled() and not made.requires_grad:
            raise UnsupportedError(f"{name} cuts the graph between its denoiser and its pictures: train it with an "
                                   "algorithm that needs no gradient of the reward, such as grpo")  # fmt: skip
        return made.float()

    def run_to_media(self, loop: Loop, recording: Recording) -> list[Any]:
        """Call the pipeline under a loop that does not stop it; return its media."""
        return list(self._call(loop, recording)[0])

    def reference(self) -> AbstractContextManager[None]:
        """Return a context in which the policy computes with the parameters that training started from."""
        return self._trainable.reference()

    @property
    def denoisers(self) -> Mapping[str, ModelMixin]:
        """The denoisers of the pipeline by component name."""
        return self._denoisers

    def networks(self) -> list[nn.Module]:
        """Return the networks of the pipeline: denoisers, text encoders, autoencoder."""
        return [each for each in self.pipeline.components.values() if isinstance(each, nn.Module)]

    def parameters_to_train(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by name (`transformer.blocks...`); they are always float32."""
        noise = {} if self._noise is None else dict(self._noise.named_parameters(prefix=NAME))
        return self._trainable.parameters() | noise

    def lr_scale(self, name: str) -> float:
        """Return the learning-rate factor: 1, or `learned.lr_scale` for trained noise levels."""
        learned = self.sampling.transition.learned
        return learned.lr_scale if learned is not None and name.startswith(f"{NAME}.") else 1.0

    def save(self, folder: Path) -> None:
        """Write adapters for `pipeline.load_lora_weights(folder)`, or each denoiser to a folder of its name."""
        self._trainable.save(Path(folder))
        if self._noise is not None:
            self._noise.save(folder)

    def base(self) -> ReferencePolicy:
        """Return the policy as it was before training; it shares this one's weights."""
        return ReferencePolicy(self)

    def load(self, folder: Path) -> None:
        """Load what `save` wrote into the same parameters."""
        self._trainable.load(folder)
        if self._noise is not None:
            self._noise.load(folder)

    @torch.no_grad()
    def replay_gap(self, rollout: Rollout) -> float:
        """Return max |log-prob difference| over decisions, or max |velocity difference| at the probe; 0 if exact."""
        recording = _recording(rollout)
        gaps: list[Tensor] = []

        def compare(now: StepOutputs) -> None:
            gaps.append((now.log_probs[:, 0] - rollout.log_probs[:, now.step_indices[0]]).abs().max())

        if recording.decisions:
            self.replay(rollout, range(len(recording.decisions)), compare)
        elif recording.probe is not None:
            step, expected = recording.probe
            loop = ProbeLoop(self.guiders, recording, step)
            self._call(loop, recording)
            if len(loop.outputs) != len(expected):
                raise GenerationError(f"the replay ended before step {step}")
            gaps += [(now.float() - then.float()).abs().max() for now, then in zip(loop.outputs, expected, strict=True)]
        return torch.stack(gaps).max().item() if gaps else 0.0  # NaN stays NaN

    def _call(self, loop: Loop, recording: Recording, **changes: Any) -> Any:
        """Call the pipeline once under a loop, with `changes` to its arguments; None if the loop stopped it."""
        if self._busy:
            raise GenerationError("the pipeline is in the middle of a call: use the policy after `replay`, not in "
                                  "`visit`")  # fmt: skip
        device = self.pipeline._execution_device
        one = type(self.pipeline).__name__ in SINGLE_GENERATOR
        roots = [0] if one else [root // recording.copies for root in recording.branches.roots]
        generators = row_generators(recording.seed, roots, device if one else "cpu")
        calls = recording.call_cache
        handler = calls.recorder if isinstance(loop, RecordLoop) else calls.replayer
        self._busy = True
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                # some pipelines sample the latents of an input image from the global generator
                ambient = stack.enter_context(global_generators(recording.seed, device))
                stack.enter_context(intercept_calls(self._targets, handler([*generators, *ambient])))
                stack.enter_context(restore_attention(self._denoisers))
                stack.enter_context(self.guiders.at_scale(recording.guidance_scale))
                hooks = intercept_denoisers(self._denoisers, self._branches, loop, self._trainable.precision)
                stack.enter_context(hooks)
                stack.enter_context(intercept_scheduler(self.pipeline.scheduler, loop))
                arguments = map_leaves(list, list, recording.arguments) | changes  # some pipelines write into them
                seeded = [each.get_state() for each in ambient]
                try:
                    made = self.pipeline(**arguments, generator=generators[0] if one else generators)
                except ValueError as err:
                    if (refused := refused_call(self.pipeline, arguments, err)) is None:
                        raise
                    raise refused from err
                if isinstance(loop, RecordLoop):
                    drawn = [
                        not torch.equal(each.get_state(), state) for each, state in zip(ambient, seeded, strict=True)
                    ]
                    self.draws_globally |= any(drawn)
                return made
        except StopPipeline:
            return None
        finally:
            self._busy = False

    def _sampling_of(self, requests: Sequence[RolloutRequest]) -> SamplingConfig:
        if not requests or any(request.n < 1 for request in requests):
            raise ValueError("a rollout needs requests, each for one trajectory or more")
        if any(request.start is not None for request in requests):
            raise ValueError("the rows of a pipeline cannot start differently (data.starts): leave it out")
        sampling: SamplingConfig = shared_sampling(requests, self.sampling)
        return sampling

    def _branches_of(self, requests: Sequence[RolloutRequest], sampling: SamplingConfig) -> BranchTrees:
        leaves = sampling.branch.num_leaves
        if any(request.n % leaves for request in requests):
            raise ValueError(f"sampling.branch: {[request.n for request in requests]} rows of a sample are requested, "
                             f"which are not whole trees of {leaves}")  # fmt: skip
        if leaves > 1 and type(self.pipeline).__name__ in SINGLE_GENERATOR:
            raise UnsupportedError(f"{type(self.pipeline).__name__} samples the noise of all rows from one generator, "
                                   "so rows cannot share initial noise: leave sampling.branch out")  # fmt: skip
        return BranchTrees(sampling.branch, sum(request.n for request in requests))

    def _check(self, sampling: SamplingConfig) -> None:
        check_transition(sampling.transition, family_of(self.pipeline.scheduler))
        call_arguments(self.pipeline, sampling, [])


def _select_denoisers(found: dict[str, ModelMixin], names: Sequence[str]) -> dict[str, ModelMixin]:
    if missing := [name for name in names if name not in found]:
        raise ConfigError(f"policy.denoisers: the pipeline has no {', '.join(missing)}; it has {', '.join(found)}")
    return {name: found[name] for name in names or found}


def _kept_latents(rollout: Rollout) -> tuple[Recording, Tensor]:
    """Return the recording with the latents of every step, and the clean latents."""
    recording = _recording(rollout)
    if not recording.keeps_latents or rollout.clean is None:
        raise ValueError("this rollout did not keep its latents: sample it under `policy.keep_latents()`")
    return recording, rollout.clean


def _recording(rollout: Rollout) -> Recording:
    if not isinstance(rollout.recording, Recording):
        raise ValueError("this rollout was not made by a pipeline policy, or its recording was dropped")
    return rollout.recording
