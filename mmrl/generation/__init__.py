"""Image and video generators as policies: diffusers pipelines and token image generators.

    policy = PipelinePolicy(DiffusionPipeline.from_pretrained(model), SamplingConfig(transition={"name": "flow_sde"}))
    rollout = policy.rollout([RolloutRequest(Sample("0", prompt="a red circle"), n=8, group=0)], seed=0)
    policy.replay(rollout, [0, 1], visit=lambda now: (-advantage * now.log_probs[:, 0]).mean().backward())

`diffusion/` trains any diffusers pipeline through its own `__call__`:

    pipeline_policy       `PipelinePolicy`: rollout, replay and velocity are intercepted calls of the pipeline
    loops                 the denoiser calls and scheduler steps of a call: record, replay, probe, velocity
    differentiable_loop   the last steps with gradients from the images back to the denoiser
    call_arguments        from samples and sampling settings to the arguments of the call
    encode_images         existing images to latents
    replay_cache, pytree  encoder outputs and initial noise, computed once; structures of tensors
    recording             the other data of a rollout; latents that are denoised together
    scheduler_hook, denoiser_hook  interception of steps, denoisers and guiders; nothing stays patched afterwards
    scheduler_families    noise levels of schedulers, and the moments of a step
    transitions           the Gaussian of one step: flow-SDE, Dance-SDE, CPS, DDIM, the scheduler's own
    learned_noise         noise levels that are trained with the policy
    decisions             the stochastic steps; trees of rows that share decisions
    noise_levels          adding noise, predicting x_0, and conversion to a flow's terms
    support               the pipeline classes that can be policies

`image_tokens/` trains autoregressive models, `inference` has RL guidance, reward guidance and best of N, and `memory/`
estimates the memory of a run from the model's configuration files.

To add a transition: a frozen dataclass that derives from `Transition` (docs/transitions.md). To add an image-token
model: a class that derives from `ImageTokenModel` (docs/image-tokens.md). Neither needs a change in this package.

A log-probability is the *mean* over latent dimensions. A replay must have the batch shape of its rollout: rows computed
in another shape differ in the last bits. `visit` may call `backward()`, but not the policy.
"""

from __future__ import annotations

from mmrl.lazy import exports

_TRANSITIONS = ("CPS", "DDIM", "DanceSDE", "FlowSDE", "NoisyODE", "ODE", "Transition")
_HOMES = {
    **dict.fromkeys(_TRANSITIONS, "diffusion.transitions"),
    "GenerationError": "mmrl.errors",
    "ImageTokenModel": "image_tokens.image_token_model",
    "ImageTokenPolicy": "image_tokens.image_token_policy",
    "PipelinePolicy": "diffusion.pipeline_policy",
    "ReplayError": "mmrl.errors",
    "UnsupportedError": "mmrl.errors",
    **dict.fromkeys(("guided_rollout", "lora_strength", "rl_guidance"), "inference"),
}

__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES, renamed={"TapeError": "mmrl.errors:ReplayError"})
