"""What one call of each phase costs: the sections add up, nothing is written, and memory is what a whole run has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmrl.build.datasets import load_samples
from mmrl.build.policies import build_policy, prepare_samples
from mmrl.build.reward_suites import build_rewards
from mmrl.build.training_setup import build_training_setup
from mmrl.config import TrainConfig, load_config
from mmrl.generation.memory.meta_run import AllocationTracker
from mmrl.planning.phase_measurement import Measurement, measure, one_call
from mmrl.rewards.core.routing import SharedLoader
from mmrl.training.run.display import build_display
from mmrl.training.training_loop import TrainingLoop

TEXTS = ("data={path: 'shapeworld:vlm-development', groups: 8, group_size: 8, micro_batch: 16}", "training.updates=2")
PICTURES = (
    "data={path: 'shapeworld:development', groups: 4, group_size: 4, micro_batch: 4}",
    "sampling.steps=4",
    "evaluation={}",
)
TRAINED = {
    "vlm": ("shapes-vlm", *TEXTS),
    "vlm-lora": ("shapes-vlm", *TEXTS, "policy.train=lora"),
    "vlm-penalty": ("shapes-vlm", *TEXTS, "algorithm.kl.coef=0.01"),
}


def configured(recipe: str, *words: str) -> TrainConfig:
    return load_config(recipe, list(words))


def real_peak(config: TrainConfig, folder: Path) -> int:
    """The bytes that a run allocates at most, over two whole iterations and a checkpoint, with its weights."""
    torch.manual_seed(config.seed)
    policy = build_policy(config.policy, config.sampling, config.media)
    samples = prepare_samples(
        policy, config.policy, config.answers, config.sampling, load_samples(config.data.path, config.media)
    )
    model = policy.vlm.model
    weights = {id(each): each for each in (*model.parameters(), *model.buffers())}
    with policy.reference():
        weights |= {id(each): each for each in model.parameters()}
    tracker = AllocationTracker()
    with tracker:
        rewards = build_rewards(config, samples, SharedLoader())
        setup = build_training_setup(config, policy, samples, samples, rewards)
        loop = TrainingLoop(
            policy=policy,
            objective=setup.objective,
            source=setup.source,
            optimizer_config=config.optimizer,
            config=config.training,
            seed=config.seed,
            run=folder,
            trackers=[],
            display=build_display("quiet"),
            sampling=config.sampling.kind,
        )
        for _ in range(2):
            loop.iterate()
        loop.save()
    rewards.close()
    return tracker.peak + sum(each.nbytes for each in weights.values())


@pytest.mark.parametrize("case", TRAINED)
def test_memory_of_one_call_predicts_that_of_a_whole_run(case, tmp_path):
    config = configured(*TRAINED[case])
    estimate = measure(config, repeats=1).memory
    truth = real_peak(config, tmp_path)
    print(f"{case}: predicted {estimate.total / 2**20:.1f} MiB, counted {truth / 2**20:.1f} MiB")
    assert estimate.total == pytest.approx(truth, rel=0.1)
    assert estimate.bytes_of_processes(1)["replicas"] == estimate.total
