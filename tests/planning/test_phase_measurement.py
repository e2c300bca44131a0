"""The measured cost of one call of each phase: nothing is written, and memory is that of a whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.build.datasets import load_samples
from mmrl.build.load_models import build_learners, build_models
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
SUMS = ("data={path: 'shapeworld:sums-few', groups: 8, group_size: 8, micro_batch: 16}", "evaluation={}")
PICTURES = (
    "data={path: 'shapeworld:development', groups: 4, group_size: 4, micro_batch: 4}",
    "sampling.steps=4",
    "evaluation={}",
)
TRAINED = {
    "vlm": ("shapes-vlm", *TEXTS),
    "vlm-lora": ("shapes-vlm", *TEXTS, "policy.train=lora"),
    "vlm-teachers": (
        *("shapes-reasoning", *SUMS, "algorithm={name: distill, teacher: one}"),
        "models={one: {model: 'shapeworld:sums'}, two: {model: 'shapeworld:sums'}, slow: {of: policy, ema: 0.9}}",
    ),
    "vlm-offloaded": (
        *("shapes-reasoning", *SUMS, "algorithm={name: distill, teacher: one}"),
        "models={one: {model: 'shapeworld:sums', offload: true}}",
    ),
    "vlm-critic": (
        *("shapes-reasoning", *SUMS, "algorithm={name: ppo, critic: judge}"),
        "models={judge: {model: 'shapeworld:sums', train: full, head: value, optimizer: {ema: 0.9}}}",
    ),
    "vlm-large-calls": (
        *("shapes-vlm", *TEXTS, "data.micro_batch=128", "data.groups=16", "data.group_size=16"),
        *("training.updates=1", "algorithm.kl.coef=0.01", "data.path=shapeworld:vlm-train"),
    ),
}


FAST = ("vlm-critic",)


def configured(recipe: str, *words: str) -> TrainConfig:
    return load_config(recipe, list(words))


def real_peak(config: TrainConfig, folder: Path) -> int:
    """The bytes that a run allocates at most, over two whole iterations and a checkpoint, with its weights."""
    torch.manual_seed(config.seed)
    policy = build_policy(config.policy, config.sampling, config.media)
    samples = prepare_samples(
        policy, config.policy, config.answers, config.sampling, load_samples(config.data.path, config.media)
    )
    models = build_models(config, policy)
    learners = build_learners(config, models)
    others = [learner.model for learner in learners.values()] + [models[name].policy for name in models]
    weights = {id(each): each for model in others for each in tensors_of(model)}
    with policy.reference():
        weights |= {id(each): each for each in tensors_of(policy)}
    resting = sum(model.offloaded.nbytes for model in models.values() if model.offloaded is not None)
    copies = [*models.state_dict().values()]
    for learner in learners.values():
        copies += [] if learner.average is None else learner.average.state_dict().values()
    tracker = AllocationTracker()
    with tracker:
        rewards = build_rewards(config, samples, SharedLoader())
        setup = build_training_setup(config, policy, samples, samples, rewards, models=models)
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
            models=models,
            others=learners,
        )
        for _ in range(2):
            loop.iterate()
        loop.save()
    rewards.close()
    return tracker.peak + sum(each.nbytes for each in (*weights.values(), *copies)) - resting


def tensors_of(model: Any) -> list[torch.Tensor]:
    """The parameters and buffers that a model has now."""
    return [each for network in model.networks() for each in (*network.parameters(), *network.buffers())]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [*FAST, *(pytest.param(case, marks=pytest.mark.slow) for case in TRAINED if case not in FAST)]
)
def test_memory_of_one_call_predicts_that_of_a_whole_run(case, tmp_path):
    config = configured(*TRAINED[case])
    estimate = measure(config, repeats=1).memory
    truth = real_peak(config, tmp_path)
    print(f"{case}: predicted {estimate.total / 2**20:.1f} MiB, counted {truth / 2**20:.1f} MiB")
    assert estimate.total == pytest.approx(truth, rel=0.1)
    assert estimate.bytes_of_processes(1)["replicas"] == estimate.total


@pytest.fixture(scope="module")
def pictures() -> Measurement:
    return measure(configured("quickstart", *PICTURES), repeats=1)


@pytest.mark.integration
def test_calls_of_the_model_are_counted(pictures):
    """DiffusionNFT samples with each step once, and at each of 3 noise levels asks the old policy and learns."""
    work = pictures.work
    assert (work.rollout_forwards, work.update_forwards, work.update_backwards) == (4, 3, 3)
    assert (work.calls, work.rows, work.updates, work.epochs) == (4, 4, 1, 2)
    assert work.gradient_bytes == work.placed_bytes == 4 * pictures.memory.trained
    assert work.copy_bytes == 2 * work.gradient_bytes  # the reference and the old policy
    assert work.experience_bytes > 4 * 16 * 16 * 3
    assert pictures.device_name == "CPU, 1 thread(s)" and pictures.obstacles == {}


@pytest.mark.integration
def test_every_phase_takes_time(pictures):
    phases = pictures.phases
    assert min(phases.rollout, phases.scoring, phases.update, phases.optimizer, phases.statistics, phases.check) > 0
    assert phases.update > phases.optimizer and phases.rollout > phases.statistics


@pytest.mark.integration
def test_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    measure(configured("shapes-vlm", *TEXTS), repeats=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_call_smaller_than_a_group_is_measured_with_a_smaller_group():
    config = configured("shapes-vlm", *TEXTS[:1], "data.micro_batch=2")
    reduced = one_call(config)
    assert (reduced.data.groups, reduced.data.group_size) == (1, 2)
    assert measure(config, repeats=1).phases.update > 0


@pytest.mark.slow
def test_a_call_of_one_answer_still_learns():
    """A group of one has advantages of 0, for which an update would compute nothing."""
    found = measure(configured("shapes-vlm", *TEXTS[:1], "data.micro_batch=1"), repeats=1)
    assert found.phases.update > found.phases.optimizer / 10
    assert found.work.calls == 64 and found.work.update_backwards > 0


@pytest.mark.integration
def test_of_several_stages_the_last_is_measured_and_models_beside_the_policy_are_named():
    words = [
        "models={other: {model: 'shapeworld:sums', train: lora}}",
        "stages=[{iterations: 1, train: other}]",
        "rounds=2",
    ]
    found = measure(configured("shapes-reasoning", *words, "data={path: 'shapeworld:sums-few', groups: 2}"), repeats=1)
    assert found.phases.update > 0
    assert {"stages: the last stage is measured", *found.notes} == set(found.notes)
    (other,) = found.memory.others
    assert other.name == "other" and 0 < 4 * other.trained < other.weights and other.copies == 0


@pytest.mark.slow
def test_an_environment_is_played():
    """The reward `outcome` has nothing to score in a single answer, so the run would end."""
    words = (
        "environment={name: 'mmrl_shapeworld.worlds.button_environment:ButtonScreens'}",
        "rewards=[{name: outcome, args: {key: progress}}]",
        "data={path: 'shapeworld:screens-development', groups: 2, group_size: 4, micro_batch: 4}",
        "sampling.max_new_tokens=4",
    )
    assert measure(configured("shapes-vlm", *words), repeats=1).phases.rollout > 0


@pytest.mark.slow
def test_overlapped_phases_are_measured_one_after_another(pictures):
    config = configured("quickstart", *PICTURES, "run.overlap.lag=2")
    assert not one_call(config).run.overlap.is_on
    found = measure(config, repeats=1)
    assert any(note.startswith("run.overlap: ") for note in found.notes)
    assert found.work == pictures.work


@pytest.mark.parametrize(
    "words",
    [
        ("algorithm={name: online_dpo}",),
        ("algorithm={name: rejection_sft}",),
        ("algorithm={name: draft}", "rewards=[{name: shapeworld_clip}]"),
    ],
    ids=["online-dpo", "rejection", "draft"],
)
@pytest.mark.slow
def test_other_objectives_on_pictures(words):
    assert measure(configured("quickstart", *PICTURES, *words), repeats=1).phases.update > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("data.group_sampling={name: dynamic}",),
        ("algorithm={name: sft}", "data.path=shapeworld:vlm-train", "data.micro_batch=4"),
        ("data.replay={name: selective}",),
        ("data.demonstrations={share: 1.0}", "algorithm={name: grao}"),
        ("data.micro_batch=4", "algorithm={name: a_lol, values: 1}", "data.path=shapeworld:caption-first"),
    ],
    ids=["dynamic", "sft", "replay", "grao", "a_lol"],
)
def test_other_experience_of_texts(words):
    found = measure(configured("shapes-vlm", *TEXTS, *words), repeats=1)
    assert found.phases.update > 0
    assert len(found.notes) == (1 if words[0].startswith("algorithm") else 2)
