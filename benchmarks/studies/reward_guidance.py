"""Measure what steering ShapeWorld's untrained pipeline by a CLIP's gradient does, by weight.

    python benchmarks/studies/reward_guidance.py    # about a minute of processor time

Prints the table of docs/inference.md: the first 48 captions of `shapeworld:development`, one picture each, ten steps.
"""

from __future__ import annotations

from diffusers import DiffusionPipeline

from mmrl.config.sampling import SamplingConfig
from mmrl.generation import PipelinePolicy, guided_rollout
from mmrl.policy import RolloutRequest
from mmrl.rewards import load
from mmrl.rewards.core.reward_io import reward_input
from mmrl_shapeworld import splits
from mmrl_shapeworld.shipped_models import PIPELINE

PROMPTS, SEED, WEIGHTS = 48, 1, (0.0, 1.0, 5.0, 20.0, 100.0)


def main() -> None:
    """Draw and score."""
    sampling = SamplingConfig(steps=10, guidance_scale=1.0, pipeline_args={"max_sequence_length": 1})
    policy = PipelinePolicy(DiffusionPipeline.from_pretrained(PIPELINE), sampling)
    clip, checker = load("shapeworld_clip"), load("shapeworld")
    requests = [RolloutRequest(s, 1, i) for i, s in enumerate(splits.samples("development")[:PROMPTS])]
    print("| `--guide shapeworld_clip=` | CLIPScore | partial credit | strictly correct |\n|-|-|-|-|")
    for weight in WEIGHTS:
        rollout = guided_rollout(policy, requests, SEED, [(clip, weight)])
        rows = zip(rollout.samples, rollout.media, strict=True)
        items = [reward_input(sample, picture, 0, sample.id) for sample, picture in rows]
        scores = clip.score(items).values | checker.score(items).values
        means = [scores[name].mean() for name in ("shapeworld_clip", "shapeworld", "shapeworld_strict")]
        print(f"| {weight:g} | {' | '.join(f'{mean:.3f}' for mean in means)} |", flush=True)


if __name__ == "__main__":
    main()
