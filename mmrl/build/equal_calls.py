"""The conditions of `run.place: strict`, under which all processes make equally many calls of the model."""

from __future__ import annotations

from collections.abc import Iterator

from mmrl.config.algorithms.forward_process import AWMConfig, DiffusionNFTConfig
from mmrl.config.algorithms.policy_gradient import PolicyGradientConfig
from mmrl.config.batch_sizes import BatchPlan
from mmrl.config.data import FixedGroupSamplingConfig
from mmrl.config.policy import PolicyConfig
from mmrl.config.sampling import SamplingConfig
from mmrl.config.train import TrainConfig
from mmrl.rewards.core.registry import reward_class
from mmrl.rewards.core.reward_io import Scope

_OTHERWISE = "leave it out, or set run.place to window"


def unequal_calls(config: TrainConfig, count: int) -> Iterator[str]:
    """Yield one message for each key with which `count` processes could call the model unequally often."""
    if not isinstance(config.policy, PolicyConfig):
        yield (
            f"run.place: strict is for diffusion and flow models, and answers of {config.policy.kind} need other "
            "numbers of calls in each process: choose window"
        )
        return
    algorithm, data = config.algorithm, config.data
    if not isinstance(algorithm, PolicyGradientConfig | DiffusionNFTConfig | AWMConfig):
        yield (
            f"algorithm.name: run.place strict trains by policy gradients, diffusion_nft and awm, and {algorithm.name} "
            "may call the model unequally often in the processes: choose one of those, or set run.place to window"
        )
    elif isinstance(algorithm, PolicyGradientConfig) and algorithm.mismatch is not None:
        yield f"algorithm.mismatch: run.place strict has no importance correction: {_OTHERWISE}"
    if config.pretraining is not None:
        yield f"pretraining: run.place strict trains on the policy's own samples alone: {_OTHERWISE}"
    if config.stages:
        yield f"stages: run.place strict trains in one stage: {_OTHERWISE}"
    if not isinstance(data.group_sampling, FixedGroupSamplingConfig):
        yield (
            f"data.group_sampling: {data.group_sampling.name} trains on numbers of calls that follow from the rewards, "
            f"and run.place strict needs equal ones: {_OTHERWISE}"
        )
    if data.replay is not None:
        yield f"data.replay: run.place strict trains on fresh samples alone: {_OTHERWISE}"
    if data.demonstrations is not None:
        yield f"data.demonstrations: run.place strict trains on the policy's own samples alone: {_OTHERWISE}"
    if isinstance(config.sampling, SamplingConfig) and config.sampling.branch.num_leaves > 1:
        yield (
            "sampling.branch: rows that could not be scored leave out steps that others share, and run.place strict "
            f"needs equally many: {_OTHERWISE}"
        )
    if config.training.max_kl is not None:
        yield f"training.max_kl: one process measures the distance, and under run.place strict none can: {_OTHERWISE}"
    yield from _unequal_shares(config, count)


def _unequal_shares(config: TrainConfig, count: int) -> Iterator[str]:
    plan = BatchPlan.of(config)
    if plan.micro_batches_per_update % count:
        yield (
            f"data.micro_batch: run.place strict needs equally many calls in each of {count} processes, and an update "
            f"is {plan.micro_batches_per_update} calls of {plan.micro_batch} trajectories: choose data.groups, "
            "data.micro_batch and training.updates so that their number is divisible, or set run.place to window"
        )
    together = any(reward_class(reward.name).scope is not Scope.SAMPLE for reward in config.rewards)
    if together and plan.micro_batch % plan.group_size:
        yield (
            f"data.micro_batch: a reward compares the answers of a group, so under run.place strict each call must "
            f"have whole groups of {plan.group_size}: set it to a multiple, or set run.place to window"
        )
