"""Policies from vision-language models: any model that transformers loads with `AutoModelForImageTextToText`.

    policy = VLMPolicy.from_config(VLMConfig(model="Qwen/Qwen2.5-VL-3B-Instruct"), TokenSamplingConfig())
    rollout = policy.rollout([RolloutRequest(sample, n=8, group=0)], seed=0)
    policy.replay(rollout, range(rollout.log_probs.shape[1]), visit=lambda now: loss(now.log_probs).backward())

    vlm_policy      the policy: rollout, replay, teacher forcing, checkpoints, and a check that media reach the loss
    rollout_engine  generation of answers, by the model itself or by a server
    objective_heads output layers for several objectives, and their blends
    joint_engine    sampling from a weighted sum of several models' logits
    vlm_replay      log-probabilities of recorded answers, packed with their prompts or row by row
    shared_prompt   prefill of a prompt, computed once for all answers to it
    prompt_encoder  samples to model inputs; the prompt cache and the conversation format
    encoded_prompt  the inputs of prompts, and their batches
    vlm             loading, special tokens, trained parts
    vlm_family      positions, coordinates and attention of model families
    vlm_support     the model types that tests proved, and why others are refused
    tasks           instruction, answer format, reward and coordinates of each task; `mmrl data check`

To add a model family: a row of tests/understanding/tiny_vlms/, a line in `vlm_family` if the checks of the row ask for
one, then `python -m tests.understanding.vlm_record NAME` and `python -m tools.vlms`. To add a task:
docs/vision-language.md.

Gotchas: log-probabilities are at the sampling temperature, and placeholder tokens of media are suppressed. A rollout
computes token by token and a replay all tokens at once: the two differ in the last bits.
"""

from __future__ import annotations

from mmrl.lazy import exports

_HOMES = {
    "GeneratedTokens": "rollout_engine",
    "ModelLogits": "joint_engine",
    "RolloutEngine": "rollout_engine",
    "TransformersEngine": "rollout_engine",
    "VLMPolicy": "vlm_policy",
    "apply_task": "tasks.definitions",
    "joint_logits": "joint_engine",
}

__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES, renamed={"Written": "rollout_engine:GeneratedTokens"})
