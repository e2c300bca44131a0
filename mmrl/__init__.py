"""mmrl: reinforcement learning for image and video generators and for vision-language models.

    sampling = mmrl.DenoisingSampling(steps=10, transition=mmrl.FlowSDE(noise=0.7))
    policy = mmrl.PipelinePolicy(pipeline, sampling=sampling, train=mmrl.LoRA(rank=32))
    trainer = mmrl.Trainer(policy, prompts="prompts.jsonl", rewards=["clip_score"], out="runs/mine")
    trainer.train()

Policies: `PipelinePolicy` (any diffusers pipeline), `VLMPolicy` (any vision-language model of transformers),
`ImageTokenPolicy`. Training: `Trainer`, or `load_config` and `train` for recipes. Sections of a recipe have short
names: `GRPO`, `DPO`, `SFT`, `DiffusionNFT`, `LoRA`, `AdamW`, `Batch` (`mmrl.sections`). Rewards are the library
`mmrl.rewards`. Importing this package is cheap: torch and the models load with the first name that needs them.
"""

from __future__ import annotations

from mmrl.lazy import exports

__version__ = "0.1.0"

_SECTIONS = (
    *("AdamW", "Batch", "DPO", "DanceSDE", "DenoisingSampling", "DiffusionNFT", "Evaluate", "FlowSDE", "GRPO"),
    *("GroupNormalized", "LoRA", "SFT", "TokenSampling"),
)
_HOMES = {
    **dict.fromkeys(_SECTIONS, "mmrl.sections"),
    "ImageTokenPolicy": "mmrl.generation.image_tokens.image_token_policy",
    "PipelinePolicy": "mmrl.generation.diffusion.pipeline_policy",
    "Reward": "mmrl.rewards",
    "Sample": "mmrl.data.sample",
    "Trainer": "mmrl.workflows.trainer",
    "VLMPolicy": "mmrl.understanding.vlm_policy",
    "compare": "mmrl.workflows.trainer",
    "load_config": "mmrl.config",
    "load_reward": "mmrl.rewards.core.registry:load",
    "load_samples": "mmrl.build.datasets",
    "train": "mmrl.workflows.train",
}

__all__ = ["__version__", *sorted(_HOMES)]
__getattr__ = exports(__name__, _HOMES)
