"""Models whose weights lie in the CPU's memory: loaded where they compute, gone in all other phases, equal numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from mmrl.config.algorithms.distill import DistillConfig
from mmrl.config.algorithms.preference import DPOConfig
from mmrl.config.loading.load import load_config
from mmrl.config.named_models import NamedModelConfig
from mmrl.policy import DecisionCallback
from mmrl.rewards.core.reward import Reward
from mmrl.rewards.core.reward_io import RewardContext, RewardInput
from mmrl.rewards.core.text_scoring import TextQuery
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest
from mmrl.training.experience import MicroBatch
from mmrl.training.named_model import NamedModel
from mmrl.training.objectives.base import MetricAccumulator
from mmrl.training.objectives.distillation import Distillation
from mmrl.training.objectives.preference_pairs import PreferenceLearning
from mmrl.training.offloaded_weights import OffloadedWeights
from mmrl.training.run_models import NamedModels
from mmrl.workflows.train import train
from tests.training.token_policy import TokenPolicy, questions
from tests.training.token_run import source, trainer


class Teacher(TokenPolicy):
    """A frozen token policy."""

    def __init__(self) -> None:
        super().__init__(seed=9)
        self.logits.requires_grad_(False)

    def networks(self) -> list[nn.Module]:
        return [nn.ParameterList([self.logits])]


def offloaded(teacher: Teacher) -> NamedModel:
    return NamedModel.of_offloaded(teacher, OffloadedWeights(teacher.networks()))


# Weights


CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_weights_are_copied_for_use_and_the_copy_is_freed(device):
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).to(device).eval().requires_grad_(False)
    inputs = torch.randn(5, 3, device=device)
    expected = network[2](network[1](network[0](inputs)))
    weights = OffloadedWeights([network, network[0]])
    tensors = [*network.parameters(), *network.buffers()]
    resting = [each.data_ptr() for each in tensors]
    assert all(each.is_cpu for each in tensors)
    assert not weights.loaded and weights.nbytes == sum(each.nbytes for each in tensors)  # shared ones once
    with weights.in_use():
        assert weights.loaded
        used = [each.data_ptr() for each in tensors]
        assert not set(used) & set(resting) and all(each.device.type == device for each in tensors)
        assert torch.equal(network[2](network[1](network[0](inputs))), expected)
    weights.load()
    assert [each.data_ptr() for each in tensors] == used  # one copy for all uses of a phase
    weights.release()
    weights.release()
    assert not weights.loaded and [each.data_ptr() for each in tensors] == resting


def test_weights_that_are_trained_stay():
    with pytest.raises(ValueError, match="weights that are trained change"):
        OffloadedWeights([nn.Linear(2, 2)])


# Phases


class Watching(TokenPolicy):
    """Remembers whether the teacher's weights were loaded when it sampled and when it was replayed for a gradient."""

    def __init__(self, teacher: NamedModel) -> None:
        super().__init__()
        self._teacher = teacher
        self.seen: list[tuple[str, bool]] = []

    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        self._note("rollout")
        return super().rollout(requests, seed)

    def replay(self, rollout: Rollout, step_indices: Sequence[int], visit: DecisionCallback) -> None:
        if torch.is_grad_enabled():
            self._note("update")
        super().replay(rollout, step_indices, visit)

    def _note(self, phase: str) -> None:
        assert self._teacher.offloaded is not None
        self.seen.append((phase, self._teacher.offloaded.loaded))


class TeacherLikelihood(Reward):
    """The probability of an answer under the teacher."""

    name, needs, range = "likely", ("text", "sample"), (0.0, 1.0)
    models = ("teacher",)

    def score_one(self, item: RewardInput) -> float:
        raise NotImplementedError

    def score_rows(self, items: Sequence[RewardInput], context: RewardContext) -> list[float]:
        queries = [TextQuery(item.sample, str(item.text)) for item in items if item.sample is not None]
        return [float(np.exp(each.mean())) for each in context.models["teacher"].log_probs(queries)]


def test_a_teacher_is_absent_while_the_policy_samples_and_learns(tmp_path: Path):
    teacher = Teacher()
    weights = OffloadedWeights(teacher.networks())
    sections = {"teacher": NamedModelConfig(model="x", offload=True)}
    found = NamedModels(TokenPolicy(), sections, {"teacher": teacher}, offloaded={"teacher": weights})
    policy = Watching(found["teacher"])
    objective = Distillation(policy, DistillConfig(teacher="teacher"), found["teacher"])
    own = source(policy=policy, reward=TeacherLikelihood(), models=found.scorers)
    (answer,) = found.scorers["teacher"].answers(questions()[:1], seed=0)
    assert len(answer) == 1 and not weights.loaded  # a prompt that it writes before the policy samples, too
    trainer(tmp_path / "run", own, objective=objective, models=found, training={"iterations": 2, "updates": 2}).train()
    assert {phase for phase, _ in policy.seen} == {"rollout", "update"}
    assert not any(loaded for _, loaded in policy.seen) and not weights.loaded


def learn(model: NamedModel, kind: str) -> tuple[Tensor, dict[str, float]]:
    """Return the gradient and the metrics of an update over two micro-batches."""
    policy = TokenPolicy()
    objective: Any = Distillation(policy, DistillConfig(teacher="t"), model)
    if kind == "dpo":
        objective = PreferenceLearning(policy, DPOConfig(), model)
    batches = []
    for seed in (0, 1):
        rollout = policy.rollout([RolloutRequest(each, 2, n) for n, each in enumerate(questions())], seed)
        batches.append(MicroBatch.of_rows(rollout, torch.tensor([1.0, -1.0] * len(questions()))))
    metrics = MetricAccumulator()
    objective.accumulate(batches, 1.0, [0, 1], metrics)
    return policy.logits.grad, metrics.values()


@pytest.mark.parametrize("kind", ["distill", "dpo"])
def test_an_update_is_that_of_a_teacher_on_the_device(kind):
    (own, metrics), (expected, known) = learn(offloaded(Teacher()), kind), learn(NamedModel(Teacher()), kind)
    assert torch.equal(own, expected) and own.any() and metrics == known


# Runs


@pytest.mark.slow
def test_a_pipeline_run_with_an_offloaded_teacher_ends_with_the_same_bytes(tmp_path: Path):
    words = [
        "policy.train=lora",
        "data={path: 'shapeworld:train', groups: 2, group_size: 2, micro_batch: 2}",
        "evaluation={}",
        "sampling={steps: 3, guidance_scale: 1.0, transition: {name: flow_sde, noise_level: 0.7}}",
        "training={iterations: 2}",
        "run.display=quiet",
        "algorithm={name: distill}",
    ]

    def trained(name: str, offload: bool) -> dict[str, Tensor]:
        models = f"models={{teacher: {{model: shapeworld, offload: {str(offload).lower()}}}}}"
        run = train(load_config("quickstart", [*words, models, f"run.dir={tmp_path / name}"]))
        return load_file(run / "checkpoints/step-2/trainer/parameters.safetensors")

    one, other = trained("offloaded", True), trained("beside", False)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
