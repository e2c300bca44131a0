"""Policies that draw: any diffusers pipeline, trained through its own `__call__`.

    policy = PipelinePolicy(DiffusionPipeline.from_pretrained(model), SamplingConfig(transition={"name": "flow_sde"}))
    rollout = policy.rollout([RolloutRequest(Sample("0", prompt="a red circle"), n=8, group=0)], seed=0)
    policy.replay(rollout, columns=[0, 1], visit=lambda now: (-advantage * now.log_probs[:, 0]).mean().backward())

How it works, from the outside in:

    pipeline_policy  the policy: an ordinary pipeline call, watched
    loops            what happens at a denoiser call and at a scheduler step: record, replay, velocity
    arguments, rows  from samples and settings to the arguments of the call
    tape, recording  encoders and initial noise, recorded once and played back; what else a rollout leaves
    scheduler_hook, denoiser_hook  where a loop is watched; nothing stays patched afterwards
    guiders, joint   guidance with memory; latents that are denoised together
    families         which transitions a scheduler allows, and its noise levels
    transitions      the Gaussian of one step: flow-SDE, Dance-SDE, CPS, DDIM, the scheduler's own
    windows, branches  which steps explore, and which rows share a path until they part
    learned_noise    noise levels that are trained with the policy
    live, noising    the last steps once more, with gradients from the picture back to the denoiser
    guidance         RL guidance and LoRA strength, on any pipeline; reward_guidance steers by rewards' gradients
    best_of          several drawings, ordered by what they score
    trainables       adapters or all parameters, the reference, checkpoints
    seeds            every random stream, from one seed
    coverage         which pipeline classes can be policies
    estimate         the memory of a run, from the model's configuration alone

To add a transition: a frozen dataclass with `moments` and `log_prob`, named in its family and in `TransitionConfig`.

Gotchas: a log-probability is the *mean* over latent dimensions. A replay must have the batch shape of its rollout: rows
computed in another shape differ in the last bits. `visit` may call `backward()`, but not the policy.
"""

from __future__ import annotations

from mmrl.lazy import exports

_HOMES = {
    "CPS": "diffusion.transitions",
    "DDIM": "diffusion.transitions",
    "DanceSDE": "diffusion.transitions",
    "FlowSDE": "diffusion.transitions",
    "GenerationError": "mmrl.errors",
    "NoisyODE": "diffusion.transitions",
    "ODE": "diffusion.transitions",
    "PipelinePolicy": "diffusion.pipeline_policy",
    "ReplayError": "mmrl.errors",
    "Transition": "diffusion.transitions",
    "UnsupportedError": "mmrl.errors",
    "guided_rollout": "inference.reward_guidance",
    "lora_strength": "inference.guidance",
    "rl_guidance": "inference.guidance",
}

__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES, renamed={"TapeError": "mmrl.errors:ReplayError"})
