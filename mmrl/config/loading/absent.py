"""Keys that users of other libraries look for and that do not exist here, with the reason and what to do instead."""

from __future__ import annotations

_ONE_SEQUENCE = (
    "one picture or video is not divided over several processes, because diffusers' enable_parallelism does that on "
    "accelerators alone and was never checked in training here (docs/scaling.md). To save memory choose run.place: "
    "strict, which divides the model, and policy.gradient_checkpointing"
)
ABSENT_KEYS = {
    "run.context_parallel": _ONE_SEQUENCE,
    "run.sequence_parallel": _ONE_SEQUENCE,
}
"""Dotted key -> the end of the message about it."""
