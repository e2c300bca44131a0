"""Algorithms that compare velocities on noised samples, and keys that only those or only texts have a use for."""

from __future__ import annotations

from mmrl.config.algorithm import (
    AdvantageConfig,
    AlgorithmConfig,
    AWMConfig,
    DiffusionNFTConfig,
    FlowRWRConfig,
    MatchingConfig,
    OnlineDPOConfig,
    RejectionSFTConfig,
    SFTConfig,
)
from mmrl.config.data import DataConfig
from mmrl.config.sampling import SamplingConfig
from mmrl.config.train import TrainConfig


def of_velocities(config: TrainConfig) -> list[tuple[bool, str]]:
    """Whether each misfit is there, and the line that says so."""
    algorithm, draws = config.algorithm, isinstance(config.sampling, SamplingConfig)
    found = _of_forward_process(algorithm)
    if isinstance(algorithm, MatchingConfig):
        fields = type(algorithm).model_fields
        found += [
            (
                not draws and getattr(algorithm, key) != fields[key].default,
                f"algorithm.{key}: noise levels are for policies that draw, and texts have none: leave it out",
            )
            for key in ("num_noise_levels", "weighting")
        ]
    if isinstance(algorithm, SFTConfig | RejectionSFTConfig):
        found.append(
            (
                draws and algorithm.aggregate != "token",
                f"algorithm.aggregate: {algorithm.aggregate} is about tokens, and pictures have none: leave it out",
            )
        )
    if isinstance(algorithm, OnlineDPOConfig):
        found += _of_pairs(algorithm, config.data)
    found.append(
        (
            draws and config.pretraining is not None,
            "pretraining: a policy that draws is warmed up in a run of its own: train it with the algorithm sft or dpo "
            "first, and set policy.model to what that saved",
        )
    )
    return found


def _of_forward_process(algorithm: AlgorithmConfig) -> list[tuple[bool, str]]:
    if not isinstance(algorithm, DiffusionNFTConfig | AWMConfig | FlowRWRConfig):
        return []
    advantage = algorithm.advantage
    return [
        (
            algorithm.kl.coef > 0 and algorithm.kl.kind != "velocity_mse",
            f"algorithm.kl.kind: {algorithm.kl.kind} compares stochastic steps, which {algorithm.name} does not "
            "replay: choose velocity_mse",
        ),
        (
            isinstance(algorithm, DiffusionNFTConfig) and algorithm.advantage.clip is None,
            "algorithm.advantage.clip: diffusion_nft maps [-clip, clip] to how good a sample is: set it, to 5.0 say",
        ),
        (
            isinstance(advantage, AdvantageConfig) and advantage.name == "branch",
            f"algorithm.advantage.name: branch gives each denoising step its own credit, and {algorithm.name} replays "
            "none: choose grpo",
        ),
    ]


def _of_pairs(algorithm: OnlineDPOConfig, data: DataConfig) -> list[tuple[bool, str]]:
    together = 2 if algorithm.pairing == "best_worst" else data.group_size
    micro_batch = data.micro_batch or together
    return [
        (
            micro_batch < together,
            f"data.micro_batch: {micro_batch} rows do not hold the {together} of a group that algorithm.pairing "
            f"{algorithm.pairing} compares",
        )
    ]
