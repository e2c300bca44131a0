"""Short names of configuration sections for Python: `mmrl.GRPO(...)`, `mmrl.LoRA(...)`, `mmrl.AdamW(...)`.

Each name is the section that a recipe has under the same key, with the same fields and checks; the functions are
sections whose `name` is filled in. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmrl.config.algorithms.advantage import AdvantageConfig as GroupNormalized
from mmrl.config.algorithms.forward_process import DiffusionNFTConfig as DiffusionNFT
from mmrl.config.algorithms.policy_gradient import GRPOConfig as GRPO
from mmrl.config.algorithms.preference import DPOConfig as DPO
from mmrl.config.algorithms.supervised import SFTConfig as SFT
from mmrl.config.policy import LoraConfig as LoRA
from mmrl.config.sampling import SamplingConfig as DenoisingSampling
from mmrl.config.sampling import TokenSamplingConfig as TokenSampling
from mmrl.config.sampling import TransitionConfig
from mmrl.config.training import EvaluationConfig as Evaluate
from mmrl.config.training import OptimizerConfig as AdamW

__all__ = [
    "DPO",
    "GRPO",
    "SFT",
    "AdamW",
    "Batch",
    "DanceSDE",
    "DenoisingSampling",
    "DiffusionNFT",
    "Evaluate",
    "FlowSDE",
    "GroupNormalized",
    "LoRA",
    "TokenSampling",
]


@dataclass(frozen=True)
class Batch:
    """The sizes of one iteration: `groups` prompts with `group_size` trajectories each.

    `micro_batch` trajectories are sampled and replayed in one call of the policy; None means all of them.
    """

    groups: int = 8
    group_size: int = 12
    micro_batch: int | None = None


def FlowSDE(noise: float = 0.7) -> TransitionConfig:
    """Return Flow-GRPO's stochastic transition (arXiv:2505.05470); `noise` is its a >= 0."""
    return TransitionConfig(name="flow_sde", noise_level=noise)


def DanceSDE(noise: float = 0.3) -> TransitionConfig:
    """Return DanceGRPO's stochastic transition (arXiv:2505.07818); `noise` is its eta >= 0."""
    return TransitionConfig(name="dance_sde", noise_level=noise)
