"""Policies that look: any vision-language model that transformers loads.

    policy = VLMPolicy.from_config(VLMConfig(model="Qwen/Qwen2.5-VL-3B-Instruct"), TokenSamplingConfig())
    rollout = policy.rollout([RolloutRequest(sample, n=8, group=0)], seed=0)
    policy.replay(rollout, range(rollout.log_probs.shape[1]), visit=lambda now: loss(now.log_probs).backward())

How it works, from the outside in:

    vlm_policy       the policy: rollout, replay, teacher forcing
    rollout_engine   who writes the answers: the model itself, one day a server
    shared_prompt    a prompt is computed once for all answers to it
    prompt_encoder   from samples to inputs, with nothing lost; `conversation`, `prompt_cache`
    reach            proof that pictures and videos reach the loss
    vlm, families    a model and its processor; what differs between families
    trainables       adapters or whole parts, the reference, checkpoints
    tasks            what a task adds to a sample: `instructions`, `spaces`
    check            what is wrong with a data set: `right_answers`

To add a family: a line in `families`, if its positions or coordinates are not plain, and a tiny model in
tests/understanding/tiny/.

Gotchas: log-probabilities are those at the sampling temperature, without the tokens that stand for media. A rollout
reads token by token and a replay all at once: they differ in the last bits.
"""

from __future__ import annotations

from mmrl.lazy import exports

_HOMES = {
    "RolloutEngine": "rollout_engine",
    "TransformersEngine": "rollout_engine",
    "VLMPolicy": "vlm_policy",
    "Written": "rollout_engine",
    "apply_task": "tasks.definitions",
}

__all__ = sorted(_HOMES)
__getattr__ = exports(__name__, _HOMES)
