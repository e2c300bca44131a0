"""The algorithms: what one update minimises. A name selects defaults; every key may be set besides.

PolicyGradientConfig      one objective, of which `grpo`, `dapo`, `gspo` and so on are settings
DiffusionNFTConfig        regression of velocities
RewardGradientConfig      ascent on differentiable rewards, of which `draft`, `refl` and so on are settings
SFTConfig                 imitation of demonstrations; RejectionSFTConfig: of the policy's own best answers
DPOConfig, MPOConfig      preference of a chosen over a rejected answer

Each section names its objective and states its constraints; `base.OBJECTIVES` lists them by name, and
docs/algorithms.md with their papers.
"""

from __future__ import annotations

from mmrl.config.algorithms.advantage import AdvantageConfig, BestOfConfig, ExponentialConfig
from mmrl.config.algorithms.base import AlgorithmConfig, ExperienceKind
from mmrl.config.algorithms.forward_process import (
    AWMConfig,
    DiffusionNFTConfig,
    FlowRWRConfig,
    OldPolicyConfig,
)
from mmrl.config.algorithms.kl import KLConfig
from mmrl.config.algorithms.noise_levels import MatchingConfig, NoiseLevelsConfig
from mmrl.config.algorithms.policy_gradient import (
    Aggregate,
    B2DiffuRLConfig,
    BNPOConfig,
    BranchGRPOConfig,
    CISPOConfig,
    ClipConfig,
    DAPOConfig,
    DDPOConfig,
    DPOKConfig,
    DrGRPOConfig,
    GammaConfig,
    GDPOConfig,
    GRPOConfig,
    GRPOGuardConfig,
    GSPOConfig,
    Importance,
    LUSPOConfig,
    MaxRLConfig,
    PolicyGradientConfig,
    ReinforcePPConfig,
    RLOOConfig,
    SAPOConfig,
    TemperatureConfig,
    TOPRConfig,
    UniGRPOConfig,
    VESPOConfig,
)
from mmrl.config.algorithms.preference import DPOConfig, MPOConfig, OnlineDPOConfig
from mmrl.config.algorithms.reward_gradient import (
    AlignPropConfig,
    DRaFTConfig,
    DRaFTLVConfig,
    DRTuneConfig,
    ReFLConfig,
    RewardGradientConfig,
)
from mmrl.config.algorithms.supervised import RejectionSFTConfig, SFTConfig

__all__ = [
    "AWMConfig",
    "AdvantageConfig",
    "Aggregate",
    "AlgorithmConfig",
    "AlignPropConfig",
    "B2DiffuRLConfig",
    "BNPOConfig",
    "BestOfConfig",
    "BranchGRPOConfig",
    "CISPOConfig",
    "ClipConfig",
    "DAPOConfig",
    "DDPOConfig",
    "DPOConfig",
    "DPOKConfig",
    "DRTuneConfig",
    "DRaFTConfig",
    "DRaFTLVConfig",
    "DiffusionNFTConfig",
    "DrGRPOConfig",
    "ExperienceKind",
    "ExponentialConfig",
    "FlowRWRConfig",
    "GDPOConfig",
    "GRPOConfig",
    "GRPOGuardConfig",
    "GSPOConfig",
    "GammaConfig",
    "Importance",
    "KLConfig",
    "LUSPOConfig",
    "MPOConfig",
    "MatchingConfig",
    "MaxRLConfig",
    "NoiseLevelsConfig",
    "OldPolicyConfig",
    "OnlineDPOConfig",
    "PolicyGradientConfig",
    "RLOOConfig",
    "ReFLConfig",
    "ReinforcePPConfig",
    "RejectionSFTConfig",
    "RewardGradientConfig",
    "SAPOConfig",
    "SFTConfig",
    "TOPRConfig",
    "TemperatureConfig",
    "UniGRPOConfig",
    "VESPOConfig",
]
